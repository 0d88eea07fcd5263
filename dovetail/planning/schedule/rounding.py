"""From a relaxation's amounts to whole modes: which of them cover every task exactly once, the longest first."""

import math
from collections.abc import Sequence

from dovetail.planning.schedule.table import Mode, Table
from dovetail.planning.solver import Activity, pack
from dovetail.vocabulary import NoFeasiblePlan

_WHOLE = 1e-6


def frugal_modes(table: Table) -> list[int]:
    """Modes that cover every task with the least device-seconds for each, the longest first."""
    return round_amounts(table, [0.0] * len(table.modes))


def round_amounts(table: Table, amounts: Sequence[float]) -> list[int]:
    """Whole modes that cover every task, close to what a relaxation would take; the longest first.

    Raises `NoFeasiblePlan` where no choice of gangs covers every task exactly once.
    """
    left = table.needs
    chosen: list[int] = []
    for number, amount in enumerate(amounts):
        for _ in range(math.floor(amount + _WHOLE)):
            chosen += _taken(table.modes[number], number, left)
    parts = [(math.floor(amount + _WHOLE) - amount, number) for number, amount in enumerate(amounts)]
    for _, number in sorted(part for part in parts if part[0] < -_WHOLE):
        chosen += _taken(table.modes[number], number, left)
    chosen += _frugal(table, left)
    return by_seconds(table, _exact_cover(table) if any(left) else chosen)


def by_seconds(table: Table, order: Sequence[int]) -> list[int]:
    """These modes, the longest first."""
    return sorted(order, key=lambda n: (-table.modes[n].seconds, -table.modes[n].option.count, n))


def _taken(mode: Mode, number: int, left: list[int]) -> list[int]:
    """The mode once, if its tasks are still to be covered."""
    if len(mode.groups) == 1:
        (group,) = mode.groups
        if not left[group]:
            return []
        left[group] -= 1
        return [number]
    if any(left[group] < times for group, times in mode.covers.items()):
        return []
    for group, times in mode.covers.items():
        left[group] -= times
    return [number]


def _frugal(table: Table, left: list[int]) -> list[int]:
    """For what is not covered yet, the modes that take the least device-seconds for each task."""
    chosen: list[int] = []
    if any(left):
        areas = [mode.area / len(mode.groups) for mode in table.modes]
        for number in sorted(range(len(areas)), key=areas.__getitem__):
            while taken := _taken(table.modes[number], number, left):
                chosen += taken
    return chosen


def _exact_cover(table: Table) -> list[int]:
    """Any choice of modes that covers every task once: a packing in which everything may overlap."""
    owners, activities = copies(table, [1] * len(table.modes))
    found = pack(activities, needs=table.needs, capacities=(), horizon=1, work=10.0)
    if found.starts is None:
        raise NoFeasiblePlan(
            "every task must be covered exactly once, and no choice of the gangs that fit does; "
            "offer an option with which a task runs alone."
        )
    return [owners[number] for number in found.starts]


def copies(table: Table, ticks: Sequence[int]) -> tuple[list[int], list[Activity]]:
    """An activity for each time that each mode may be used, in a fixed order, and the mode of each."""
    owners: list[int] = []
    activities: list[Activity] = []
    for number, mode in enumerate(table.modes):
        times = min(len(table.groups[group].tasks) // each for group, each in mode.covers.items())
        for copy in range(times):
            after = len(activities) - 1 if copy else None
            activities.append(Activity(ticks=ticks[number], covers=mode.covers, draws={}, after=after))
            owners.append(number)
    return owners, activities
