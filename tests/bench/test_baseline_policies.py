"""The baselines after AlloX and Gandiva keep the laws of policies, and AlloX has the least mean completion."""

import dataclasses
import itertools
import random

import pytest
from baseline_policies import allox, gandiva

from dovetail.planning.problem import Problem
from dovetail.planning.share.policies import example
from dovetail.testing.policies import PolicyConformance
from dovetail.vocabulary import InvalidWorkload, NoFeasiblePlan


class TestAllox(PolicyConformance):
    widest = 1

    def allocate(self, problem: Problem):
        return allox(problem)


class TestGandiva(PolicyConformance):
    def allocate(self, problem: Problem):
        return gandiva(problem)


def test_gandiva_pairs_tasks_where_there_are_more_than_devices() -> None:
    assert sum(len(share.groups) for share in gandiva(example()).shares) >= 3


def test_allox_serves_the_heads_of_the_queues() -> None:
    served = allox(example())
    found = [(share.option.kind, served.groups[share.groups[0]]) for share in served.shares]
    assert found == [("fast", ("b",)), ("slow", ("c",))]


@pytest.mark.parametrize("limit", [0.0, 0.2])
def test_a_limit_on_spending_that_pays_for_nobody(limit: float) -> None:
    with pytest.raises(NoFeasiblePlan, match=r"at least 0\.5 an hour"):
        allox(dataclasses.replace(example(), spend_limit_per_hour=limit))


def test_allox_serves_tasks_of_one_device_only() -> None:
    problem = example()
    wide = tuple(
        dataclasses.replace(o, count=2) if o.families == ("small",) and o.kind == "slow" else o
        for o in problem.options
        if o.families != ("small",) or o.kind == "slow"
    )
    with pytest.raises(InvalidWorkload, match="must have tasks that run on one device, 'c' does not"):
        allox(dataclasses.replace(problem, options=wide))


def test_allox_has_the_least_mean_completion() -> None:
    dice = random.Random(0)
    for _ in range(5):
        problem = small_queue(dice)
        best = min(mean_of(order, problem) for order in orders(problem))
        served = allox(problem)
        firsts = {(task, share.option.kind) for share in served.shares for task in served.groups[share.groups[0]]}
        assert any(mean_of(order, problem) <= best * (1 + 1e-9) and heads(order) <= firsts for order in orders(problem))


def small_queue(dice: random.Random) -> Problem:
    base = example()
    options = tuple(
        dataclasses.replace(o, step_seconds=(dice.uniform(0.2, 2.0),)) for o in base.options if len(o.families) == 1
    )
    cluster = dataclasses.replace(base.cluster, devices=base.cluster.devices[:2])
    return dataclasses.replace(base, options=options, cluster=cluster)


def orders(problem: Problem) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    tasks = [member.task for family in problem.families for member in family.members]
    return [(order[:cut], order[cut:]) for order in itertools.permutations(tasks) for cut in range(len(tasks) + 1)]


def heads(order: tuple[tuple[str, ...], tuple[str, ...]]) -> set[tuple[str, str]]:
    return {(queue[0], kind) for queue, kind in zip(order, ("fast", "slow"), strict=True) if queue}


def mean_of(order: tuple[tuple[str, ...], tuple[str, ...]], problem: Problem) -> float:
    total = 0.0
    for queue, kind in zip(order, ("fast", "slow"), strict=True):
        now = 0.0
        for task in queue:
            family = next(f for f in problem.families if task in [m.task for m in f.members])
            steps = next(m.steps for m in family.members if m.task == task)
            option = next(o for o in problem.options if o.kind == kind and o.families == (family.name,))
            now += steps * option.step_seconds[0]
            total += now
    return total
