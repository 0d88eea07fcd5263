"""`dovetail run --engine ray` from end to end, and what is left when the cluster's head dies under it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.store import Store
from dovetail.train import checkpoint
from tests.cli.processes import dovetail as run_command
from tests.engines.ray.ray_clusters import needs_ray

SWEEP = """
import torch
from torch import nn

import dovetail as dt


def tiny(width=16, seed=0):
    model = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1), nn.Linear(width, 1))
    return dt.Training(
        model=model,
        batches=[torch.randn(32, width) for _ in range(20)],
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        evaluate=lambda model: {"norm": float(model[0].weight.norm())},
        evaluate_every=10_000,
    )


workload = dt.grid(tiny, seed=[0, 1], steps=STEPS)
"""

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
options = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=options)
(head,) = cluster.head_node.all_processes["gcs_server"]
print(cluster.address, flush=True)
sys.stdin.readline()
head.process.kill()
sys.stdin.readline()
cluster.shutdown()
"""


def test_an_engine_that_is_none_is_refused(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP.replace("STEPS", "8"))
    found = CliRunner().invoke(app, ["run", str(tmp_path / "sweep.py"), "--engine", "slurm", "--store", str(tmp_path)])
    assert found.exit_code == 2
    assert "the engine must be one of local, ray, got 'slurm'" in found.output


def dovetail(folder, *arguments):
    command = [sys.executable, "-m", "dovetail", "run", "sweep.py", "--exact", "--quiet", "--save-steps", "500"]
    return subprocess.Popen([*command, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True)


def states(store):
    found = {}
    with Store(store) as opened:
        names = {task.identity: task.name for _, task in opened.tasks()}
    for folder in Path(store, "checkpoints").iterdir():
        state, damages = checkpoint.recover(folder)
        assert not damages
        found[names[folder.name]] = state
    return found


PRINTING = """
import os

import torch

import dovetail as dt

from .settings import SLOPE


def line(rate=0.1):
    print(f"building {rate}")
    model = torch.nn.Linear(1, 1)

    def loss(model, batch):
        os.system(f"echo step of {rate}")
        return (model(batch) - SLOPE * batch).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return dt.Training(model=model, batches=[torch.ones(4, 1)], loss=loss, optimizer=optimizer)


workload = dt.grid(line, rate=[0.1, 0.2], steps=3)
"""


@pytest.mark.process
@pytest.mark.slow
@needs_ray
def test_each_task_of_a_package_has_a_log_of_its_own(tmp_path):
    for name, text in {"__init__": "", "settings": "SLOPE = 3.0\n", "sweep": PRINTING}.items():
        (tmp_path / "src" / "printing").mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / "printing" / f"{name}.py").write_text(text)
    (tmp_path / "pyproject.toml").write_text("")
    ray = ("--engine", "ray", "--address", "local", "--exact", "--techniques", "resident")
    found = run_command("run", "printing.sweep", *ray, cwd=tmp_path)
    assert found.code == 0, found.err
    for rate, other in ((0.1, 0.2), (0.2, 0.1)):
        told = run_command("logs", f"rate={rate}", cwd=tmp_path)
        assert told.code == 0, told.err
        assert told.out.count(f"building {rate}") == 1
        assert told.out.count(f"step of {rate}") == 3
        assert f"of {other}" not in told.out
        assert "attempt 1 finished at step 3" in told.out


@pytest.mark.process
@pytest.mark.slow
@needs_ray
# The longer one trains when the head is missed, half a minute after its death; the shorter is done by then.
@pytest.mark.parametrize(("steps", "codes"), [(100_000, {2}), (8_000, {0, 2})])
def test_a_run_ends_when_the_head_does_and_goes_on_elsewhere(tmp_path, monkeypatch, steps, codes):
    (tmp_path / "sweep.py").write_text(SWEEP.replace("STEPS", str(steps)))
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CLUSTER], text=True, env={**os.environ}, **pipes) as cluster:
        address = cluster.stdout.readline().strip()
        with dovetail(tmp_path, "--engine", "ray", "--address", address, "--store", "store") as run:
            while not list(tmp_path.glob("store/checkpoints/*/step-*")):
                assert run.poll() is None
                time.sleep(0.2)
            cluster.stdin.write("\n")
            cluster.stdin.flush()
            _, said = run.communicate(timeout=400)
        assert run.returncode in codes, said
        assert run.returncode == 0 or f"the head of the Ray cluster at {address} must answer" in said
        before, code = states(tmp_path / "store"), run.returncode
        cluster.communicate("\n", timeout=300)
    for store in ("store", "undisturbed"):
        with dovetail(tmp_path, "--store", store) as run:
            run.communicate(timeout=300)
        assert run.returncode == 0
    after, expected = states(tmp_path / "store"), states(tmp_path / "undisturbed")
    assert before.keys() <= after.keys() == expected.keys()
    for name, state in after.items():
        assert all(torch.equal(tensor, expected[name].tensors[key]) for key, tensor in state.tensors.items())
    with Store(tmp_path / "store") as opened:
        events = [event for _, event in opened.events()]
    lost = [event for event in events if event.kind == "lost" and event.reason == "its controller ended"]
    assert bool(lost) == (code == 2)


@pytest.mark.process
@pytest.mark.slow
@needs_ray
def test_a_controller_that_was_stopped_goes_on_with_the_workers_it_had(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP.replace("STEPS", "100000"))
    with dovetail(tmp_path, "--engine", "ray", "--address", "local", "--store", "store") as run:
        while not list(tmp_path.glob("store/checkpoints/*/step-*")):
            assert run.poll() is None
            time.sleep(0.2)
        run.send_signal(signal.SIGSTOP)
        time.sleep(40)  # twice as long as anybody may be silent
        run.send_signal(signal.SIGCONT)
        time.sleep(10)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=400)
    assert run.returncode == 130, said
    with Store(tmp_path / "store") as opened:
        events = [event for _, event in opened.events()]
    assert not [event for event in events if event.kind in ("lost", "departed")]
    assert max(event.attempt for event in events) == 1


WHERE = """
import os
import stat
import sys
from pathlib import Path

from sweep import tiny


def is_open(path):
    found = path.stat()
    return found.st_uid not in (0, os.getuid()) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX)


def can_be_changed(path):
    # Whoever can enter every folder above one that is open to others can put something there, or in its place.
    above = [path, *path.parents]
    closed = [one for one in above if one.stat().st_uid == os.getuid() and not one.stat().st_mode & 0o077]
    return not closed and any(is_open(one) for one in above)


def looking(seed=0):
    folders = [Path(each).resolve() for each in sys.path if os.path.isdir(each)]
    print("open:", [str(each) for each in folders if can_be_changed(each)], flush=True)
    return tiny(seed=seed)
"""


@pytest.mark.process
@pytest.mark.slow
@needs_ray
def test_nothing_that_others_can_write_is_on_the_import_path_of_a_local_cluster(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP.replace("STEPS", "8"))
    (tmp_path / "where.py").write_text(WHERE + "\n\nimport dovetail as dt\n\nworkload = dt.grid(looking, steps=8)\n")
    ray = ("--engine", "ray", "--address", "local", "--exact", "--techniques", "resident")
    found = run_command("run", "where.py", *ray, cwd=tmp_path)
    assert found.code == 0, found.err
    told = run_command("logs", "looking", cwd=tmp_path)
    assert "open: []" in told.out, told.out
