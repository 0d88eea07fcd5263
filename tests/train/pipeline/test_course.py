"""Steps of timetables that never flush."""

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.pipeline.timetables import Timetable, check
from dovetail.train.pipeline.course import Course, Endless
from dovetail.train.pipeline.pipeline_layout import ASYNCHRONOUS, PipelineLayout

LAYOUTS = [
    (timetable, replicas, count)
    for timetable in ASYNCHRONOUS
    for replicas, count in [((1, 1), 4), ((1, 1, 1, 1), 4), ((2, 1, 1), 4), ((1, 3), 6), ((2, 3, 1), 6), ((3, 1), 3)]
]


def layout_of(timetable, replicas, count):
    knobs = {"timetable": timetable, "replicas": replicas}
    return PipelineLayout.read(knobs, size=sum(replicas), accumulate=count)


@functools.cache
def endless_of(*which):
    return Endless(layout_of(*which))


@pytest.mark.parametrize(("timetable", "replicas", "count"), LAYOUTS)
def test_without_an_end_it_goes_on_as_a_longer_one_does(timetable, replicas, count):
    layout = layout_of(timetable, replicas, count)
    endless, longer = endless_of(timetable, replicas, count), layout.run(60)
    for rank, actions in enumerate(longer.ranks):
        sure = len(actions) * 3 // 4
        assert list(itertools.islice(endless.actions(rank, 0), sure)) == list(actions[:sure])


@pytest.mark.parametrize(("timetable", "replicas", "count"), LAYOUTS)
def test_steps_together_are_a_timetable_that_cannot_hang(timetable, replicas, count):
    layout = layout_of(timetable, replicas, count)
    courses = [Course(layout, rank=rank) for rank in range(sum(replicas))]
    steps = 6
    lists = [[action for step in range(steps) for action in course.step(step)] for course in courses]
    whole = [tuple(a for a in each if a.operation == "update" or a.microbatch < steps * count) for each in lists]
    table = courses[0].table
    made = Timetable(
        name=timetable, ranks=tuple(whole), holders=table.holders, microbatches=steps * count, flushes=False
    )
    check(made)
    for course, actions in zip(courses, lists, strict=True):
        updates = [action for action in actions if action.operation == "update"]
        assert len(updates) == steps * count // course.round(updates[0].stage)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 300))
def test_begun_anew_it_does_what_is_left(which, step):
    layout = layout_of(*which)
    endless, first = endless_of(*which), step * layout.microbatches
    for rank in range(sum(layout.replicas)):
        found = list(itertools.islice(endless.actions(rank, first), 20))
        size = endless.rounds
        assert all(a.microbatch * (size[a.stage] if a.operation == "update" else 1) >= first for a in found)
        forwards = [a.microbatch for a in found if a.operation == "forward"]
        assert forwards[0] - first < len(endless.table.holders[found[0].stage])
