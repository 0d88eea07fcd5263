"""Members of one order in processes of their own on one device."""

import dataclasses
import os
import signal

import pytest

from dovetail.engines import LocalEngine
from dovetail.testing.engines import MANY_STEPS, Ground, belongs, check_ends, drain, ends_of, write_program
from dovetail.train import checkpoint
from dovetail.vocabulary import Cluster, Kind, Program, Stop, Task

pytestmark = pytest.mark.process

CLUSTER = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)


class LanedEngine(LocalEngine):
    """One on whose devices several processes compute at the same moment, as they do on any core, in turns."""

    def _has_lanes(self, devices):
        return True


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("engine")
    engine = LanedEngine(CLUSTER, home=home)
    yield Ground(engine=engine, cluster=CLUSTER, reference=write_program(home), home=home)
    engine.close()


def gang(ground, *tasks, until_step=5, technique="beside"):
    order = ground.order(*(ground.member(task, until_step=until_step) for task in tasks))
    return dataclasses.replace(order, technique=technique)


def task_of(ground, function="telling"):
    program = Program(reference=f"tests.engines.programs:{function}")
    return Task(name=f"{function}-{next(ground.numbers)}", program=program, stop=Stop(steps=5))


def lanes(engine):
    return {worker.lane: worker.process.pid for worker in engine._workers.values() if worker.lane}


def until_all_step(engine, tasks):
    events, stepping = [], set()
    while stepping != {task.identity for task in tasks}:
        new = engine.wait()
        events += new
        stepping |= {event.task for event in new if event.kind == "progress" and event.step > 0}
    return events


def test_each_member_has_a_process_of_its_own_and_ends_as_it_does_alone(ground):
    tasks = [task_of(ground) for _ in range(2)]
    order = gang(ground, *tasks)
    ground.engine.start(order)
    events = drain(ground.engine, order)
    check_ends(order, events)
    ends = [end for task in tasks for end in ends_of(task, events)]
    assert [end.kind for end in ends] == ["finished"] * 2
    assert {end.metrics["process"] for end in ends} == set(lanes(ground.engine).values())
    (released,) = (event for event in events if event.kind == "released" and belongs(event, order))
    assert {"building", "step"} <= released.seconds.keys()

    again, alone = ground.task(seed=1), ground.task(seed=1)
    for each in (gang(ground, again, ground.task()), ground.order(ground.member(alone))):
        ground.engine.start(each)
        check_ends(each, drain(ground.engine, each))
    states = [
        checkpoint.recover(ground.home / "checkpoints" / task.identity, at_most=5)[0].tensors for task in (again, alone)
    ]
    assert states[0].keys() == states[1].keys()
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


def test_a_process_that_is_lost_takes_nobody_along(ground):
    tasks = [task_of(ground, "steady") for _ in range(2)]
    order = gang(ground, *tasks, until_step=MANY_STEPS)
    ground.engine.start(order)
    events = until_all_step(ground.engine, tasks)
    os.kill(lanes(ground.engine)[1], signal.SIGKILL)
    while not any(event.kind == "lost" for event in events):
        events += ground.engine.wait()
    (lost,) = ends_of(tasks[0], events)
    assert "killed by SIGKILL" in lost.reason
    assert not ends_of(tasks[1], events)
    before = max(event.step for event in events if event.task == tasks[1].identity and event.kind == "progress")
    while not any(event.kind == "progress" and event.step > before for event in events):
        events += ground.engine.wait()
    ground.engine.stop(order.name, reason="enough")
    events += drain(ground.engine, order)
    (stopped,) = ends_of(tasks[1], events)
    assert (stopped.kind, stopped.reason) == ("stopped", "enough")


def test_a_stop_reaches_everybody(ground):
    tasks = [task_of(ground, "steady") for _ in range(3)]
    order = gang(ground, *tasks, until_step=MANY_STEPS)
    ground.engine.start(order)
    events = until_all_step(ground.engine, tasks)
    ground.engine.stop(order.name, reason="enough")
    events += drain(ground.engine, order)
    check_ends(order, events)
    ends = [end for task in tasks for end in ends_of(task, events)]
    assert [(end.kind, end.reason) for end in ends] == [("stopped", "enough")] * 3
    for task, end in zip(tasks, ends, strict=True):
        state, _ = checkpoint.recover(ground.home / "checkpoints" / task.identity, at_most=MANY_STEPS)
        assert state.step == end.step


