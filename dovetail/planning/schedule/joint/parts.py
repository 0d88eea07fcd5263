"""Tables of some of the tasks, and whole schedules from schedules of some, for objectives that read first results."""

import dataclasses
import math
from collections.abc import Sequence

from dovetail.planning.schedule.joint.judging import Judge
from dovetail.planning.schedule.joint.modes import Table
from dovetail.planning.schedule.joint.packing import Begun, InTurn, as_room_is
from dovetail.planning.schedule.joint.search import from_amounts, list_schedule, makespan


def parts(table: Table, results: int) -> list[tuple[Table, list[int]]]:
    """The table with only so many tasks, in two choices: those of the least device-seconds, and the fastest ones."""
    found = []
    for key in ("area", "seconds"):
        least = [math.inf] * len(table.groups)
        for mode in table.modes:
            for group in mode.groups:
                least[group] = min(least[group], getattr(mode, key) / len(mode.groups))
        kept, left = [0] * len(table.groups), results
        for group in sorted(range(len(least)), key=lambda group: (least[group], group)):
            kept[group] = min(left, len(table.groups[group].tasks))
            left -= kept[group]
        found.append(_restricted(table, kept))
    # Gangs may not cover a part exactly; then the whole is the part.
    return [part for part in found if part is not None] or [(table, list(range(len(table.modes))))]


def _restricted(table: Table, kept: Sequence[int]) -> tuple[Table, list[int]] | None:
    """The table with so many tasks of each group, and the number in the whole table of each of its modes."""
    new = {group: number for number, group in enumerate(g for g, count in enumerate(kept) if count)}
    numbers = [
        number
        for number, mode in enumerate(table.modes)
        if all(times <= kept[group] for group, times in mode.covers.items())
    ]
    alone = {table.modes[number].groups[0] for number in numbers if len(table.modes[number].groups) == 1}
    if not new.keys() <= alone:
        return None
    groups = tuple(
        dataclasses.replace(table.groups[group], tasks=table.groups[group].tasks[: kept[group]]) for group in new
    )
    modes = tuple(
        dataclasses.replace(table.modes[number], groups=tuple(new[g] for g in table.modes[number].groups))
        for number in numbers
    )
    return dataclasses.replace(table, groups=groups, modes=modes), numbers


def whole(judge: Judge, begun: Sequence[Begun], numbers: Sequence[int] | None = None) -> Sequence[Begun]:
    """A schedule of some tasks and, after it on each device, of the others. `numbers` are the whole table's of the
    modes, where they are a part's."""
    table = judge.table
    placed = [dataclasses.replace(each, mode=numbers[each.mode] if numbers else each.mode) for each in begun]
    left = table.needs
    for each in placed:
        for group, times in table.modes[each.mode].covers.items():
            left[group] -= times
    rest = _restricted(table, left) if any(left) else None
    if rest is None:
        if any(left):  # only gangs cover what is left, and only all of it: as one list
            return list_schedule(table, from_amounts(table, [0.0] * len(table.modes)))
        return placed
    part, of_part = rest
    order = [of_part[number] for number in from_amounts(part, [0.0] * len(part.modes))]
    if InTurn.applies(table):
        return [*placed, *InTurn(table, after=placed).schedule(order)]
    begin = max([0.0, *judge.running_ends, makespan(table, placed)])
    later = as_room_is(dataclasses.replace(table, running=()), order)
    return [*placed, *(dataclasses.replace(each, start_seconds=begin + each.start_seconds) for each in later)]
