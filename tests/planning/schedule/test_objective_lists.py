"""Every objective of the planner: brute force agrees, the laws hold, and what cannot be is refused in words."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning import Problem, check, plan
from dovetail.vocabulary import Cluster, Device, InvalidRecord, InvalidWorkload, Kind, NoFeasiblePlan, Plan

from ..brute_force import least_value, shortest_makespan
from ..problems import CPU, family, option, placement, problems, scaled
from .test_plan import drawn, gang, placed, schedule_of

PRECISION = 2e-3
OBJECTIVES = ["mean", "weighted", "first:2", "target:chance=0.3", "spend"]


def valued(objective: str, problem: Problem, ends: list[tuple[float, float, float]]) -> float:
    """What the ends, weights and spends of tasks come to, written down once more."""
    name, _, rest = objective.partition(":")
    if name in ("mean", "weighted"):
        weights = [weight if name == "weighted" else 1.0 for _, weight, _ in ends]
        return sum(w * end for w, (end, _, _) in zip(weights, ends, strict=True)) / sum(weights)
    if name == "spend":
        late = max(end for end, _, _ in ends) > float(rest.removeprefix("deadline=").removesuffix("s")) * (1 + 1e-9)
        return math.inf if late else sum(spend for _, _, spend in ends)
    running = [each.end_seconds for each in problem.running for _ in each.tasks]
    known = sorted([*running, *(end for end, _, _ in ends)])
    if name == "first":
        return known[int(rest) - 1]
    chance, value, open_ = float(rest.removeprefix("chance=")), 0.0, 1.0
    for number, end in enumerate(known):
        value += open_ * (chance if number < len(known) - 1 else 1.0) * end
        open_ *= 1 - chance
    return value


def priced(problem: Problem) -> Problem:
    """With a price for each kind, and weights that differ."""
    kinds = tuple(dataclasses.replace(kind, price_per_hour=3.0 - n) for n, kind in enumerate(problem.cluster.kinds))
    families = tuple(
        dataclasses.replace(
            each, members=tuple(dataclasses.replace(m, weight=1.0 + (m.steps % 3)) for m in each.members)
        )
        for each in problem.families
    )
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, kinds=kinds), families=families)


def aimed(problem: Problem, name: str) -> Problem:
    """The problem with this objective; a deadline a third above the shortest, results that there are."""
    if name == "spend":
        name = f"spend:deadline={1.3 * shortest_makespan(problem) + 0.1}s"
    tasks = sum(len(each.members) for each in problem.families) + len(problem.running)
    return dataclasses.replace(problem, objective="first:1" if name == "first:2" and tasks < 2 else name)


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(problem=problems())
def test_brute_force_agrees_and_every_plan_passes_the_check(name: str, problem: Problem) -> None:
    problem = aimed(priced(problem), name)
    made = plan(problem, work=3.0)
    check(schedule_of(made), problem.cluster, running=problem.running)
    assert placed(made) == sorted(member.task for each in problem.families for member in each.members)
    best = least_value(
        problem, lambda ends: valued(problem.objective, problem, ends), at_most=made.value * (1 + 1e-9) + 1e-12
    )
    assert made.value <= best * (1 + PRECISION)
    assert made.bound <= best * (1 + 1e-9)
    assert made.gap >= 0


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=4, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_the_order_in_which_a_problem_is_written_changes_nothing(name: str, problem: Problem, seed: int) -> None:
    problem, shuffle = aimed(priced(problem), name), random.Random(seed)
    families = tuple(shuffle.sample(problem.families, len(problem.families)))
    options = tuple(shuffle.sample(problem.options, len(problem.options)))
    other = dataclasses.replace(problem, families=families, options=options)
    assert plan(other, work=1.0).value == plan(problem, work=1.0).value


@pytest.mark.parametrize("name", ["mean", "weighted", "first:2", "target:chance=0.3"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(problem=problems())
def test_doubling_all_times_doubles_the_value(name: str, problem: Problem) -> None:
    problem = aimed(priced(problem), name)
    doubled = plan(scaled(problem, 2.0), work=3.0).value
    assert doubled == pytest.approx(2 * plan(problem, work=3.0).value, rel=PRECISION)


@pytest.mark.parametrize("name", ["mean", "first:2", "target:chance=0.3", "spend:deadline=2000s"])
def test_a_device_more_worsens_neither_bound_nor_value(name: str) -> None:
    fewer, more = (dataclasses.replace(priced(drawn(4, seed=1, devices=devices)), objective=name) for devices in (4, 5))
    before, after = plan(fewer, work=3.0), plan(more, work=5.0)
    assert before.gap <= PRECISION
    assert after.bound <= before.value * (1 + PRECISION)
    assert after.value <= before.value * (1 + PRECISION)


@pytest.mark.parametrize("name", ["mean", "first:5", "target:chance=0.2", "spend:deadline=2200s"])
def test_a_hundred_tasks_have_a_plan_with_a_bound(name: str) -> None:
    problem = dataclasses.replace(priced(drawn(100, seed=0, nodes=8, devices=8)), objective=name)
    made = plan(problem, work=0.0)
    check(schedule_of(made), problem.cluster)
    assert len(placed(made)) == 100
    assert 0 < made.bound <= made.value < math.inf
    most = {"mean": 0.1, "first:5": 0.05, "spend:deadline=2200s": 0.02}
    assert made.gap <= most.get(name, math.inf)


def test_short_tasks_come_first_where_the_mean_counts() -> None:
    problem = Problem(
        cluster=Cluster.uniform(CPU), families=(family(long=30, short=1),), options=(option(),), objective="mean"
    )
    made = plan(problem)
    assert [each.tasks for each in schedule_of(made).placements] == [("short",), ("long",)]
    assert made.value == pytest.approx((1 + 31) / 2)
    assert made.gap <= PRECISION


def test_heavy_tasks_come_first_where_weights_count() -> None:
    members = tuple(dataclasses.replace(m, weight=w) for m, w in zip(family(a=10, b=10).members, (1, 5), strict=True))
    tasks = dataclasses.replace(family(), members=members)
    made = plan(
        Problem(cluster=Cluster.uniform(CPU), families=(tasks,), options=(option(),), objective="weighted"), work=1.0
    )
    assert [each.tasks for each in schedule_of(made).placements] == [("b",), ("a",)]
    assert made.value == pytest.approx((10 * 5 + 20) / 6)


def test_the_first_results_get_all_devices_where_only_they_count() -> None:
    problem = Problem(
        cluster=Cluster.uniform(CPU, devices_per_node=4),
        families=(family("f", a=10, b=10), family("g", c=100)),
        options=(option(1), option(4, seconds=0.5), option(1, family="g")),
        objective="first:1",
    )
    made = plan(problem)
    assert made.value == pytest.approx(5.0)
    assert len(placed(made)) == 3


def test_money_is_saved_as_far_as_the_deadline_allows() -> None:
    kinds = (
        Kind(name="fast", processor="cuda", price_per_hour=4.0),
        Kind(name="slow", processor="cuda", price_per_hour=1.0),
    )
    cluster = dataclasses.replace(
        Cluster.uniform(kinds[0]), kinds=kinds, devices=(device("fast", 0), device("slow", 1))
    )
    offered = (option(kind="fast", seconds=1.0), option(kind="slow", seconds=2.0))
    problem = Problem(cluster=cluster, families=(family(a=1800, b=1800),), options=offered)
    made = {hours: plan(dataclasses.replace(problem, objective=f"spend:deadline={hours}h")) for hours in (2, 1)}
    assert {hours: round(each.value, 6) for hours, each in made.items()} == {2: 2.0, 1: 3.0}
    assert "2 spent" in made[1].explanation[0]
    with pytest.raises(
        NoFeasiblePlan, match=r"deadline of 50 min 0 s, and no schedule does: the shortest found takes 1 h"
    ):
        plan(dataclasses.replace(problem, objective="spend:deadline=50min"))


def device(kind: str, index: int) -> Device:
    return Device(name=f"n0:{index}", kind=kind, node="n0", index=index)


def test_members_of_a_gang_end_one_by_one() -> None:
    problem = Problem(
        cluster=Cluster.uniform(CPU),
        families=(family(a=10, b=4),),
        options=(option(), gang("f", "f", seconds=1.0)),
        objective="mean",
    )
    made = plan(problem)
    assert made.value == pytest.approx(7.0)
    assert made.gap <= PRECISION


def test_what_runs_counts_among_the_first_results() -> None:
    under_way = placement("old", start=-10.0, seconds=17.0)
    problem = Problem(cluster=Cluster.uniform(CPU), families=(family(a=10),), options=(option(),), running=(under_way,))
    assert plan(dataclasses.replace(problem, objective="first:1")).value == pytest.approx(7.0)
    assert plan(dataclasses.replace(problem, objective="first:2")).value == pytest.approx(17.0)


@pytest.mark.parametrize("name", ["mean", "first:3", "spend:deadline=9h"])
def test_nothing_to_do_comes_to_nothing(name: str) -> None:
    made = plan(Problem(cluster=Cluster.uniform(CPU), families=(), options=(), objective=name))
    assert (made.schedule.placements, made.value, made.gap) == ((), 0.0, 0.0)


@pytest.mark.parametrize(
    ("objective", "error", "words"),
    [
        ("spend:deadline=9h", InvalidRecord, "must have a price for each kind, found none for 'cpu'"),
        ("first:9", InvalidWorkload, "no more results than there are tasks, found 2"),
        ("soonest", InvalidRecord, "objective must be one of"),
        ("spend:deadline=0s", InvalidRecord, "a deadline later than now"),
    ],
)
def test_what_an_objective_needs_is_said(objective: str, error: type[Exception], words: str) -> None:
    tasks = (family(a=1, b=2),)
    with pytest.raises(error, match=words):
        plan(Problem(cluster=Cluster.uniform(CPU), families=tasks, options=(option(),), objective=objective))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_that_cannot_be_are_refused(weight: float) -> None:
    tasks = dataclasses.replace(family(), members=(dataclasses.replace(family(a=1).members[0], weight=weight),))
    with pytest.raises(InvalidRecord, match="weight"):
        plan(Problem(cluster=Cluster.uniform(CPU), families=(tasks,), options=(option(),), objective="weighted"))


def test_a_problem_of_half_a_dozen_says_why_with_numbers() -> None:
    made: Plan = plan(dataclasses.replace(drawn(6, seed=0), objective="mean"), work=0.0)
    assert len(made.explanation) == 6
    assert str(made).splitlines()[-7].startswith("mean ")
