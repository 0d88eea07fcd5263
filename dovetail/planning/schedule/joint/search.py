"""A good schedule in a short time: modes from a relaxation or from a known schedule, a list schedule, then many small
changes of which those that do not lengthen it by much are kept.

Threshold accepting (Dueck and Scheuer 1990): the length by which a change may worsen the schedule shrinks to nothing
over the search. The number of changes is the limit, so the same problem has the same answer everywhere.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from dovetail.planning.schedule.joint.dice import Dice
from dovetail.planning.schedule.joint.fitting import Fitting
from dovetail.planning.schedule.joint.modes import Mode, Table
from dovetail.planning.schedule.joint.packing import Begun, InTurn, as_room_is
from dovetail.planning.schedule.joint.relaxation import Relaxed
from dovetail.planning.solver import Activity, pack
from dovetail.vocabulary import NoFeasiblePlan

_FIRST_THRESHOLD = 0.03
_WHOLE = 1e-6
# An item is placed in about 25 microseconds, so without work the tries take a fraction of a second, and with it no
# more than a few seconds.
_TRIED_ITEMS, _FEWEST_TRIES, _MOST_TRIES, _MOST_WORK = 8_000, 20, 800, 10.0
_STRETCHES = (1.05, 1.1, 1.25, 1.5, 2.0)
# Above so many activities small changes are too small to be seen.
_FEW = 200


def makespan(table: Table, begun: Sequence[Begun]) -> float:
    """When the last of them ends.

    >>> from dovetail.vocabulary import Cluster
    >>> makespan(Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=()), [])
    0.0
    """
    return max((each.start_seconds + table.modes[each.mode].seconds for each in begun), default=0.0)


def heuristic(table: Table, relaxed: Relaxed, *, work: float) -> tuple[Begun, ...]:
    """The best of list schedules, of small changes to them, and of fitting towards the bound."""
    if not table.groups:
        return ()
    order, low = from_amounts(table, relaxed.amounts or [0.0] * len(table.modes)), relaxed.bound_seconds
    best = list_schedule(table, order)
    scale = 1 + min(work, _MOST_WORK)
    if InTurn.applies(table):
        tries = min(_MOST_TRIES, max(_FEWEST_TRIES, int(_TRIED_ITEMS * scale) // len(order)))
        fitting = Fitting(table)
        best = min(best, fitting.finish_first(order), key=lambda begun: makespan(table, begun))
        # With work, first what would be tried without: more is then never worse.
        for changes in dict.fromkeys([min(tries, max(_FEWEST_TRIES, _TRIED_ITEMS // len(order))), tries]):
            high = makespan(table, best)
            fitted = fitting.search(order, low_seconds=low, high_seconds=high, changes=changes)
            best = fitted if fitted is not None else best
    else:
        tries = min(_MOST_TRIES, int(_TRIED_ITEMS * scale / 10) // len(order))
    if len(order) <= _FEW and makespan(table, best) > low * (1 + 1e-9):
        started = [each.mode for each in sorted(best, key=lambda each: each.start_seconds)]
        changed = list_schedule(table, improve(table, started, changes=tries, enough_seconds=low))
        best = min(best, changed, key=lambda begun: makespan(table, begun))
    return tuple(best)


def first_fit(table: Table, *, low_seconds: float) -> tuple[Begun, ...] | None:
    """A schedule in a few tenths of a second for thousands of tasks: each task where it ends first or, where that is
    far above the bound, the first that fits one of a few targets. None where memory, disk or cores can run short."""
    if not InTurn.applies(table):
        return None
    fitting, order = Fitting(table), from_amounts(table, [0.0] * len(table.modes))
    best = fitting.finish_first(order)
    for stretch in _STRETCHES:
        if makespan(table, best) <= stretch * low_seconds:
            break
        begun, failed = fitting.fit(fitting.by_area(order), target_seconds=stretch * low_seconds)
        if not failed:
            best = begun
            break
    return tuple(best)


def list_schedule(table: Table, order: Sequence[int]) -> list[Begun]:
    """The shorter of the schedules by both rules."""
    found = [as_room_is(table, order)]
    if InTurn.applies(table):
        found.append(InTurn(table).schedule(order))
    return min(found, key=lambda begun: makespan(table, begun))


def from_amounts(table: Table, amounts: Sequence[float]) -> list[int]:
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
    return _by_seconds(table, _exact_cover(table) if any(left) else chosen)


def _by_seconds(table: Table, order: Sequence[int]) -> list[int]:
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


def improve(
    table: Table,
    order: Sequence[int],
    *,
    changes: int,
    enough_seconds: float,
    measure: Callable[[Sequence[int]], float] | None = None,
) -> list[int]:
    """The best order and choice of modes that this many small changes come by, at least as good as the one given.

    `measure` is what is to be small, the makespan unless told otherwise.
    """
    if measure is None:
        measure = InTurn(table).makespan if InTurn.applies(table) else lambda o: makespan(table, as_room_is(table, o))
    moves, dice = _Moves(table), Dice()
    best = now = list(order)
    best_seconds = now_seconds = measure(now)
    for change in range(changes):
        if best_seconds <= enough_seconds:
            break
        threshold = best_seconds * _FIRST_THRESHOLD * (1 - (change + 1) / changes) ** 2
        other = moves.change(now, dice)
        seconds = measure(other)
        if seconds <= now_seconds + threshold:
            now, now_seconds = other, seconds
            if seconds < best_seconds:
                best, best_seconds = other, seconds
    return best


class _Moves:
    """Small changes of a list of modes: another place, another mode, tasks joined to a gang or a gang split."""

    def __init__(self, table: Table) -> None:
        self._groups = [tuple(sorted(mode.groups)) for mode in table.modes]
        self._by_groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, groups in enumerate(self._groups):
            self._by_groups[groups].append(number)
        self._has_gangs = any(len(groups) > 1 for groups in self._by_groups)

    def change(self, order: Sequence[int], dice: Dice) -> list[int]:
        """A copy with one change; where that is not possible, the same."""
        other, kind = list(order), dice.below(6 if self._has_gangs else 4)
        place = dice.below(len(other))
        if kind == 0:
            same = self._by_groups[self._groups[other[place]]]
            other[place] = same[dice.below(len(same))]
        elif kind == 1:
            same = self._by_groups[self._groups[other[place]]]
            number = same[dice.below(len(same))]
            del other[place]
            other.insert(dice.below(len(other) + 1), number)
        elif kind == 2:
            other.insert(dice.below(len(other)), other.pop(place))
        elif kind == 3:
            second = dice.below(len(other))
            other[place], other[second] = other[second], other[place]
        else:
            self._regroup(other, place, dice)
        return other

    def _regroup(self, order: list[int], place: int, dice: Dice) -> None:
        groups = self._groups[order[place]]
        singles = [self._by_groups.get((group,), []) for group in groups]
        if len(groups) > 1 and all(singles):
            order[place : place + 1] = [ways[dice.below(len(ways))] for ways in singles]
            return
        second = dice.below(len(order))
        joined = self._by_groups.get(tuple(sorted(groups + self._groups[order[second]])), [])
        if second != place and joined:
            order[place] = joined[dice.below(len(joined))]
            del order[second]


def names(table: Table, begun: Sequence[Begun]) -> list[tuple[str, ...]]:
    """The tasks of each, in the order given: which of equal ones goes where makes no difference."""
    used: Counter[int] = Counter()
    named = []
    for each in begun:
        tasks = []
        for group in table.modes[each.mode].groups:
            tasks.append(table.groups[group].tasks[used[group]])
            used[group] += 1
        named.append(tuple(tasks))
    return named
