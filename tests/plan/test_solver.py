"""The door to the solver: what it proves, what it finds, and that importing planning does not open it."""

import subprocess
import sys

import pytest

from dovetail.plan.solver import Activity, Column, cover, pack


def activity(ticks: int, *, need: int, draw: int = 1, **more: int) -> Activity:
    return Activity(ticks=ticks, covers={need: 1}, draws={0: draw}, **more)


def test_importing_planning_does_not_load_the_solver() -> None:
    code = "import sys, dovetail.plan; sys.exit(any(name.startswith('ortools') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_cover_is_the_least_share_and_a_proof() -> None:
    found = cover(
        [Column(covers={0: 1}, draws={0: 3.0}), Column(covers={0: 2}, draws={0: 5.0})], needs=[4], pools=[5.0]
    )
    assert found.ratio == pytest.approx(2.0)
    assert found.amounts == pytest.approx((0.0, 2.0))


def test_what_cannot_be_covered_proves_nothing() -> None:
    assert cover([], needs=[1], pools=[1.0]).ratio == 0.0


def test_one_way_of_each_is_chosen() -> None:
    ways = [activity(9, need=0), activity(5, need=0, draw=2), activity(5, need=1, draw=2)]
    found = pack(ways, needs=[1, 1], capacities=[2], horizon=10, work=5.0)
    assert found.starts is not None
    assert set(found.starts) == {1, 2}


def test_what_is_busy_is_waited_for() -> None:
    found = pack([activity(5, need=0)], needs=[1], capacities=[1], busy=[(3, {0: 1})], horizon=8, work=5.0)
    assert found.starts == {0: 3}
    assert pack([activity(5, need=0)], needs=[1], capacities=[1], busy=[(3, {0: 1})], horizon=7, work=5.0).is_none


def test_of_equal_activities_the_first_is_used_first() -> None:
    equal = [activity(5, need=0), activity(5, need=0, after=0), activity(5, need=0, after=1)]
    found = pack(equal, needs=[2], capacities=[1], horizon=10, work=5.0)
    assert found.starts == {0: 0, 1: 5}


def test_without_work_a_question_stays_open() -> None:
    found = pack([activity(5, need=0)], needs=[1], capacities=[1], horizon=10, work=0.0)
    assert found.starts is None
    assert not found.is_none


def test_areas_beyond_sixty_bits_do_not_overflow() -> None:
    large = [Activity(ticks=1 << 30, covers={n: 1}, draws={0: 1 << 28}) for n in range(3)]
    found = pack(large, needs=[1, 1, 1], capacities=[1 << 28], horizon=3 << 30, work=5.0)
    assert found.starts is not None
    assert sorted(found.starts.values()) == [0, 1 << 30, 2 << 30]
