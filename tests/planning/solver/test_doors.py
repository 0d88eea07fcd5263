"""The door to the solver: what it proves, what it finds, that it is the only one, and that nothing stops in silence."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dovetail.planning import problem
from dovetail.planning.share import decompose, levels
from dovetail.planning.share.policies import POLICIES, finish_time_fairness
from dovetail.planning.solver import Activity, Column, Goal, cheapest, cover, covering, pack
from dovetail.testing.policies import draw
from dovetail.vocabulary import Family


def activity(ticks: int, *, need: int, draw: int = 1, **more: int) -> Activity:
    return Activity(ticks=ticks, covers={need: 1}, draws={0: draw}, **more)


def test_importing_planning_does_not_load_the_solver() -> None:
    code = "import sys, dovetail.planning; sys.exit(any(name.startswith('ortools') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_it_is_the_only_one() -> None:
    folder = Path(problem.__file__).parents[1]
    others = [file for file in folder.rglob("*.py") if file.parent != folder / "planning" / "solver"]
    assert [file for file in others if "import ortools" in (text := file.read_text()) or "from ortools" in text] == []


def test_a_cover_is_the_least_share_and_a_proof() -> None:
    found = cover(
        [Column(covers={0: 1}, draws={0: 3.0}), Column(covers={0: 2}, draws={0: 5.0})], needs=[4], pools=[5.0]
    )
    assert found.ratio == pytest.approx(2.0)
    assert found.amounts == pytest.approx((0.0, 2.0))


def test_what_cannot_be_covered_proves_nothing() -> None:
    assert cover([], needs=[1], pools=[1.0]).ratio == 0.0
    too_little = cheapest([Column(covers={0: 1}, draws={0: 2.0})], prices=[1.0], needs=[1], pools=[1.0])
    assert (too_little.ratio, too_little.amounts) == (math.inf, ())


@pytest.mark.parametrize("status", ["ABNORMAL", "NOT_SOLVED", "FEASIBLE"])
def test_a_cover_that_is_not_solved_proves_nothing_and_has_no_amounts(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = covering.load

    def load(name: str) -> Any:
        def create(kind: str) -> Any:
            solver = real(name).Solver.CreateSolver(kind)
            solver.Solve = lambda: getattr(solver, status)
            return solver

        return SimpleNamespace(Solver=SimpleNamespace(CreateSolver=create))

    monkeypatch.setattr(covering, "load", load)
    one = [Column(covers={0: 1}, draws={0: 1.0})]
    for found in (cover(one, needs=[1], pools=[1.0]), cheapest(one, prices=[1.0], needs=[1], pools=[1.0])):
        assert (found.ratio, found.amounts) == (0.0, ())


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


def test_a_packing_that_stops_early_says_how_far_off_it_may_be() -> None:
    dice = np.random.default_rng(0)
    many = [activity(int(ticks), need=n, draw=1 + n % 3) for n, ticks in enumerate(dice.integers(3, 40, 30))]
    goal = Goal(start_costs=[1 + n % 7 for n in range(30)], used_costs=[0] * 30)
    found = pack(many, needs=[1] * 30, capacities=[4], horizon=600, work=0.05, goal=goal)
    if found.starts is not None:
        reached = sum(goal.start_costs[number] * start for number, start in found.starts.items())
        assert found.bound < reached
    assert not found.is_none
    nothing = pack(many, needs=[1] * 30, capacities=[4], horizon=250, work=1e-9)
    assert (nothing.starts, nothing.is_none) == (None, False)


def many_tasks(seed: int) -> problem.Problem:
    """Every task a family of its own, with an age."""
    drawn = draw(seed, packed=False)
    options = [
        dataclasses.replace(option, families=(member.task,))
        for family in drawn.families
        for member in family.members
        for option in drawn.options
        if option.families == (family.name,)
    ]
    families = tuple(Family(name=m.task, members=(m,)) for family in drawn.families for m in family.members)
    return dataclasses.replace(drawn, families=families, options=tuple(options))


@pytest.mark.parametrize("name", ["max_min_fairness", "makespan", "finish_time_fairness"])
def test_prices_that_stop_early_state_their_gap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [many_tasks(seed) for seed in range(6)]
    exact = [POLICIES[name](each).value for each in drawn]
    monkeypatch.setattr(levels, "MANY_GROUPS", 1)
    monkeypatch.setattr(decompose, "_ROUNDS", 2)
    monkeypatch.setattr(finish_time_fairness, "_ROUNDS", 2)
    found = [POLICIES[name](each) for each in drawn]
    for best, each in zip(exact, found, strict=True):
        assert each.value <= best * (1 + 1e-6)
        assert each.bound >= best * (1 - 1e-6)
    assert max(each.gap for each in found) > 1e-3


def test_finish_time_fairness_that_stops_early_states_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [draw(seed) for seed in range(8)]
    exact = [POLICIES["finish_time_fairness"](each).value for each in drawn]
    monkeypatch.setattr(finish_time_fairness, "_ROUNDS", 1)
    found = [POLICIES["finish_time_fairness"](each) for each in drawn]
    for best, each in zip(exact, found, strict=True):
        assert each.value <= best * (1 + 1e-6) <= each.bound * (1 + 1e-5)
    assert max(each.gap for each in found) > 1e-3
