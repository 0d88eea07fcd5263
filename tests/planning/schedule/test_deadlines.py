"""Deadlines of tasks are kept by the planner, whatever the objective, or refused where no schedule keeps them."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning import Problem, check
from dovetail.planning.schedule.plan import plan
from dovetail.vocabulary import Cluster, Family, Member, NoFeasiblePlan, Option, Plan

from ..brute_force import shortest_makespan
from ..problems import CPU, option, problems


def due(name: str = "f", **tasks: tuple[int, float]) -> Family:
    """A family of tasks by name, with their steps and deadlines."""
    members = (Member(task=task, steps=steps, deadline_seconds=late) for task, (steps, late) in tasks.items())
    return Family(name=name, members=tuple(members))


def problem_of(*families: Family, devices: int = 1, offered: tuple[Option, ...] = (option(),), **more: str) -> Problem:
    cluster = Cluster.uniform(dataclasses.replace(CPU, price_per_hour=1.0), devices_per_node=devices)
    return Problem(cluster=cluster, families=families, options=offered, **more)


def ends(made: Plan) -> dict[str, float]:
    """When each task ends: in a gang some end before the others."""
    assert made.schedule is not None
    return {
        task: each.start_seconds + each.option.start_seconds + seconds * steps
        for each in made.schedule.placements
        for task, seconds, steps in zip(each.tasks, each.option.step_seconds, each.steps, strict=True)
    }


def with_deadlines(problem: Problem, seed: int) -> Problem:
    """Some tasks get deadlines, some of them so close that they cannot all be kept."""
    dice = random.Random(seed)
    horizon = shortest_makespan(problem)

    def dated(member: Member) -> Member:
        return dataclasses.replace(
            member, deadline_seconds=dice.choice([math.inf, dice.uniform(0.3, 1.3) * horizon + 1e-3])
        )

    families = tuple(dataclasses.replace(f, members=tuple(map(dated, f.members))) for f in problem.families)
    return dataclasses.replace(problem, families=families)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(problems(), st.integers(0, 1000))
def test_brute_force_agrees_on_what_can_be_kept_and_how_soon_all_ends(drawn: Problem, seed: int) -> None:
    problem = with_deadlines(drawn, seed)
    best = shortest_makespan(problem)
    if best == math.inf:
        with pytest.raises(NoFeasiblePlan, match="deadline"):
            plan(problem, work=2.0)
        return
    made = plan(problem, work=2.0)
    assert made.schedule is not None
    check(made.schedule, problem.cluster, running=problem.running)
    found = ends(made)
    for member in (member for each in problem.families for member in each.members if member.steps):
        assert found[member.task] <= member.deadline_seconds + 1e-5
    assert made.bound_seconds <= best * (1 + 1e-9)
    assert made.schedule.makespan_seconds <= best * (1 + 2e-3)


@pytest.mark.parametrize("objective", ["makespan", "mean", "first:1", "spend:deadline=100s", "target:chance=0.5"])
@pytest.mark.parametrize("work", [0.0, 1.0])
def test_the_task_with_a_deadline_goes_first_whatever_the_objective(objective: str, work: float) -> None:
    tasks = due(long=(30, 30.0), short=(1, math.inf), other=(2, math.inf))
    made = plan(problem_of(tasks, objective=objective), work=work)
    assert ends(made)["long"] <= 30.0


def test_a_wasteful_option_is_taken_where_only_that_is_in_time() -> None:
    offered = (option(), option(4, seconds=0.5))
    free = problem_of(due(**dict.fromkeys("abcd", (10, math.inf))), devices=4, offered=offered)
    assert plan(free).schedule.makespan_seconds == pytest.approx(10.0)
    members = (Member(task="a", steps=10, deadline_seconds=6.0), *free.families[0].members[1:])
    kept = plan(dataclasses.replace(free, families=(Family(name="f", members=members),)))
    assert ends(kept)["a"] == pytest.approx(5.0)
    assert kept.schedule.makespan_seconds == pytest.approx(15.0)


def test_deadlines_that_contradict_each_other_are_refused_with_proof() -> None:
    tasks = due(a=(10, 15.0), b=(10, 15.0), c=(1, math.inf))
    refusal = (
        r"by their deadlines, and no schedule does: the best found ends '[ab]' 5\.0 s after its deadline of 15\.0 s"
    )
    with pytest.raises(NoFeasiblePlan, match=refusal):
        plan(problem_of(tasks))


def test_many_tasks_are_in_time_by_deadline_first() -> None:
    dice = random.Random(0)
    order = dice.sample(range(400), 400)
    families = tuple(due(f"f{n}", **{f"t{n}": (10, 10.0 * (n // 8 + 1))}) for n in order)
    offered = tuple(option(family=f"f{n}") for n in order)
    made = plan(problem_of(*families, devices=8, offered=offered), work=0.0)
    assert all(end <= 10.0 * (int(task[1:]) // 8 + 1) + 1e-6 for task, end in ends(made).items())
