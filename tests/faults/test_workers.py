"""Faults of real workers: a notice before their end, a clock that is set, a process that cannot be started."""

import os
import signal
import time
from pathlib import Path

import pytest

from dovetail.engines import LocalEngine
from dovetail.testing.engines import MANY_STEPS, Ground, check_ends, drain, ends_of, write_program
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task
from tests.engines.worker_pids import worker_pids

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    engine = LocalEngine(CLUSTER, home=home)
    yield Ground(engine=engine, cluster=CLUSTER, reference=write_program(home), home=home)
    engine.close()


def steady(ground):
    program = Program(reference="tests.engines.programs:steady")
    return Task(name=f"steady-{next(ground.numbers)}", program=program, stop=Stop(steps=MANY_STEPS))


def under_way(ground, task):
    order = ground.order(ground.member(task, until_step=MANY_STEPS))
    ground.engine.start(order)
    events = []
    while not any(event.kind == "progress" and event.step > 0 for event in events):
        events += ground.engine.wait()
    return order, events


def test_a_worker_that_is_given_notice_saves_and_leaves(ground):
    task = steady(ground)
    order, _ = under_way(ground, task)
    process = worker_pids(ground.engine)["n0:0"]
    os.kill(process, signal.SIGTERM)
    events = drain(ground.engine, order)
    check_ends(order, events)
    (end,) = ends_of(task, events)
    assert (end.kind, end.reason) == ("stopped", "the worker on n0:0 was given notice")
    state, _ = checkpoint.recover(Path(order.members[0].directory))
    assert state.step == end.step > 0
    assert "n0:0" not in worker_pids(ground.engine), "it gets nothing more to do"
    after, _ = under_way(ground, steady(ground))
    assert worker_pids(ground.engine)["n0:0"] != process
    ground.engine.stop(after.name, reason="enough")
    drain(ground.engine, after)


def test_a_clock_that_is_set_changes_no_length_of_time(ground, monkeypatch):
    before, real = ground.engine.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600.0)  # an hour back, here; workers' clocks stay
    assert 0 <= ground.engine.now() - before < 60
    monkeypatch.undo()
    ground.engine._epoch_seconds += 3600.0  # as if this one's clock had been set before it began
    try:
        task = steady(ground)
        order, events = under_way(ground, task)
        ground.engine.stop(order.name, reason="enough")
        events += drain(ground.engine, order)
        assert all(abs(event.at_seconds - ground.engine.now()) < 300 for event in events)
        times = [event.at_seconds for event in events]
        assert times == sorted(times)
    finally:
        ground.engine._epoch_seconds -= 3600.0


def test_a_worker_that_cannot_be_started_is_a_loss_with_the_reason(ground):
    (ground.home / "logs").rename(ground.home / "moved")
    (ground.home / "logs").touch()  # where a folder should be: no log can be made, so no worker started
    try:
        task = steady(ground)
        order = ground.order(ground.member(task, until_step=5), device=1)
        ground.engine.start(order)
        events = drain(ground.engine, order)
    finally:
        (ground.home / "logs").unlink()
        (ground.home / "moved").rename(ground.home / "logs")
    check_ends(order, events)
    (end,) = ends_of(task, events)
    assert end.kind == "lost"
    assert "its worker could not be started: [Errno 20] Not a directory" in end.reason
