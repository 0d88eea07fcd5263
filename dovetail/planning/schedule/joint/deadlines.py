"""Tasks with deadlines of their own: nothing may end late, and of what is in time the best by the objective.

The best schedule without deadlines is often in time, and its bound holds with them. Where it is late: lists by
deadline, then small changes that lessen the lateness, then a packing in which nothing starts too late (`exact`), which
also proves that there is none. From the first that is in time on, small changes and packings as without.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from dovetail.planning.schedule.joint.aims import Aimed, changed
from dovetail.planning.schedule.joint.exact import ACTIVITIES, READING_WORK, Question
from dovetail.planning.schedule.joint.goals import serial_seconds, settle
from dovetail.planning.schedule.joint.judging import Judge
from dovetail.planning.schedule.joint.modes import Table
from dovetail.planning.schedule.joint.packing import Begun, InTurn, as_room_is
from dovetail.planning.schedule.joint.parts import whole
from dovetail.planning.schedule.joint.search import from_amounts, improve, makespan, names
from dovetail.vocabulary import NoFeasiblePlan, Objective
from dovetail.vocabulary.units import show_seconds

_CLOCKS = (1 << 8, 1 << 10, 1 << 12)
# As many small changes, of lists as long, as for other objectives.
_TRIED_ITEMS, _MOST_TRIES, _FEW = 5_000, 2_000, 200
# So many late tasks are named.
_SHOWN = 3


def without(table: Table) -> Table:
    """The table as it would be if no task had a deadline: the same groups and modes under the same numbers.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> without(nothing) == nothing
    True
    """
    groups = tuple(dataclasses.replace(group, due_seconds=math.inf) for group in table.groups)
    return dataclasses.replace(table, groups=groups)


def keep(table: Table, objective: Objective, found: Aimed, *, work: float) -> Aimed:
    """What was found without deadlines where that is in time, else the best that `work` finds that is; raises
    `NoFeasiblePlan` where none is found, and says whether there is none.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> keep(nothing, Objective(name="makespan"), Aimed(begun=(), value=0.0, bound=0.0), work=1.0).value
    0.0
    """
    if all(group.due_seconds == math.inf for group in table.groups):
        return found
    judge = Judge(table, objective)
    if not judge.late_seconds(found.begun):
        return found
    begun = _least_late(judge, found.begun)
    if judge.late_seconds(begun):
        begun = _packed(judge, begun, max(work, 1.0))
    begun = changed(judge, begun, work)
    settled, bound = settle(judge, begun, bound=found.bound, work=work)
    best = min(begun, whole(judge, settled), key=judge.value)
    value = judge.value(best)
    return Aimed(begun=tuple(best), value=value, bound=min(max(found.bound, bound), value))


def least_late(table: Table, found: Aimed) -> Aimed:
    """Where not all deadlines can be kept: the shortest schedule found that is late by least in sum.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> least_late(nothing, Aimed(begun=(), value=0.0, bound=0.0)).value
    0.0
    """
    judge = Judge(table, Objective(name="makespan"))
    if not judge.late_seconds(found.begun):
        return found
    begun = tuple(_least_late(judge, found.begun))
    return Aimed(begun=begun, value=makespan(table, begun), bound=found.bound)


def _least_late(judge: Judge, begun: Sequence[Begun]) -> Sequence[Begun]:
    """Lists with the earliest deadline first, of the modes that were chosen, of frugal and of fast ones; then small
    changes, until nothing is late."""
    table = judge.table
    chosen = [each.mode for each in sorted(begun, key=lambda each: (each.start_seconds, each.devices))]
    lists = [_by_deadline(table, order) for order in (chosen, from_amounts(table, [0.0] * len(table.modes)))]
    lists.append(_by_deadline(table, _fastest(table, chosen)))
    order = min(lists, key=lambda each: _lateness(judge, each))
    if len(order) <= _FEW:
        tries = min(_MOST_TRIES, _TRIED_ITEMS // len(order))
        order = improve(table, order, changes=tries, enough_seconds=0.0, measure=lambda other: _lateness(judge, other))
    return min(_schedules(table, order), key=judge.late_seconds)


def _lateness(judge: Judge, order: Sequence[int]) -> float:
    return min(judge.late_seconds(each) for each in _schedules(judge.table, order))


def _schedules(table: Table, order: Sequence[int]) -> Iterator[Sequence[Begun]]:
    yield as_room_is(table, order)
    if InTurn.applies(table):
        yield InTurn(table).schedule(order)


def _by_deadline(table: Table, order: Sequence[int]) -> list[int]:
    return sorted(order, key=lambda n: min(table.groups[group].due_seconds for group in table.modes[n].groups))


def _fastest(table: Table, chosen: Sequence[int]) -> list[int]:
    """The same gangs, each in the mode that ends soonest."""
    fastest: dict[tuple[int, ...], int] = {}
    for number, mode in enumerate(table.modes):
        key = tuple(sorted(mode.groups))
        if key not in fastest or mode.seconds < table.modes[fastest[key]].seconds:
            fastest[key] = number
    return [fastest[tuple(sorted(table.modes[number].groups))] for number in chosen]


def _packed(judge: Judge, begun: Sequence[Begun], work: float) -> Sequence[Begun]:
    """A schedule in time from a packing; the refusal where there is none, or where none was found."""
    horizon, share = serial_seconds(judge), work / len(_CLOCKS)
    if judge.objective.name == "spend":
        horizon = min(horizon, judge.objective.deadline_seconds)
    for ticks in _CLOCKS:
        for round_up in (False, True):
            question = Question(judge.table, horizon / ticks, round_up=round_up)
            if question.size > ACTIVITIES or work <= 0:
                raise _refusal(judge, begun, "none was found that does")
            # Rounded up, things take longer than they do; rounded down, some that are brief do.
            found = question.ask(2 * horizon if round_up else horizon + question.slack_seconds, begun, share)
            work -= found.work + READING_WORK * (question.size + 25)
            if found.starts is not None:
                decoded = question.decode(found.starts)
                if not judge.late_seconds(decoded):
                    return decoded
            elif found.is_none and not round_up and question.is_whole:
                raise _refusal(judge, begun, "no schedule does")
    raise _refusal(judge, begun, "none was found that does")


def _refusal(judge: Judge, begun: Sequence[Begun], proof: str) -> NoFeasiblePlan:
    table, late = judge.table, []
    for each, tasks in zip(begun, names(table, begun), strict=True):
        groups = table.modes[each.mode].groups
        for task, group, end in zip(tasks, groups, judge.ends[each.mode], strict=True):
            due = table.groups[group].due_seconds
            if each.start_seconds + end > due:
                by = show_seconds(each.start_seconds + end - due)
                late.append(f"{task!r} {by} after its deadline of {show_seconds(due)}")
    more = f" and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
    return NoFeasiblePlan(
        f"all tasks must end by their deadlines, and {proof}: the best found ends {', '.join(late[:_SHOWN])}{more}. "
        "Give later deadlines, fewer steps or more devices."
    )
