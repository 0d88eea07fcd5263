"""Technique, devices and order of every task in one optimisation, with a proven gap.

Three stages, each from what the one before found: a relaxation (`relaxation`; `rents`, `earliest` for objectives that
read when tasks end), which proves a bound and says which modes to prefer; list schedules and small changes (`fitting`,
`search`), good at thousands of tasks; packing (`exact`, `goals`), which improves schedules of dozens of tasks and
proves that there are no better ones. Gangs are modes like any other (`modes`). Tasks that have deadlines end by them
(`deadlines`).

Saturn (Nagrecha and Kumar, 2023) poses the same question over device identities with a big-M of 1e10; here kinds
and nodes have capacities instead, and nothing is large.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator

from dovetail.planning.explanation import explain
from dovetail.planning.fitting import misfit
from dovetail.planning.problem import Problem
from dovetail.planning.schedule.bound import lower_bound
from dovetail.planning.schedule.joint.aims import Aimed, aim
from dovetail.planning.schedule.joint.deadlines import keep, least_late, without
from dovetail.planning.schedule.joint.exact import PRECISION, Searched, narrow
from dovetail.planning.schedule.joint.modes import Table, tabulate
from dovetail.planning.schedule.joint.packing import Begun
from dovetail.planning.schedule.joint.relaxation import relax, relax_by_prices
from dovetail.planning.schedule.joint.search import first_fit, heuristic, makespan, names
from dovetail.vocabulary import InvalidRecord, NoFeasiblePlan, Objective, Option, Placement, Plan, Rejection, Schedule
from dovetail.vocabulary.units import show_seconds

# Most problems of a dozen tasks are closed within this; the caller who has more time says so.
_WORK = 10.0
# From so many modes on `lower_bound` takes seconds, and the relaxation proves as much.
_MANY_MODES = 5_000


def plan(problem: Problem, *, work: float = _WORK) -> Plan:
    """The best schedule for the problem's objective that `work` finds, its proven bound, and why it is so.

    `work` is deterministic solver work, about a second of one core for each unit; with zero the plan is
    the heuristic's, with the bound that takes no search. Raises `NoFeasiblePlan` where a task has no option that
    fits, where deadlines cannot be kept, and `InvalidRecord` where an option's seconds are no finite numbers or the
    objective needs something that the problem does not have.

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
    objective = Objective.parse(problem.objective)
    _refuse_nowhere(problem)
    problem = _fitting(problem)
    due = tabulate(problem)
    table = without(due)
    _refuse_late(problem)
    if objective.name != "makespan":
        return _aimed(problem, due, objective, work)
    return _shortest(problem, table, keep(due, objective, _packed(problem, table, work), work=work))


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
    _refuse_nowhere(problem)
    problem = _fitting(dataclasses.replace(problem, objective="makespan"))
    due = tabulate(problem)
    table = without(due)
    return _shortest(problem, table, least_late(due, _packed(problem, table, 0.0)))


def _packed(problem: Problem, table: Table, work: float) -> Aimed:
    """The shortest schedule that `work` finds."""
    found = _at_once(table) if work == 0 and len(table.modes) > _MANY_MODES else None
    if found is None:
        known = lower_bound(problem) if len(table.modes) <= _MANY_MODES else 0.0
        relaxed = relax(table, low_seconds=known)
        begun = heuristic(table, relaxed, work=work)
        found = narrow(table, begun, bound_seconds=relaxed.bound_seconds, work=work)
    return Aimed(begun=found.begun, value=makespan(table, found.begun), bound=found.bound_seconds)


def _shortest(problem: Problem, table: Table, kept: Aimed) -> Plan:
    schedule = _schedule(table, kept.begun)
    return Plan(
        schedule=schedule,
        bound_seconds=min(kept.bound, schedule.makespan_seconds),
        rejections=problem.rejections,
        explanation=explain(problem, schedule),
    )


def plans(problem: Problem, *, work: float = _WORK) -> Iterator[Plan]:
    """A first plan at once, within a second for thousands of tasks, and then each that is better or proven to be closer
    to the best; the last is `plan`'s. For callers that start with the first and go on to improve it beside.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Problem(cluster=Cluster(kinds=(), nodes=(), devices=()), families=(), options=())
    >>> len(list(plans(nothing)))
    1
    """
    best = plan(problem, work=0.0)
    yield best
    for share in (1 / 8, 1.0):
        if best.gap <= PRECISION or work <= 0:
            return
        found = plan(problem, work=share * work)
        if found.gap < best.gap:
            best = found
            yield best


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


def _aimed(problem: Problem, table: Table, objective: Objective, work: float) -> Plan:
    found = keep(table, objective, aim(without(table), objective, work=work), work=work)
    schedule = _schedule(table, found.begun)
    return Plan(
        schedule=schedule,
        rejections=problem.rejections,
        explanation=explain(problem, schedule),
        objective=str(objective),
        value=found.value,
        bound=found.bound,
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
