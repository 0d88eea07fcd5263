"""A device that is too small for the batches of a task, from the first failure to the end, in real processes: the same
batches are taken in more parts, and what is learned is what whole batches teach."""

import dataclasses
from pathlib import Path

import pytest
import torch

from dovetail.control import Controller, Settings
from dovetail.describe import load_workload
from dovetail.store import Store
from dovetail.train import RESIDENT, SessionMember, checkpoint
from dovetail.train.build import build
from dovetail.vocabulary import Cluster, Kind
from tests.engines.forking import forking_engine

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
        engine = forking_engine(cluster, home=home)
        settings = Settings(save_every_steps=100, retries=0)
        controller = Controller(workload, cluster=cluster, store=store, engine=engine, settings=settings)
        controller.reconcile()
        controller.measure()
        controller.run()
        engine.close()
        events = [event for _, event in store.events()]
    (one,) = controller.progress.values()
    assert (one.status, one.step) == ("finished", 240), one.reason
    options = [event.option for event in events if event.kind == "started"]
    assert [option.knobs.get("microbatches", 1) for option in options] == [1, 2, 4]
    assert [event.microbatches for event in events if event.kind == "divided"] == [2, 4]
    assert "no room for 14 rows" in next(event.rejection.reason for event in events if event.kind == "rejected")
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


# Blocks whose activations the device holds at most so many of, counted as they come and go; the bits of computing them
# again are those of keeping them.
COUNTED = """
import dovetail as dt

def net(most=2):
    import torch
    from torch import nn
    from tests.faults.holding import Holding

    holding = Holding()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(0.2)

        def forward(self, x):
            return x + holding(self.drop(torch.tanh(self.inner(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = nn.ModuleList([Block() for _ in range(6)]), nn.Linear(8, 1)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Net()

    def loss(model, batch):
        loss.holding.most = 1000 if len(batch) == 4 else most
        return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

    loss.holding = holding  # where nobody looks for what a training changes

    batches = [torch.randn(4 if number < FEW else 6, 8) for number in range(300)]
    return dt.Training(model=model, batches=batches, loss=loss, optimizer=torch.optim.AdamW(model.parameters()))

workload = dt.grid(net, most=[MOST], steps=300, name="held")
"""


def carried_out(folder: Path, *, most: int, few: int, exact: bool):
    """The events of a run on a device that holds the activations of so many blocks, and its last state."""
    folder.mkdir()
    (folder / "sweep.py").write_text(COUNTED.replace("MOST", str(most)).replace("FEW", str(few)))
    workload, home = load_workload(str(folder / "sweep.py")), folder / "store"
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    with Store(home, write=True) as store:
        engine = forking_engine(cluster, home=home)
        settings = Settings(save_every_steps=50, retries=0, exact=exact)
        controller = Controller(workload, cluster=cluster, store=store, engine=engine, settings=settings)
        controller.reconcile()
        controller.measure()
        controller.run()
        engine.close()
        events = [event for _, event in store.events()]
    (one,) = controller.progress.values()
    assert (one.status, one.step) == ("finished", 300), one.reason
    return events, checkpoint.read(checkpoint.complete(home / "checkpoints" / one.task)[0])


def knobs_of(events) -> list[dict[str, object]]:
    return [event.option.knobs for event in events if event.kind == "started"]


def bits(found) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in found.tensors.items()}


@pytest.mark.process
def test_activations_are_computed_again_where_they_do_not_fit_with_the_same_bits(tmp_path: Path) -> None:
    # The first batches are small enough, and a trial takes 200 at most.
    events, found = carried_out(tmp_path / "tight", most=2, few=280, exact=True)
    assert [dict(knobs) for knobs in knobs_of(events)] == [{}, {"recompute": True}]
    (said,) = [event for event in events if event.kind == "divided"]
    assert "activations computed again in backward" in said.message
    undisturbed, whole = carried_out(tmp_path / "roomy", most=1000, few=280, exact=True)
    assert [dict(knobs) for knobs in knobs_of(undisturbed)] == [{}]
    assert bits(found) == bits(whole)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_a_trial_that_does_not_fit_goes_down_the_same_ladder(tmp_path: Path, exact: bool) -> None:
    events, found = carried_out(tmp_path / "tight", most=2, few=0, exact=exact)
    (profile,) = [event.profile for event in events if event.kind == "measured"]
    assert knobs_of(events) == [profile.knobs]
    assert profile.knobs["recompute"] is True
    assert profile.knobs.get("microbatches", 1) == (1 if exact else 4)  # of six rows, some alone
    warned = [event.message for event in events if event.kind == "warned"]
    assert warned[0].startswith("its trial did not fit: the device holds at most 2 blocks")
    assert not [event for event in events if event.kind in ("rejected", "failed", "lost")]
    if exact:
        assert bits(found) == bits(carried_out(tmp_path / "roomy", most=1000, few=0, exact=True)[1])
