"""The same server by Ray Serve, on a cluster that is started for it."""

import importlib.util
import socket

import httpx
import pytest
import torch

import dovetail as dt
from tests.serve.server.test_model_server import Served, store  # noqa: F401

HAS_SERVE = importlib.util.find_spec("ray") and importlib.util.find_spec("grpc_reflection")
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_SERVE, reason="tested where Ray Serve is: pip install 'dovetail[ray-serve]'"),
]


def test_ray_serve_answers_as_the_model_does(store):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("--best", "accuracy", "--engine", "ray", "--address", "local", "--port", str(port))
    words += ("--p99", "60s", "--rate", "2")  # a promise that a busy machine keeps
    with Served(store, *words) as served:
        best = dt.open_result(store).best("accuracy")
        rows = torch.randn(5, 2)
        said = httpx.post(served.address + "/predict", json={"inputs": rows.tolist()}, timeout=300)
        assert torch.allclose(torch.tensor(said.json()["outputs"]), best.model()(rows).detach(), atol=1e-5)
        assert httpx.get(served.address + "/health").json()["model"] == best.name
        assert httpx.post(served.address + "/predict", content=b"{", timeout=300).status_code == 400
        assert httpx.get(served.address + "/nothing").status_code == 404
        # Few have asked since, so that it is planned again; the same replica answers.
        line = next(line for line in served.process.stdout if line.startswith("at "))
        assert "a second this model: 1 × replica" in line
        assert httpx.post(served.address + "/predict", json={"inputs": rows.tolist()}, timeout=300).status_code == 200
