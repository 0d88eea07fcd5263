"""Technique, devices and order of every task in one optimisation, with a proven gap: the one entry, `plan`.

The same line for every objective, each stage from what the one before found:

1. **table**: the problem in numbers (`table`);
2. **bound**: a relaxation proves what no schedule can beat and says which modes to prefer (`objective_lists`,
   `relaxation`, `lagrangian`);
3. **list**: list schedules of those modes (`list_schedule`, `multifit`), good at thousands of tasks;
4. **improve**: small changes of which the good ones are kept (`improve`, `multifit`);
5. **exact**: CP-SAT improves schedules of dozens of tasks and proves that there are no better ones (`exact`);
6. **judge**: what a schedule comes to, the makespan, a mean, money, is a judge's word throughout (`judges`); tasks that
   have deadlines end by them (`deadlines`).

Gangs are modes like any other. Saturn (Nagrecha and Kumar, 2023) poses the same question over device identities with a
big-M of 1e10; here kinds and nodes have capacities instead, and nothing is large.
"""

import dataclasses
import math
from collections import defaultdict

from dovetail.planning.explanation import explain
from dovetail.planning.fitting import misfit
from dovetail.planning.problem import Problem
from dovetail.planning.schedule.bounds import lower_bound
from dovetail.planning.schedule.deadlines import keep_deadlines, least_late
from dovetail.planning.schedule.exact import close_gap
from dovetail.planning.schedule.improve import EXACT_SHARE, IMPROVE_SECONDS, IMPROVE_SHARE, improve
from dovetail.planning.schedule.judges import Incumbent, Judge
from dovetail.planning.schedule.objective_lists import bound, list_candidates, shortest
from dovetail.planning.schedule.table import Start, Table, tabulate, task_names, without_deadlines
from dovetail.vocabulary import (
    InvalidRecord,
    NoFeasiblePlan,
    Objective,
    Option,
    Placement,
    Plan,
    Rejection,
    Schedule,
    TaskId,
)
from dovetail.vocabulary.units import show_seconds

# Most problems of a dozen tasks are closed within this; the caller who has more time says so.
_WORK = 10.0
# From so many modes on `lower_bound` takes seconds, and the relaxation proves as much.
_MANY_MODES = 5_000
# The part of a schedule's length that may go into planning it, and the gap that is not worth closing.
_SHARE = 0.01
# Work for one plan in proportion at most, and at least: below, a solver is hardly loaded before its time is up.
_MOST_WORK, _LEAST_WORK = 20.0, 0.5


def plan(problem: Problem, *, work: float = _WORK) -> Plan:
    """The best schedule for the problem's objective that `work` finds, its proven bound, and why it is so.

    `work` is deterministic, about a second of one core for each unit; with zero the plan is that of lists, with the
    bound that takes no search. Raises `NoFeasiblePlan` where a task has no option that fits, where deadlines cannot be
    kept, and `InvalidRecord` where an option's seconds are no finite numbers or the objective needs something that the
    problem does not have.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> alone = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> fused = Option(families=("f", "f"), technique="fuse", kind="cpu", count=1, step_seconds=(1.1, 1.1))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> made = plan(Problem(cluster=cluster, families=(tasks,), options=(alone, fused)))
    >>> made.schedule.makespan_seconds, sorted(len(placement.tasks) for placement in made.schedule.placements)
    (11.0, [1, 2])
    """
    if not work >= 0:
        raise InvalidRecord(f"work must be a number of at least 0, got {work}; 0 gives the plan of lists.")
    problem, due = _tabulate(problem)
    _refuse_late(problem)
    objective = Objective.parse(problem.objective)
    found = _solve(problem, Judge(without_deadlines(due), objective), work)
    return _as_plan(problem, due, keep_deadlines(Judge(due, objective), found, work=work))


def plan_list(problem: Problem) -> Plan:
    """The best plan that takes no search: lists, and a few small changes to them."""
    return plan(problem, work=0.0)


def plan_in_proportion(problem: Problem) -> Plan:
    """The plan of lists where it is within a hundredth of its bound; else that of as much work as a hundredth of the
    schedule's length allows. At once where something runs, since devices that fell free would wait for it.

    A sweep of a minute is planned in hundredths of a second, one of a day by the solver.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> family = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> plan_in_proportion(Problem(cluster=cluster, families=(family,), options=(option,))).schedule.makespan_seconds
    20.0
    """
    first = plan_list(problem)
    assert first.schedule is not None
    work = min(_MOST_WORK, _SHARE * first.schedule.makespan_seconds)
    if first.gap <= _SHARE or work < _LEAST_WORK or problem.running:
        return first
    better = plan(problem, work=work)
    return better if better.gap < first.gap else first


def plan_late(problem: Problem) -> Plan:
    """Where not all deadlines can be kept, which is when `plan` raises: the plan for an early end of everything that is
    late by least in sum, found without search.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> members = Member(task="long", steps=30), Member(task="a", steps=3, deadline_seconds=2.0)
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> problem = Problem(cluster=cluster, families=(Family(name="f", members=members),), options=(option,))
    >>> [placement.tasks for placement in plan_late(problem).schedule.placements]
    [('a',), ('long',)]
    """
    problem, due = _tabulate(dataclasses.replace(problem, objective="makespan"))
    objective = Objective(name="makespan")
    found = _solve(problem, Judge(without_deadlines(due), objective), 0.0)
    return _as_plan(problem, due, least_late(Judge(due, objective), found))


