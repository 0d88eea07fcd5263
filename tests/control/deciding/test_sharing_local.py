"""Law 7 and law 1 together: rounds under a policy, on real workers, lead to the bits that training in one go does."""

import os
from pathlib import Path

import pytest
import torch

from dovetail.control import Controller, Settings, open_result
from dovetail.control.deciding.base import Decider
from dovetail.control.deciding.sharing import Sharing
from dovetail.describe import load_workload
from dovetail.planning.share.policies import POLICIES
from dovetail.store import Store
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind
from tests.engines.forking import forking_engine

SWEEP = """
import dovetail as dt

def net(seed=0):
    import time, torch
    from torch import nn
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))
    order = torch.Generator().manual_seed(seed)
    batches = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, generator=order)

    def loss(model, batch):
        time.sleep(0.01)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return dt.Training(model=model, batches=batches, loss=loss, optimizer=optimizer)

workload = dt.grid(net, seed=[0, 1, 2, 3], steps=300, name="shared")
"""
CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=min(2, len(os.sched_getaffinity(0))))


def run(sweep: Path, home: Path, *, decider: Decider | None = None) -> None:
    with Store(home, write=True) as store:
        engine = forking_engine(CLUSTER, home=home)
        try:
            controller = Controller(
                load_workload(str(sweep)),
                cluster=CLUSTER,
                store=store,
                engine=engine,
                settings=Settings(exact=True),
                decider=decider,
            )
            controller.reconcile()
            controller.measure()
            controller.run()
        finally:
            engine.close()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
def test_tasks_that_take_turns_end_bit_for_bit_where_they_would_have_ended_alone(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.py"
    sweep.write_text(SWEEP)
    run(sweep, tmp_path / "alone")
    run(sweep, tmp_path / "shared", decider=Sharing(policy=POLICIES["max_min_fairness"], round_seconds=1.0))
    alone, shared = (open_result(tmp_path / name, workload="shared") for name in ("alone", "shared"))
    for before, after in zip(alone.tasks, shared.tasks, strict=True):
        assert (before.status, before.step) == (after.status, after.step) == ("finished", 300)
        one, other = (checkpoint.read(checkpoint.complete(task.directory)[0]) for task in (before, after))
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    with Store(tmp_path / "shared") as store:
        kinds = [event.kind for _, event in store.events()]
    assert kinds.count("stopped") > 0  # there are more tasks than devices: some had to make room
    assert kinds.count("lost") == kinds.count("failed") == 0
