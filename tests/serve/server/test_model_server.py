"""A real server in a process, asked over HTTP."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import safetensors.numpy
import torch

import dovetail as dt
from tests.cli.processes import dovetail, in_process

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
OTHER = safetensors.numpy.save({"x": torch.ones(1, 2).numpy()})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    home = tmp_path_factory.mktemp("served") / "store"
    subprocess.run(
        [sys.executable, "-m", "dovetail", "run", str(HERE / "served.py"), "--store", str(home)],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return home


class Served:
    def __init__(self, store, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "serve", "--store", str(store), "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.match(r"(http://\S+)/predict", line):
                self.address = found[1]
                return
        self.process.wait()
        self.process.stdout.close()
        raise AssertionError("".join(self.said))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, rest


@pytest.fixture(scope="module")
def served(store):
    with Served(store, "--best", "accuracy") as found:
        yield found


def replicas_of(served):
    return [
        int(pid)
        for pid in subprocess.run(
            ["pgrep", "-P", str(served.process.pid)], capture_output=True, text=True
        ).stdout.split()
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


def test_it_answers_as_the_model_does_in_json_and_tensors(served, store):
    best = dt.open_result(store).best("accuracy")
    assert best.task.parameters["width"] == 1024
    rows = torch.randn(5, 2)
    expected = best.model()(rows).detach()
    said = httpx.post(served.address + "/predict", json={"inputs": rows.tolist()})
    assert torch.allclose(torch.tensor(said.json()["outputs"]), expected, atol=1e-5)
    body = safetensors.numpy.save({"inputs": rows.numpy()})
    tensors = httpx.post(
        served.address + "/predict", content=body, headers={"content-type": "application/x-safetensors"}
    )
    assert torch.allclose(torch.from_numpy(safetensors.numpy.load(tensors.content)["outputs"]), expected, atol=1e-5)
    assert httpx.get(served.address + "/schema").json()["inputs"][0]["shape"] == ["rows", 2]
    assert httpx.get(served.address + "/health").json()["model"] == best.name
    assert 'dovetail_requests_total{status="200"}' in httpx.get(served.address + "/metrics").text


@pytest.mark.parametrize(
    ("content", "kind", "status", "message"),
    [
        (b"{", "application/json", 400, "must be JSON"),
        (b'{"inputs": [[1, 2, 3]]}', "application/json", 400, "must have the shape"),
        (b'{"inputs": [["a", "b"]]}', "application/json", 400, "must be numbers"),
        (b"garbage", "application/x-safetensors", 400, "must be safetensors"),
        (OTHER, "application/x-safetensors", 400, "must be \\['inputs'"),
        (b"[" * 100_000, "application/json", 400, "must be JSON"),
        (b" " * (33 << 20), "application/json", 413, "bytes at most"),
    ],
)  # fmt: skip
def test_bad_requests_are_named(served, content, kind, status, message):
    said = httpx.post(served.address + "/predict", content=content, headers={"content-type": kind}, timeout=30)
    assert said.status_code == status
    assert re.search(message, said.json()["error"])


def test_replicas_step_back_for_the_process_that_reads_requests(served):
    mine = os.getpriority(os.PRIO_PROCESS, served.process.pid)
    assert os.getpriority(os.PRIO_PROCESS, replicas_of(served)[0]) == min(19, mine + 5)


def test_a_slow_sender_holds_up_nobody(served):
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert httpx.post(served.address + "/predict", json={"inputs": [[0, 0]]}).status_code == 200


def test_drift_raises_an_alarm_that_names_inputs(served):
    def ask(inputs, **more):
        rows = [[round(float(value), 3) for value in row] for row in inputs]
        path = "/feedback" if more else "/predict"
        return httpx.post(served.address + path, json={"inputs": rows, **more}, timeout=30)

    draw = torch.Generator().manual_seed(5)
    said = ask(torch.randn(4, 2, generator=draw), labels=[0, 1, 0, 1])
    assert said.json()["rows"] == 4
    assert ask(torch.randn(2, 2), labels=[0.5, 1]).status_code == 400
    until = time.monotonic() + 300
    while not (found := httpx.get(served.address + "/health").json()["drift"]) and time.monotonic() < until:
        assert ask(torch.randn(500, 2, generator=draw) + torch.tensor([0.0, 4.0])).status_code == 200
        time.sleep(0.2)
    assert "inputs[1] = above" in found[0]["says"]
    assert "dovetail_alarm_count 0.0" not in httpx.get(served.address + "/metrics").text


def test_a_killed_replica_and_a_swap_lose_no_request(store):
    with Served(store, "--best", "accuracy", "--replicas", "2", "--within", "20s") as served:
        rows = torch.randn(600, 1, 2)
        expected = dt.open_result(store).best("accuracy").model()(rows[:, 0]).detach()

        def ask(number):
            said = client.post(served.address + "/predict", json={"inputs": rows[number].tolist()}, timeout=300)
            return said.status_code, said.json()

        with httpx.Client() as client, concurrent.futures.ThreadPoolExecutor(8) as asking:
            waiting = [asking.submit(ask, number) for number in range(600)]
            while sum(each.done() for each in waiting) < 100:
                time.sleep(0.01)
            os.kill(replicas_of(served)[0], signal.SIGKILL)
            assert client.post(served.address + "/reload", timeout=300).status_code == 200
            found = [each.result() for each in waiting]
            text = client.get(served.address + "/metrics").text
        assert {status for status, _ in found} == {200}
        answers = torch.tensor([said["outputs"][0] for _, said in found])
        assert torch.allclose(answers, expected, atol=1e-5)
        assert "dovetail_swaps_total 1.0" in text
        assert "dovetail_replicas_lost_total 1.0" in text


def test_a_cascade_with_a_token(store, tmp_path):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    words = ("--cascade", "accuracy", "--lose", "0.02", "--confidence", "0.9", "--token-file", str(token))
    with Served(store, *words) as served:
        assert any("width=1024" in line for line in served.said)
        assert httpx.post(served.address + "/predict", json={"inputs": [[3, 0]]}).status_code == 401
        head = {"authorization": "Bearer 0123456789abcdef"}
        said = httpx.post(served.address + "/predict", json={"inputs": [[3, 0], [-3, 0]]}, headers=head).json()
        assert [max(range(2), key=row.__getitem__) for row in said["outputs"]] == [0, 1]


def test_replicas_are_planned_for_a_promise(store):
    with Served(store, "--best", "accuracy", "--p99", "500ms", "--rate", "20") as served:
        said = "".join(served.said)
        assert re.search(r"this model: 1 × replica with up to \d+ rows; 99% within [\d.]+ ms expected", said)
        assert httpx.post(served.address + "/predict", json={"inputs": [[3, 0]]}).status_code == 200


def test_the_cheapest_mix_of_a_described_cluster_is_said(store, tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(["5"] * 30 + ["40"] * 60 + ["5"] * 30))
    words = ("--p99", "500ms", "--trace", str(trace), "--cluster", "4xcpu+2xt4", "--price", "cpu=0.05")
    command = [sys.executable, "-m", "dovetail", "serve", "--store", str(store), "--best", "accuracy", *words]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2
    assert "give --price t4=0.50 for t4" in refused.stderr
    done = subprocess.run([*command, "--price", "t4=0.35"], capture_output=True, text=True, timeout=100)
    assert re.search(r"this model: \d × cpu\S* with up to \d+ rows; .*; 0\.\d+ an hour", done.stdout), done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "must be named, by --best METRIC or by --cascade"),
        (("--best", "nonsense"), "must have reported 'nonsense'"),
        (("--best", "accuracy", "--host", "0.0.0.0"), "must have a token"),
        (("--best", "accuracy", "--p99", "20ms"), "--rate with requests a second"),
        (("--best", "accuracy", "--p99", "soon", "--rate", "1"), "--p99: a time must be a number with units"),
        (("--best", "accuracy", "--cluster", "4xt4"), "--cluster, --price for its kinds, and --p99"),
        (("--best", "accuracy", "--p99", "1s", "--trace", "/nowhere/trace"), "a number a line; found"),
        (("--best", "accuracy", "--p99", "0.1ms", "--rate", "1"), "must be answered within 0.1 ms"),
        (("--best", "accuracy", "--token-file", "/nowhere/token"), "must be readable"),
    ],
)
def test_what_cannot_be_served_is_said(store, words, message):
    command = ("serve", "--store", str(store), "--port", "0", *words)
    # Those that look into the store, or measure, as a user begins them; others end before anything is loaded.
    begins = dovetail if {"nonsense", "0.1ms"} & set(words) else in_process
    done = begins(*command, cwd=store.parent)
    assert done.code == 2, json.dumps([done.out, done.err])
    assert message in done.err
