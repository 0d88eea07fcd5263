"""Techniques that split a task over ranks, from trial to placement, on the simulated engine."""

import dataclasses

from dovetail.store import Store
from dovetail.vocabulary import Profile
from tests.control.simulations import (
    RiggedEngine,
    carry_out,
    controller,
    events_of,
    happened,
    statuses,
    task,
    workload,
    world,
)


def ranked(*, factor):
    def show(technique, family, kind, count):
        seconds = factor / count
        return Profile(family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=0, technique=technique)

    return dataclasses.replace(world(), otherwise=show)


def run(found):
    with Store(None, write=True) as store:
        carried = carry_out(controller(workload(task("only")), store, engine=RiggedEngine(found)))
        tried = [event.profile.technique for event in events_of(store, "measured")]
        rejected = [event.rejection.technique for event in events_of(store, "rejected")]
        (placement,) = happened(store).placements
        return statuses(carried), tried, rejected, placement


def test_a_lone_task_is_split_where_threads_scale_badly_and_copies_do_not():
    ended, tried, _, placement = run(ranked(factor=1.1))
    assert set(ended.values()) == {"finished"}
    assert tried == ["resident", "resident", "replicate"]
    assert (placement.option.technique, placement.devices) == ("replicate", ("n0:0", "n0:1"))


def test_copies_that_turn_out_slow_are_not_taken():
    *_, placement = run(ranked(factor=2.5))
    assert placement.option.technique == "resident"


def test_what_cannot_be_split_is_rejected_once_and_trains_all_the_same():
    ended, tried, rejected, placement = run(world())
    assert set(ended.values()) == {"finished"}
    assert (tried, rejected) == (["resident", "resident"], ["replicate"])
    assert placement.option.technique == "resident"
