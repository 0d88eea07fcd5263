"""A device that is too small for the batches of a task, from the first failure to the end, in real processes: the same
batches are taken in more parts, and what is learned is what whole batches teach."""

import dataclasses
from pathlib import Path

import pytest
import torch

from dovetail.control import Controller, Settings
from dovetail.describe import load_workload
from dovetail.engines import LocalEngine
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import Cluster, Kind

# A trial sees the small batches alone; the device holds four rows.
SWEEP = """
import dovetail as dt

def net(rows=4):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def loss(model, batch):
        if len(batch) > rows:
            raise torch.OutOfMemoryError(f"no room for {len(batch)} rows")
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    batches = [torch.randn(4 if number < 230 else 14, 6) for number in range(240)]
    return dt.Training(model=model, batches=batches, loss=loss, optimizer=torch.optim.AdamW(model.parameters()))

workload = dt.grid(net, steps=240, name="tight")
"""


@pytest.mark.process
def test_the_same_batches_are_taken_in_more_parts_until_they_fit(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    cluster, home = Cluster.uniform(Kind(name="cpu", processor="cpu")), tmp_path / "store"
    workload = load_workload(str(tmp_path / "sweep.py"))
    with Store(home, write=True) as store:
        engine = LocalEngine(cluster, home=home)
        settings = Settings(save_every_steps=100, retries=0)
        controller = Controller(workload, cluster=cluster, store=store, engine=engine, settings=settings)
        controller.reconcile()
        controller.measure()
        controller.run()
        engine.close()
        events = [event for _, event in store.events()]
    (one,) = controller.progress.values()
    assert (one.status, one.step) == ("finished", 240), one.reason
    options = [event.data["option"] for event in events if event.kind == "started"]
    assert [option["knobs"].get("microbatches", 1) for option in options] == [1, 2, 4]
    assert [event.data["microbatches"] for event in events if event.kind == "divided"] == [2, 4]
    assert "no room for 14 rows" in next(event.data["reason"] for event in events if event.kind == "rejected")
    found = checkpoint.read(checkpoint.complete(home / "checkpoints" / one.task)[0])
    for name, tensor in whole(workload, home).items():
        assert torch.allclose(found.tensors[name], tensor, rtol=1e-4, atol=1e-6), name


def whole(workload, home: Path) -> dict[str, torch.Tensor]:
    """What a device with room for whole batches ends with."""
    (task,) = workload.tasks
    training = build(dataclasses.replace(task, parameters={"rows": 1000}), home=home)
    session = RESIDENT.open([SessionMember(training=training, seed=task.seed)], device=torch.device("cpu"), threads=1)
    for _ in range(240):
        session.advance()
    tensors = dict(session.state().tensors)
    session.close()
    return tensors
