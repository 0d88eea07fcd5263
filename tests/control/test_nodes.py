"""Nodes that come and go under the real loop, on the simulated engine."""

import dataclasses

import pytest

from dovetail.engines import Outage
from dovetail.metrics.attendance import fold_attendance
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Device, Kind, Node, Profile, Rejection
from dovetail.vocabulary.node_events import DevicesJoined, NodeLeaving
from tests.control.simulations import (
    CPU,
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    statuses,
    task,
    workload,
    world,
)

BIG = Kind(name="big", processor="cpu")


def node(name, kind=CPU):
    """A node of one device."""
    return Cluster(
        kinds=(kind,),
        nodes=(Node(name=name, cores=1, memory_bytes=64 << 30),),
        devices=(Device(name=f"{name}:0", kind=kind.name, node=name, index=0),),
    )


def joins(part, *, at):
    return DevicesJoined(at_seconds=at, devices=tuple(device.name for device in part.devices), cluster=part)


def run(store, tasks, *, on=None, kinds=None, **happens):
    kinds = kinds or {}
    there = dataclasses.replace(world(), **happens)
    engine = RiggedEngine(there, kind_of=lambda device: kinds.get(device, CPU.name))
    found = carry_out(controller(workload(*tasks), store, on=on or cluster(1), engine=engine))
    return found, engine


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_a_node_that_joins_is_used_at_the_next_decision(store):
    tasks = [task(name) for name in "abcd"]
    found, engine = run(store, tasks, happenings=[joins(node("n1"), at=150.0)])
    assert set(statuses(found).values()) == {"finished"}
    assert engine.now() == pytest.approx(300.0, abs=5.0)  # 400 alone; what runs at 150 is not worth moving
    assert any(one.spans[-1].devices == ("n1:0",) for one in found.progress.values())


def test_a_kind_that_joins_is_measured_and_used(store):
    tasks = [task(name) for name in "abcd"]
    found, _ = run(store, tasks, happenings=[joins(node("n1", BIG), at=50.0)], kinds={"n1:0": "big"})
    assert {event.profile.kind for event in events_of(store, "measured")} == {"sim", "big"}
    assert any(one.spans[-1].devices == ("n1:0",) for one in found.progress.values())


@pytest.mark.parametrize(("notice", "ends"), [(20.0, "stopped"), (400.0, "finished")])
def test_a_node_with_a_notice_is_emptied(store, notice, ends):
    leaving = NodeLeaving(at_seconds=50.0, node="n1", leaves_seconds=50.0 + notice, reason="reclaimed")
    gone = Outage(devices=("n1:0",), at_seconds=50.0 + notice)
    tasks = [task(name) for name in "abc"]
    found, _ = run(store, tasks, on=cluster(1, nodes=2), happenings=[leaving], outages=[gone])
    assert set(statuses(found).values()) == {"finished"}
    assert not events_of(store, "lost")
    there = [event for event in events_of(store, "started") if event.devices == ("n1:0",)]
    (only,) = there  # nothing more begins there
    end = next(e for _, e in store.events(task=only.task) if e.kind in ("stopped", "finished") and e.attempt == 1)
    assert end.kind == ends
    assert end.at_seconds <= leaving.leaves_seconds
    if ends == "stopped":
        assert "node n1 leaves in 20.0 s: reclaimed" in end.reason
        assert end.step >= 45  # what was trained by then is not trained again


def test_who_fits_on_what_has_left_is_held_until_such_a_node_joins(store):
    def profile(family, kind, count):
        if family == "large" and kind == "sim":
            return Rejection(families=(family,), technique="resident", kind=kind, count=count, reason="too large")
        return world().profile(family, kind, count)

    on = cluster(1).joined_by(node("n1", BIG))
    tasks = [task("a"), task("b", family="large", steps=200), task("c", steps=300)]
    found, engine = run(
        store,
        tasks,
        on=on,
        kinds={"n1:0": "big", "n2:0": "big"},
        profile=profile,
        outages=[Outage(devices=("n1:0",), at_seconds=60.0)],
        happenings=[joins(node("n2", BIG), at=600.0)],
    )
    assert set(statuses(found).values()) == {"finished"}
    (held,) = events_of(store, "held")
    assert (held.task, held.at_seconds) == (tasks[1].identity, pytest.approx(60.0, abs=5.0))
    assert "held until devices join" in held.reason
    assert "node n1 left" in held.reason
    assert "too large" in held.reason
    assert engine.now() > 700.0
    assert found.progress[tasks[1].identity].spans[-1].devices == ("n2:0",)


def test_attendance_is_the_same_whenever_it_is_folded(store):
    events = [
        DevicesJoined(at_seconds=0.0, devices=("n0:0", "n1:0"), anew=True),
        NodeLeaving(at_seconds=5.0, node="n1", leaves_seconds=9.0, reason="reclaimed"),
        joins(node("n2"), at=7.0),
    ]
    found = fold_attendance(events)
    assert {name: one.status for name, one in found.items()} == {"n0": "there", "n1": "leaving", "n2": "there"}
    assert found == fold_attendance(events[2:], fold_attendance(events[:2]))
    assert list(fold_attendance([*events, DevicesJoined(at_seconds=9.0, devices=("n0:0",), anew=True)])) == ["n0"]


GPU = Kind(name="gpu", processor="cuda", memory_bytes=40 << 30)


def replanned(store, kind, techniques, *, notice, fits):
    """A task on two nodes of one device, of which one leaves: what it was trained with, where, and how it ended."""

    def resident(family, kind, count):
        if fits:
            return world().profile(family, kind, count)
        return Rejection(families=(family,), technique="resident", kind=kind, count=count, reason="too large")

    def otherwise(technique, family, kind, count):
        if technique not in techniques:
            return None
        seconds = techniques[technique] / count
        return Profile(family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=0, technique=technique)

    there = dataclasses.replace(
        world(),
        profile=resident,
        otherwise=otherwise,
        happenings=[NodeLeaving(at_seconds=60.0, node="n1", leaves_seconds=60.0 + notice)] if notice else [],
        outages=[Outage(devices=("n1:0",), at_seconds=60.0 + notice)],
    )
    engine = RiggedEngine(there, kind_of=lambda device: kind.name)
    on = Cluster.uniform(kind, nodes=2, devices_per_node=1, memory_bytes=64 << 30)
    found = carry_out(controller(workload(task("only", steps=400)), store, on=on, engine=engine))
    assert set(statuses(found).values()) == {"finished"}
    started = events_of(store, "started")
    return [(each.option.technique, each.devices) for each in started], engine.now()


@pytest.mark.parametrize("notice", [0.0, 40.0])
def test_a_task_over_two_nodes_goes_on_resident_on_the_one_that_is_left(store, notice):
    trained, ended = replanned(store, CPU, {"replicate": 1.1}, notice=notice, fits=True)
    assert trained == [("replicate", ("n0:0", "n1:0")), ("resident", ("n0:0",))]
    assert not events_of(store, "held")
    if notice:  # what was trained by then is not trained again: a step takes 0.55 s on both, 1 s on one
        (stopped,) = events_of(store, "stopped")
        assert stopped.step > 90
        assert ended == pytest.approx(stopped.at_seconds + (400 - stopped.step) * 1.0, abs=2.0)


def test_a_model_that_only_two_nodes_hold_is_spilled_by_the_one_that_is_left(store):
    trained, _ = replanned(store, GPU, {"shard": 1.2, "spill": 3.0}, notice=0.0, fits=False)
    assert [technique for technique, _ in trained] == ["shard", "spill"]
    assert trained[1][1] == ("n0:0",)
