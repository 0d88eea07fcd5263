"""A run whose checkpoints go to S3 through faults, killed with its controller in the middle: it goes on from the newest
that has its index, and ends with the bits of a run that nobody disturbed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from s3_server import BUCKET, Faults, FaultyProxy

from dovetail import open_result
from dovetail.store import RemoteFolder, Store
from dovetail.train import RESIDENT, checkpoint
from dovetail.train.base import SessionMember
from dovetail.train.build import build
from dovetail.vocabulary import Task

STEPS = 60

SWEEP = f"""
import time
import dovetail as dt

def net():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def loss(model, batch):
        time.sleep(0.01)
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    batches = [torch.randn(8, 6, generator=torch.Generator().manual_seed(n)) for n in range({STEPS})]
    return dt.Training(model=model, batches=batches, loss=loss, optimizer=torch.optim.AdamW(model.parameters()))

workload = dt.grid(net, steps={STEPS}, name="far")
"""


def command(folder: Path, *words: str) -> list[str]:
    run = [sys.executable, "-m", "dovetail", "run", str(folder / "sweep.py"), "--store", str(folder / "far")]
    return [*run, "--exact", "--save-steps", "10", "--quiet", *words]


@pytest.mark.process
def test_it_goes_on_from_the_newest_that_has_its_index(tmp_path: Path, s3: FaultyProxy) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    s3.faults = Faults.share(0.2, slow_seconds=0.1, lag_seconds=5.0)
    there = RemoteFolder(f"s3://{BUCKET}/{tmp_path.name}")
    with subprocess.Popen(command(tmp_path, "--checkpoints", str(there)), env=environment) as process:
        while not any("/step-000000020-" in key and key.endswith("/index.json") for key in s3.written_keys()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    time.sleep(1.0)  # its worker ends with it
    with Store(tmp_path / "far") as store:
        (task,) = {event.task for _, event in store.events() if event.kind == "saved"}
    faults, s3.faults = s3.faults, Faults()
    newest, before, *_ = checkpoint.complete(there / task)  # one more where it was killed before it removed the oldest
    newest.remove("index.json")  # as if it had been killed a moment earlier
    s3.faults = faults
    # Where they are is known to the store from now on.
    subprocess.run(command(tmp_path), env=environment, check=True)

    (far,) = open_result(tmp_path / "far").tasks
    assert (far.status, far.step) == ("finished", STEPS)
    assert far.directory == there / far.task.identity
    assert not (tmp_path / "far" / "checkpoints").exists()
    with Store(tmp_path / "far") as store:
        steps = [event.step for _, event in store.events() if event.kind == "saved" and event.attempt == 2]
    assert steps[0] == checkpoint.step_of(before) + 10
    losses, tensors = undisturbed(far.task)
    assert [losses[step - 1] for step, _ in far.history["train/loss"]] == [
        loss for _, loss in far.history["train/loss"]
    ]
    found = checkpoint.read(checkpoint.complete(far.directory)[0]).tensors
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert all(torch.equal(value, tensors[f"model/{name}"]) for name, value in far.model().state_dict().items())
    assert set(s3.counts) >= {"slow", "slow_down", "request_cut", "answer_cut", "lagging_list"}


def undisturbed(task: Task) -> tuple[list[float], dict[str, torch.Tensor]]:
    """What a task's losses and its state come to in one go."""
    session = RESIDENT.open(
        [SessionMember(training=build(task), seed=task.seed)], device=torch.device("cpu"), threads=1
    )
    losses = [float(session.advance()[0].loss) for _ in range(STEPS)]
    tensors = dict(session.state().tensors)
    session.close()
    return losses, tensors
