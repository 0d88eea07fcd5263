"""Optima: against brute force on up to three tasks, against every task on its own, and by prices against simplex."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from dovetail.planning.problem import Problem
from dovetail.planning.share import levels
from dovetail.planning.share.columns import columns
from dovetail.planning.share.policies import POLICIES, example
from dovetail.planning.share.policies.spend import worth_of_money
from dovetail.testing.policies import draw, rates_by_task
from dovetail.vocabulary import Entity, Family
from tests.planning.share.policies.blind import blind

FINEST = 8


def fairness(rates: np.ndarray, task: dict[str, np.ndarray]) -> np.ndarray:
    return np.min(rates / (task["weight"] * task["reference"]), axis=-1)


def in_time(rates: np.ndarray, task: dict[str, np.ndarray]) -> np.ndarray:
    """What the money does, where every deadline is kept."""
    late = np.any(rates < task["steps"] / task["deadline"] * (1 - 1e-9), axis=-1)
    return np.where(late, -np.inf, task["money"])


OBJECTIVES = {
    "max_min_fairness": fairness,
    "fair_spend": fairness,
    "water_filling": fairness,
    "spend": lambda rates, task: task["money"],
    "spend_with_deadlines": in_time,
    "makespan": lambda rates, task: np.min(rates / task["steps"], axis=-1),
    "throughput": lambda rates, task: np.sum(rates / task["reference"], axis=-1),
    "completions": lambda rates, task: np.sum(rates / task["steps"], axis=-1),
    "finish_time_fairness": lambda rates, task: np.min(
        task["fair"] / (task["age"] + task["steps"] / np.maximum(rates, 1e-9)), axis=-1
    ),
}


def small(seed: int) -> Problem:
    """Up to three tasks on two kinds, alone, each of its own family."""
    problem = draw(seed, packed=False)
    tasks = apart(problem).families[:3]
    kinds = tuple(kind.name for kind in problem.cluster.kinds[:2])
    tasks = tuple(
        dataclasses.replace(
            family, members=tuple(dataclasses.replace(m, deadline_seconds=2.0 * m.steps) for m in family.members)
        )
        for family in tasks
    )
    names = {family.name for family in tasks}
    options = [o for o in apart(problem).options if o.families[0] in names and o.kind in kinds]
    cluster = dataclasses.replace(
        problem.cluster,
        kinds=problem.cluster.kinds[:2],
        devices=tuple(device for device in problem.cluster.devices if device.kind in kinds),
    )
    return dataclasses.replace(problem, cluster=cluster, families=tasks, options=tuple(options))


def apart(problem: Problem) -> Problem:
    """The same problem with every task in a family of its own: nothing is merged."""
    options = []
    families = {family.name: family.members for family in problem.families}
    for option in problem.options:
        for gang in itertools.product(*(families[name] for name in option.families)):
            names = tuple(member.task for member in gang)
            if len(set(names)) == len(names):
                options.append(dataclasses.replace(option, families=names))
    alone = tuple(Family(name=m.task, members=(m,)) for family in problem.families for m in family.members)
    return dataclasses.replace(problem, families=alone, options=tuple(options))


def brute_force(problem: Problem, objective: str) -> tuple[float, float]:
    """The best value over all shares in eighths, and the best value if every share could be an eighth more."""
    arrays = columns(problem)
    members = [group[0] for group in arrays.members]
    equal = arrays.equal_split_rates()
    task = {
        "weight": np.array([member.weight for member in members]),
        "steps": np.array([float(member.steps) for member in members]),
        "age": np.array([member.age_seconds for member in members]),
        "deadline": np.array([member.deadline_seconds for member in members]),
        "reference": arrays.references(),
    }
    isolated = np.array([member.isolated_seconds for member in members])
    task["fair"] = task["weight"] * (isolated + task["steps"] / equal)
    ways = len(arrays.options)
    grid = np.array(list(itertools.product(range(FINEST + 1), repeat=ways))) / FINEST
    for group in range(len(members)):
        grid = grid[grid[:, arrays.entry_column[arrays.entry_group == group]].sum(axis=1) <= 1]
    for kind in range(arrays.capacity.size - 1):
        mine = arrays.kinds == kind
        grid = grid[grid[:, mine] @ arrays.draws[mine] <= arrays.capacity[kind]]
    gain = np.zeros((ways, len(members)))
    gain[arrays.entry_column, arrays.entry_group] = arrays.entry_rate
    found = []
    for shares in (grid, grid + 1 / FINEST):
        task["money"] = shares @ worth_of_money(arrays)
        found.append(float(OBJECTIVES[objective](shares @ gain, task).max()))
    return found[0], found[1]


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_better_by_brute_force(objective: str, seed: int) -> None:
    problem = small(seed)
    if len(problem.options) > 5:
        problem = dataclasses.replace(problem, families=problem.families[:2])
        names = {family.name for family in problem.families}
        problem = dataclasses.replace(problem, options=tuple(o for o in problem.options if o.families[0] in names))
    value = POLICIES[objective](problem).value
    found, most = brute_force(problem, objective)
    assert value >= found * (1 - 1e-6)
    # Shares rounded down to eighths can be had, so the optimum is at most what they would be with an eighth more each.
    assert value <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    "name", ["max_min_fairness", "water_filling", "makespan", "throughput", "finish_time_fairness"]
)
@pytest.mark.parametrize("seed", range(6))
def test_merging_equal_tasks_changes_no_optimum(name: str, seed: int) -> None:
    problem = draw(seed)
    same = tuple(
        dataclasses.replace(
            family, members=tuple(dataclasses.replace(family.members[0], task=m.task) for m in family.members)
        )
        for family in problem.families
    )
    merged = dataclasses.replace(problem, families=same)
    assert POLICIES[name](merged).value == pytest.approx(POLICIES[name](apart(merged)).value, rel=1e-6)


@pytest.mark.parametrize("limit", [math.inf, 1.5, 0.01])
@pytest.mark.parametrize("seed", range(6))
def test_prices_find_what_simplex_finds(seed: int, limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dataclasses.replace(apart(draw(seed, packed=False)), spend_limit_per_hour=limit)
    exact = POLICIES["max_min_fairness"](problem)
    monkeypatch.setattr(levels, "MANY_GROUPS", 1)
    priced = POLICIES["max_min_fairness"](problem)
    assert priced.value == pytest.approx(exact.value, rel=2e-6)
    assert priced.bound >= exact.value * (1 - 1e-6)
    assert priced.gap <= 1e-6 * (1 + 1e-6)
    least = min(rates_by_task(priced)[m.task] / unit for m, unit in units(problem))
    assert least >= priced.value * (1 - 1e-6)


@pytest.mark.parametrize("name", ["makespan", "finish_time_fairness"])
@pytest.mark.parametrize("seed", range(4))
def test_prices_serve_the_other_policies_too(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = apart(draw(seed, packed=False))
    exact = POLICIES[name](problem)
    monkeypatch.setattr(levels, "MANY_GROUPS", 1)
    priced = POLICIES[name](problem)
    assert priced.value == pytest.approx(exact.value, rel=1e-4)
    assert priced.bound >= exact.value * (1 - 1e-6)


def units(problem: Problem) -> list[tuple[object, float]]:
    arrays = columns(problem)
    return [(group[0], group[0].weight * unit) for group, unit in zip(arrays.members, arrays.references(), strict=True)]


def test_water_filling_raises_those_whom_the_worst_off_do_not_hold_down() -> None:
    problem = example()
    levels_of = POLICIES["water_filling"](problem)
    least = POLICIES["max_min_fairness"](problem)
    assert levels_of.value == pytest.approx(least.value, rel=1e-6)
    for seed in range(8):
        drawn = apart(draw(seed))
        filled, fair = (
            rates_by_task(POLICIES["water_filling"](drawn)),
            rates_by_task(POLICIES["max_min_fairness"](drawn)),
        )
        first = sorted(filled[m.task] / unit for m, unit in units(drawn))
        other = sorted(fair[m.task] / unit for m, unit in units(drawn))
        # Lexicographically no less, up to what a solver calls equal.
        for mine, theirs in zip(first, other, strict=True):
            if not math.isclose(mine, theirs, rel_tol=1e-4):
                assert mine > theirs
                break


def test_an_entity_gets_its_part_however_many_tasks_it_has() -> None:
    problem = draw(3, widest=1, packed=False, alike=True)
    kind = problem.cluster.kinds[0]
    one_kind = dataclasses.replace(
        problem.cluster, kinds=(kind,), devices=tuple(d for d in problem.cluster.devices if d.kind == kind.name)[:1]
    )
    option = next(o for o in problem.options if o.kind == kind.name)
    members = [dataclasses.replace(problem.families[0].members[0], task=f"t{n}", entity="many") for n in range(3)]
    members.append(dataclasses.replace(members[0], task="single", entity="one"))
    shared = Problem(
        cluster=one_kind,
        families=(Family(name=option.families[0], members=tuple(members)),),
        options=(option,),
        entities=(Entity(name="many", weight=1.0), Entity(name="one", weight=2.0)),
    )
    rates = rates_by_task(POLICIES["hierarchical"](shared))
    assert rates["single"] == pytest.approx(2 * sum(rates[f"t{n}"] for n in range(3)), rel=1e-5)
    in_order = dataclasses.replace(shared, entities=(Entity(name="many", inside="first_come"), shared.entities[1]))
    aged = [dataclasses.replace(m, age_seconds=float(number)) for number, m in enumerate(members)]
    in_order = dataclasses.replace(in_order, families=(dataclasses.replace(in_order.families[0], members=tuple(aged)),))
    rates = rates_by_task(POLICIES["hierarchical"](in_order))
    assert rates["t0"] + rates["t1"] == pytest.approx(0.0, abs=1e-6)
    assert rates["single"] == pytest.approx(2 * rates["t2"], rel=1e-5)


def soonest_at_once(problem: Problem) -> float:
    """When the last task ends if all run at once, each with one option to its end: the best of all choices."""
    capacity = {kind.name: count for kind, count in problem.cluster.counts()}
    ways = [
        [
            (option, member.steps * option.step_seconds[0])
            for option in problem.options
            if option.families[0] == each.name
        ]
        for each in problem.families
        for member in each.members
    ]
    found = math.inf
    for chosen in itertools.product(*ways):
        used = dict.fromkeys(capacity, 0)
        for option, _ in chosen:
            used[option.kind] += option.count
        if all(used[kind] <= capacity[kind] for kind in used):
            found = min(found, max(seconds for _, seconds in chosen))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_within_a_round_nobody_takes_turns(seed: int) -> None:
    problem = small(seed)
    shares = POLICIES["makespan"](problem)
    soonest = soonest_at_once(problem)
    assert 1 / shares.value <= soonest * (1 + 1e-6)
    within = POLICIES["makespan"](
        dataclasses.replace(problem, round_seconds=10 * soonest if soonest < math.inf else 1e9)
    )
    assert within.bound == pytest.approx(shares.bound)
    if soonest < math.inf:
        assert 1 / within.value == pytest.approx(soonest)
        assert all(share.share == round(share.share) for share in within.shares)
    else:
        assert within.value == pytest.approx(shares.value)
    # Where less can be had than a round lasts, but not by all at once, turns it is.
    almost = POLICIES["makespan"](dataclasses.replace(problem, round_seconds=0.9 / shares.value))
    assert almost.value == pytest.approx(shares.value)


@pytest.mark.parametrize("name", ["first_come", "shortest_first"])
def test_who_cannot_tell_kinds_apart_does_not_learn_from_how_they_are_listed(name: str) -> None:
    for seed in range(5):
        problem = draw(seed, packed=False, widest=1)
        listed = [
            Counter(
                share.option.kind
                for share in blind(POLICIES[name])(dataclasses.replace(problem, options=options)).shares
            )
            for options in (problem.options, problem.options[::-1])
        ]
        sizes = {kind.name: count for kind, count in problem.cluster.counts()}
        for kind, size in sizes.items():
            assert abs(listed[0][kind] - listed[1][kind]) <= max(1, size // 4)


@pytest.mark.parametrize("seed", range(20))
def test_where_all_can_have_their_best_they_have_what_the_program_gives(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(seed, packed=seed % 2 == 0)
    few = tuple(dataclasses.replace(family, members=family.members[:1]) for family in problem.families[:2])
    names = {family.name for family in few}
    options = tuple(option for option in problem.options if names.issuperset(option.families))
    problem = dataclasses.replace(problem, families=few, options=options)
    found = POLICIES["max_min_fairness"](problem)
    monkeypatch.setattr(levels, "_each_its_best", lambda columns, units: None)
    solved = POLICIES["max_min_fairness"](problem)
    assert found.value == pytest.approx(solved.value, rel=1e-6)
    assert rates_by_task(found) == pytest.approx(rates_by_task(solved), rel=1e-5)
