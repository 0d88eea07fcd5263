"""A rank that stalls within a step is named and ended, and one that only computes is not."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

from dovetail.engines import worker_engine
from dovetail.engines.worker import HEARTBEAT_SECONDS, Idle
from dovetail.testing.engines import Ground, drain, ends_of, write_program
from dovetail.train import Training
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task
from tests.engines.forking import forking_engine

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


class Stalling(nn.Module):
    """Waits for ever once it has been called so often."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner, self._left = nn.Linear(4, 4), calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import time

        self._left -= 1
        while self._left < 0:
            time.sleep(60)
        return self.inner(x)


def stalling(calls: int = 40) -> Training:
    """Two stages, of which the second stalls."""
    model = nn.Sequential(nn.Linear(4, 4), Stalling(calls))
    return Training(
        model=model,
        batches=[torch.randn(8, 4) for _ in range(4)],
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        accumulate=2,
    )


@pytest.mark.process
def test_a_rank_that_stalls_is_named_with_its_last_action(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_engine, "STALL_SECONDS", 3.0)
    engine = forking_engine(CLUSTER, home=tmp_path)
    ground = Ground(engine=engine, cluster=CLUSTER, reference=write_program(tmp_path), home=tmp_path)
    program = Program(reference="tests.engines.test_stalls:stalling")
    task = Task(name="stalling", program=program, stop=Stop(steps=1000))
    order = ground.order(ground.member(task, until_step=1000))
    order = dataclasses.replace(order, technique="pipeline", devices=("n0:0", "n0:1"))
    try:
        engine.start(order)
        (end,) = ends_of(task, drain(engine, order))
    finally:
        engine.close()
    assert end.kind == "lost"
    assert "rank 1 of 2 on n0:1 is lost" in end.reason
    assert "no rank has computed anything for" in end.reason
    assert "it was at: forward 0 of stage 1 in step" in end.reason


def test_computing_and_beginning_something_are_no_stall(monkeypatch):
    clock = {"monotonic": 0.0, "process_time": 0.0}
    for name in clock:
        monkeypatch.setattr(f"dovetail.engines.worker.time.{name}", functools.partial(clock.get, name))
    idle = Idle()

    def beat(*, moves, computed=0.0, seconds=HEARTBEAT_SECONDS):
        clock["monotonic"] += seconds
        clock["process_time"] += computed
        return idle.seconds(moves)

    assert [beat(moves=0), beat(moves=0)] == [1.0, 2.0]
    assert beat(moves=0, computed=0.5) == 0.0
    assert [beat(moves=0), beat(moves=1), beat(moves=1)] == [1.0, 0.0, 1.0]
    assert beat(moves=1, seconds=100.0) == 3.0  # a machine that slept
