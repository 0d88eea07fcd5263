"""Tasks with deadlines of their own: nothing may end late, and of what is in time the best by the objective.

The best schedule without deadlines is often in time, and its bound holds with them. Where it is late: lists by
deadline, then small changes that lessen the lateness, then a packing in which nothing starts too late (`exact`), which
also proves that there is none. From the first that is in time on, small changes and packings as without.
"""

from collections.abc import Sequence

from dovetail.planning.schedule.exact import ACTIVITIES, READING_WORK, close_gap, serial_seconds
from dovetail.planning.schedule.improve import IMPROVE_SECONDS, IMPROVE_SHARE, improve, improve_order
from dovetail.planning.schedule.judges import Incumbent, Judge
from dovetail.planning.schedule.list_schedule import frugal_modes, list_schedules
from dovetail.planning.schedule.packing_model import PackingModel
from dovetail.planning.schedule.table import Start, Table, makespan, task_names
from dovetail.vocabulary import NoFeasiblePlan
from dovetail.vocabulary.units import show_seconds

_CLOCKS = (1 << 8, 1 << 10, 1 << 12)
# As many small changes, of lists as long, as for other objectives.
_TRIED_ITEMS, _MOST_TRIES, _FEW = 5_000, 2_000, 200
# So many late tasks are named.
_SHOWN = 3


def keep_deadlines(judge: Judge, found: Incumbent, *, work: float) -> Incumbent:
    """What was found without deadlines where that is in time, else the best that `work` finds that is; raises
    `NoFeasiblePlan` where none is found, and says whether there is none."""
    if not judge.is_due or not judge.late_seconds(found.starts):
        return found
    starts = _least_late(judge, found.starts)
    if judge.late_seconds(starts):
        starts = _packed(judge, starts, max(work, 1.0))
    starts = improve(judge, starts, seconds=IMPROVE_SECONDS + IMPROVE_SHARE * work)
    return close_gap(judge, judge.incumbent(starts, bound=found.bound), work=work)


def least_late(judge: Judge, found: Incumbent) -> Incumbent:
    """Where not all deadlines can be kept: the shortest schedule found that is late by least in sum."""
    if not judge.late_seconds(found.starts):
        return found
    starts = tuple(_least_late(judge, found.starts))
    return Incumbent(starts=starts, value=makespan(judge.table, starts), bound=found.bound)


def _least_late(judge: Judge, starts: Sequence[Start]) -> Sequence[Start]:
    """Lists with the earliest deadline first, of the modes that were chosen, of frugal and of fast ones; then small
    changes, until nothing is late."""
    table = judge.table
    chosen = [each.mode for each in sorted(starts, key=lambda each: (each.start_seconds, each.devices))]
    lists = [_by_deadline(table, order) for order in (chosen, frugal_modes(table))]
    lists.append(_by_deadline(table, _fastest(table, chosen)))
    order = min(lists, key=lambda each: _lateness(judge, each))
    if len(order) <= _FEW:
        tries = min(_MOST_TRIES, _TRIED_ITEMS // len(order))
        order = improve_order(table, order, changes=tries, enough=0.0, measure=lambda other: _lateness(judge, other))
    return min(list_schedules(table, order), key=judge.late_seconds)


def _lateness(judge: Judge, order: Sequence[int]) -> float:
    return min(judge.late_seconds(each) for each in list_schedules(judge.table, order))


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


def _packed(judge: Judge, starts: Sequence[Start], work: float) -> Sequence[Start]:
    """A schedule in time from a packing; the refusal where there is none, or where none was found."""
    horizon, share = serial_seconds(judge), work / len(_CLOCKS)
    if judge.objective.name == "spend":
        horizon = min(horizon, judge.objective.deadline_seconds)
    for ticks in _CLOCKS:
        for round_up in (False, True):
            model = PackingModel(judge.table, horizon / ticks, round_up=round_up)
            if model.size > ACTIVITIES or work <= 0:
                raise _refusal(judge, starts, "none was found that does")
            # Rounded up, things take longer than they do; rounded down, some that are brief do.
            found = model.ask(2 * horizon if round_up else horizon + model.slack_seconds, starts, share)
            work -= found.work + READING_WORK * (model.size + 25)
            if found.starts is not None:
                decoded = model.decode(found.starts)
                if not judge.late_seconds(decoded):
                    return decoded
            elif found.is_none and not round_up and model.is_whole:
                raise _refusal(judge, starts, "no schedule does")
    raise _refusal(judge, starts, "none was found that does")


def _refusal(judge: Judge, starts: Sequence[Start], proof: str) -> NoFeasiblePlan:
    table, late = judge.table, []
    for each, tasks in zip(starts, task_names(table, starts), strict=True):
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
