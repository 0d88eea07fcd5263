"""Nearly equal tasks taken for one: no further from the optimum than stated, and few where rates are nearly equal."""

import dataclasses
import random

import numpy as np
import pytest
from coarsening import COARSE, coarse
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.policies import POLICIES, example
from dovetail.planning.share.policies.spend import worth_of_money
from dovetail.testing.policies import PolicyConformance, draw, rates_by_task
from dovetail.vocabulary import Allocation, Family, InvalidWorkload

STEPS = ("completions", "makespan")
SOLVER = 1e-6


def nearly(seed: int, spread: float) -> Problem:
    """A problem in which each task is a family of its own, with rates that differ a little from its like."""
    dice = random.Random(seed)
    problem = draw(seed, packed=False)
    families, options = [], []
    for family in problem.families:
        for member in family.members:
            families.append(Family(name=member.task, members=(member,)))
            for option in problem.options:
                if option.families == (family.name,):
                    slower = option.step_seconds[0] * dice.uniform(1, 1 + spread)
                    options.append(dataclasses.replace(option, families=(member.task,), step_seconds=(slower,)))
    return dataclasses.replace(problem, families=tuple(families), options=tuple(options))


def objective(name: str, problem: Problem, allocation: Allocation) -> float:
    """What the true rates of these shares come to."""
    arrays = columns(problem)
    members = [group[0] for group in arrays.members]
    rates = np.array([rates_by_task(allocation)[member.task] for member in members])
    if name in STEPS:
        per = rates / np.array([member.steps for member in members])
        return float(per.min() if name == "makespan" else per.sum())
    if name == "spend":
        worths = worth_of_money(arrays)
        worth = {(arrays.problem.options[o]): w for o, w in zip(arrays.options.tolist(), worths.tolist(), strict=True)}
        return sum(worth[share.option] * share.share for share in allocation.shares)
    parts = rates / arrays.references()
    if name == "throughput":
        return float(parts.sum())
    return float((parts / np.array([member.weight for member in members])).min())


@pytest.mark.parametrize("name", sorted(COARSE.keys() - {"hierarchical"}))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.0, 0.01, 0.2]), error=st.sampled_from([0.01, 0.05, 0.5]))
def test_the_objective_is_no_further_from_the_optimum_than_stated(
    name: str, seed: int, spread: float, error: float
) -> None:
    problem = nearly(seed, spread)
    exact = POLICIES[name](problem)
    found = coarse(POLICIES[name], error=error, by_steps=name in STEPS)(problem)
    assert found.gap == pytest.approx(error, rel=1e-3)
    assert exact.value <= found.bound * (1 + SOLVER)
    reached = objective(name, problem, found)
    assert found.value * (1 - SOLVER) <= reached <= exact.value * (1 + SOLVER)
    assert reached >= exact.value / (1 + error) * (1 - SOLVER)


def test_nearly_equal_tasks_become_few_groups() -> None:
    seen = []

    def watched(problem: Problem) -> Allocation:
        seen.append(len(problem.families))
        return POLICIES["max_min_fairness"](problem)

    base = nearly(3, 0.0)
    first = base.families[0]
    many = [f"t{n}" for n in range(200)]
    dice = random.Random(0)
    mine = [option for option in base.options if option.families == (first.name,)]
    problem = dataclasses.replace(
        base,
        families=tuple(Family(name=n, members=(dataclasses.replace(first.members[0], task=n),)) for n in many),
        options=tuple(
            dataclasses.replace(o, families=(n,), step_seconds=(o.step_seconds[0] * dice.uniform(1, 1.005),))
            for n in many
            for o in mine
        ),
    )
    found = coarse(watched)(problem)
    assert seen[0] <= 2 ** len(mine)
    assert len(found.groups) == 200
    assert POLICIES["max_min_fairness"](problem).value <= found.bound


def test_options_together_are_refused() -> None:
    with pytest.raises(InvalidWorkload, match="must have tasks that run alone; 'large' and 'small' have an option"):
        COARSE["max_min_fairness"](example())


class TestCoarsePolicies(PolicyConformance):
    packed = False

    @pytest.fixture(params=sorted(COARSE), autouse=True)
    def chosen(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "allocate", COARSE[request.param])