def test_who_fails_fails_alone(ground):
    good, bad = task_of(ground, "steady"), task_of(ground, "raising")
    order = gang(ground, bad, good)
    ground.engine.start(order)
    events = drain(ground.engine, order)
    check_ends(order, events)
    assert [end.kind for task in (bad, good) for end in ends_of(task, events)] == ["failed", "finished"]


def test_workers_are_prepared_while_tasks_are_built_for_the_first_time(tmp_path):
    engine = LanedEngine(CLUSTER, home=tmp_path)
    ground = Ground(engine=engine, cluster=CLUSTER, reference=write_program(tmp_path), home=tmp_path)
    try:
        order = ground.order(*(ground.member(ground.task()) for _ in range(2)), purpose="fingerprint")
        engine.start(order)
        assert sorted(lanes(engine)) == [1, 2]
        prepared = lanes(engine)
        drain(engine, order)
        later = gang(ground, ground.task(), ground.task())
        engine.start(later)
        check_ends(later, drain(engine, later))
        assert lanes(engine) == prepared
    finally:
        engine.close()


def test_where_no_worker_can_be_started_an_order_that_builds_ends_all_the_same(tmp_path, monkeypatch):
    engine = LanedEngine(CLUSTER, home=tmp_path)
    ground = Ground(engine=engine, cluster=CLUSTER, reference=write_program(tmp_path), home=tmp_path)

    def refuse(devices, lane=0):
        raise OSError("no more processes")

    monkeypatch.setattr(engine, "_start_worker", refuse)
    try:
        order = ground.order(*(ground.member(ground.task()) for _ in range(2)), purpose="fingerprint")
        engine.start(order)
        assert [event.kind for event in drain(engine, order)] == ["lost", "released"]
    finally:
        engine.close()


def test_who_keeps_much_of_what_it_built_is_stopped_for_what_comes_next(tmp_path, monkeypatch):
    engine = LanedEngine(CLUSTER, home=tmp_path)
    ground = Ground(engine=engine, cluster=CLUSTER, reference=write_program(tmp_path), home=tmp_path)
    try:
        order = gang(ground, task_of(ground), task_of(ground))
        engine.start(order)
        check_ends(order, drain(engine, order))
        most = max(worker.held_bytes for worker in engine._workers.values())
        monkeypatch.setattr("dovetail.engines.local.KEPT_BYTES", most + (100 << 20))
        before = lanes(engine)
        large = dataclasses.replace(task_of(ground, "hoarding"), parameters={"size": 300 << 20})
        order = ground.order(*map(ground.member, [task_of(ground), large, task_of(ground)]), purpose="fingerprint")
        monkeypatch.setattr(engine, "_prepare_lanes", lambda devices, count: None)
        engine.start(order)
        assert [event.kind for event in drain(engine, order)][:-1] == ["fingerprinted"] * 3
        assert lanes(engine) == {2: before[2]}
    finally:
        engine.close()


def test_all_workers_that_are_there_build_tasks_and_a_program_that_ends_its_own_takes_nobody_along(tmp_path):
    engine = LanedEngine(CLUSTER, home=tmp_path)
    ground = Ground(engine=engine, cluster=CLUSTER, reference=write_program(tmp_path), home=tmp_path)
    try:
        first = gang(ground, ground.task(), ground.task())
        engine.start(first)
        check_ends(first, drain(engine, first))
        fatal = task_of(ground, "exiting")
        shares = [[ground.task(), ground.task()], [fatal, ground.task()], [task_of(ground), ground.task()]]
        order = ground.order(*(ground.member(task) for share in shares for task in share), purpose="fingerprint")
        engine.start(order)
        events = drain(engine, order)
    finally:
        engine.close()
    found = [[[each.kind for each in events if each.task == task.identity] for task in share] for share in shares]
    built = ["fingerprinted"]
    assert found == [[built, built], [["lost"], []], [built, built]]
    (lost,) = ends_of(fatal, events)
    assert "exited with code 3" in lost.reason
    assert "my last words" in lost.log
    (released,) = (event for event in events if event.kind == "released" and belongs(event, order))
    assert events.index(released) == len(events) - 1


def test_who_has_a_device_for_itself_for_long_has_all_of_its_memory(ground):
    order = gang(ground, task_of(ground), task_of(ground))
    ground.engine.start(order)
    drain(ground.engine, order)
    for seconds, left in ((1.0, [1, 2]), (1000.0, [])):
        order = dataclasses.replace(ground.order(ground.member(ground.task())), predicted_seconds=seconds)
        ground.engine.start(order)
        assert [lane for lane in sorted(lanes(ground.engine)) if lane < 3] == left
        drain(ground.engine, order)