def _solve(problem: Problem, judge: Judge, work: float) -> Incumbent:
    """Bound, list, improve, exact: the best by the judge, of deadlines of tasks nothing known."""
    table = judge.table
    if not table.groups:
        return Incumbent(starts=(), value=0.0, bound=0.0)
    is_makespan = judge.objective.name == "makespan"
    known = lower_bound(problem) if is_makespan and len(table.modes) <= _MANY_MODES else 0.0
    relaxed = bound(judge, known=known, work=work)
    if is_makespan:
        best = shortest(judge, relaxed, work=work)
    else:
        candidates = sorted(list_candidates(judge, relaxed, work=work), key=judge.value)
        # The best two: small changes lead to other places from each.
        seconds = IMPROVE_SECONDS + IMPROVE_SHARE * work
        best = judge.best([improve(judge, each, seconds=seconds) for each in candidates[:2]])
    return close_gap(judge, judge.incumbent(best, bound=relaxed.bound), work=EXACT_SHARE * work)


def _tabulate(problem: Problem) -> tuple[Problem, Table]:
    """The problem with the options that fit, and its table."""
    Objective.parse(problem.objective)
    _refuse_nowhere(problem)
    problem = _fitting(problem)
    return problem, tabulate(problem)


def _as_plan(problem: Problem, table: Table, found: Incumbent) -> Plan:
    ordered = sorted(found.starts, key=lambda each: (each.start_seconds, each.devices))
    named = zip(ordered, task_names(table, ordered), strict=True)
    schedule = Schedule(placements=tuple(_placement(table, each, tasks) for each, tasks in named))
    explanation, objective = explain(problem, schedule), Objective.parse(problem.objective)
    if objective.name == "makespan":
        bound_seconds = min(found.bound, schedule.makespan_seconds)
        rejections = problem.rejections
        return Plan(schedule=schedule, bound_seconds=bound_seconds, rejections=rejections, explanation=explanation)
    return Plan(
        schedule=schedule,
        rejections=problem.rejections,
        explanation=explanation,
        objective=str(objective),
        value=found.value,
        bound=found.bound,
    )


def _placement(table: Table, start: Start, tasks: tuple[TaskId, ...]) -> Placement:
    mode = table.modes[start.mode]
    return Placement(
        tasks=tasks,
        steps=tuple(table.groups[group].steps for group in mode.groups),
        option=mode.option,
        devices=tuple(table.cluster.devices[device].name for device in start.devices),
        start_seconds=start.start_seconds,
        duration_seconds=mode.seconds,
    )


def _fitting(problem: Problem) -> Problem:
    """The problem with the options that an empty node could hold, and the others among its rejections."""
    fits: dict[tuple[object, ...], bool] = {}
    kept: list[Option] = []
    rejected: list[Rejection] = []
    for option in problem.options:
        # Options of many families are often alike in what they need; asking once for each is a hundred times faster.
        width = (option.kind, option.count, option.nodes, option.link_bytes_per_second)
        needs = (*width, option.device_bytes, option.host_bytes, option.disk_bytes, option.cores)
        if needs not in fits:
            fits[needs] = misfit(option, problem.cluster) is None
        reason = None if fits[needs] else misfit(option, problem.cluster)
        if reason is None:
            kept.append(option)
        else:
            rejected.append(reason)
    return dataclasses.replace(problem, options=tuple(kept), rejections=(*problem.rejections, *rejected))


def _refuse_nowhere(problem: Problem) -> None:
    tasks = sum(member.steps > 0 for family in problem.families for member in family.members)
    if tasks and not problem.cluster.devices:
        raise NoFeasiblePlan(
            f"a cluster must have at least one device to place {tasks} tasks on, found none. "
            "Name some, as in '8xa100+4xv100', or leave it to be detected."
        )


def _refuse_late(problem: Problem) -> None:
    """Deadlines of tasks that no option meets even on an idle cluster."""
    fastest: dict[str, list[Option]] = defaultdict(list)
    for option in problem.options:
        for name in option.families:
            fastest[name].append(option)
    lines = []
    for family in problem.families:
        for member in family.members:
            if member.steps > 0 and member.deadline_seconds != math.inf:
                # A member's own part, whoever else is in the gang.
                least = min(
                    option.start_seconds + seconds * member.steps
                    for option in fastest[family.name]
                    for name, seconds in zip(option.families, option.step_seconds, strict=True)
                    if name == family.name
                )
                if not least <= member.deadline_seconds:
                    ahead, far = member.deadline_seconds > 0, show_seconds(abs(member.deadline_seconds))
                    due = f"is due in {far}" if ahead else f"was due {far} ago"
                    lines.append(f"- {member.task!r} {due}; its fastest option takes {show_seconds(least)}")
    if lines:
        raise NoFeasiblePlan(
            "every task must have an option that ends by its deadline; these have none:\n" + "\n".join(lines) + "\n"
            "Give later deadlines, fewer steps or faster devices."
        )
