"""Technique, devices and order of every task in one optimisation: the shortest schedule, with a proven gap.

Three stages, each from what the one before found: a relaxation (`relaxation`), which proves a bound and says which
modes to prefer; list schedules and small changes (`fitting`, `search`), good at thousands of tasks; packing at a target
horizon (`exact`), which shortens schedules of dozens of tasks and proves that they cannot be shorter. Gangs
are modes like any other (`modes`).

Saturn (Nagrecha and Kumar, 2023) poses the same question over device identities with a big-M of 1e10; here kinds
and nodes have capacities instead, and nothing is large.
"""

import dataclasses

from dovetail.plan.bound import lower_bound
from dovetail.plan.candidates import misfit
from dovetail.plan.explain import explain
from dovetail.plan.joint.exact import Searched, narrow
from dovetail.plan.joint.modes import Table, tabulate
from dovetail.plan.joint.packing import Begun
from dovetail.plan.joint.relaxation import relax, relax_by_prices
from dovetail.plan.joint.search import first_fit, heuristic, names
from dovetail.plan.problem import Problem
from dovetail.vocabulary import InvalidRecord, Option, Placement, Plan, Rejection, Schedule

# Most problems of a dozen tasks are closed within this; the caller who has more time says so.
_WORK = 10.0
# From so many modes on `lower_bound` takes seconds, and the relaxation proves as much.
_MANY_MODES = 5_000


def plan(problem: Problem, *, work: float = _WORK) -> Plan:
    """The shortest schedule that `work` finds, its proven bound, and why it is so.

    `work` is deterministic solver work, about a second of one core for each unit; with zero the plan is
    the heuristic's, with the bound that takes no search. Raises `NoFeasiblePlan` where a task has no option that
    fits, and `InvalidRecord` where an option's seconds are no finite numbers.

    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member
    >>> alone = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> fused = Option(families=("f", "f"), technique="fuse", kind="cpu", count=1, step_seconds=(1.1, 1.1))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> made = plan(Problem(cluster=cluster, families=(tasks,), options=(alone, fused)))
    >>> made.schedule.makespan_seconds, sorted(placement.tasks for placement in made.schedule.placements)
    (11.0, [('a', 'b'), ('c',)])
    """
    if not work >= 0:
        raise InvalidRecord(f"work must be a number of at least 0, got {work}; 0 gives the heuristic's plan.")
    problem = _fitting(problem)
    table = tabulate(problem)
    found = _at_once(table) if work == 0 and len(table.modes) > _MANY_MODES else None
    if found is None:
        known = lower_bound(problem) if len(table.modes) <= _MANY_MODES else 0.0
        relaxed = relax(table, low_seconds=known)
        begun = heuristic(table, relaxed, work=work)
        found = narrow(table, begun, bound_seconds=relaxed.bound_seconds, work=work)
    schedule = _schedule(table, found.begun)
    return Plan(
        schedule=schedule,
        bound_seconds=min(found.bound_seconds, schedule.makespan_seconds),
        rejections=problem.rejections,
        explanation=explain(problem, schedule),
    )


def _at_once(table: Table) -> Searched | None:
    """A plan to start with for thousands of tasks, within a second; None where something runs or can run short."""
    if table.running:
        return None
    bound_seconds = relax_by_prices(table).bound_seconds
    begun = first_fit(table, low_seconds=bound_seconds)
    return None if begun is None else Searched(begun=begun, bound_seconds=bound_seconds)


def _fitting(problem: Problem) -> Problem:
    """The problem with the options that an empty node could hold, and the others among its rejections."""
    fits: dict[tuple[object, ...], bool] = {}
    kept: list[Option] = []
    rejected: list[Rejection] = []
    for option in problem.options:
        # Options of many families are often alike in what they need; asking once for each is a hundred times faster.
        needs = (option.kind, option.count, option.device_bytes, option.host_bytes, option.disk_bytes, option.cores)
        if needs not in fits:
            fits[needs] = misfit(option, problem.cluster) is None
        reason = None if fits[needs] else misfit(option, problem.cluster)
        if reason is None:
            kept.append(option)
        else:
            rejected.append(reason)
    return dataclasses.replace(problem, options=tuple(kept), rejections=(*problem.rejections, *rejected))


def _schedule(table: Table, begun: tuple[Begun, ...]) -> Schedule:
    ordered = sorted(begun, key=lambda each: (each.start_seconds, each.devices))
    return Schedule(
        placements=tuple(
            _placement(table, each, tasks) for each, tasks in zip(ordered, names(table, ordered), strict=True)
        )
    )


def _placement(table: Table, begun: Begun, tasks: tuple[str, ...]) -> Placement:
    mode = table.modes[begun.mode]
    return Placement(
        tasks=tasks,
        steps=tuple(table.groups[group].steps for group in mode.groups),
        option=mode.option,
        devices=tuple(table.cluster.devices[device].name for device in begun.devices),
        start_seconds=begun.start_seconds,
        duration_seconds=mode.seconds,
    )
