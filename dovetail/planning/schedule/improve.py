"""Many small changes to a list of modes, of which those that do not worsen the schedule by much are kept.

Threshold accepting (Dueck and Scheuer 1990): by how much a change may worsen the schedule shrinks to nothing over the
search. The number of changes is the limit, so the same problem has the same answer everywhere.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import SerialList, greedy_list, list_schedules
from dovetail.planning.schedule.table import Start, Table

_FIRST_THRESHOLD = 0.03
# Above so many activities small changes are too small to be seen.
_MOST_ITEMS = 200
# An item of a list is placed and judged in about so many seconds, with and without other objectives than the makespan.
_SHORTEN_SECONDS, _JUDGE_SECONDS = 25e-6, 60e-6
_MOST_CHANGES = 2_000
# Seconds that improving takes without search, and the share of the work that it may take beside; twice, where a
# schedule is both fitted and changed. The rest is for what is exact.
IMPROVE_SECONDS, IMPROVE_SHARE, EXACT_SHARE = 0.2, 0.15, 0.7


class Generator:
    """Numbers that look random and are the same every time, since planning is repeatable: a linear congruential
    generator with the constants of Knuth's MMIX.

    >>> Generator().below(1000) == Generator().below(1000)
    True
    """

    def __init__(self, seed: int = 1) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        """A whole number from 0 to less than the limit."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % limit


def improve(judge: Judge, starts: Sequence[Start], *, seconds: float, enough: float = 0.0) -> Sequence[Start]:
    """The best by the judge of as many small changes as take about so many seconds, at least as good as what is given;
    ends once it is as good as `enough`."""
    table, is_makespan = judge.table, judge.objective.name == "makespan"
    order = [each.mode for each in sorted(starts, key=lambda each: (each.start_seconds, each.devices))]
    value = judge.value(starts)
    if not 0 < len(order) <= _MOST_ITEMS or value == math.inf or value <= enough * (1 + 1e-9):
        return starts
    changes = int(seconds / (len(order) * (_SHORTEN_SECONDS if is_makespan else _JUDGE_SECONDS)))
    serial = SerialList(table) if table.only_devices_bind else None

    def measure(order: Sequence[int]) -> float:
        if is_makespan and serial is not None:
            return serial.makespan(order)
        return judge.value(serial.schedule(order) if serial is not None else greedy_list(table, order))

    better = improve_order(table, order, changes=min(_MOST_CHANGES, changes), enough=enough, measure=measure)
    return judge.best([starts, *list_schedules(table, better)])


def improve_order(
    table: Table,
    order: Sequence[int],
    *,
    changes: int,
    enough: float,
    measure: Callable[[Sequence[int]], float],
) -> list[int]:
    """The best order and choice of modes that this many small changes come by, at least as good as the one given.

    `measure` is what is to be small.
    """
    moves, random = _Moves(table), Generator()
    best = now = list(order)
    best_seconds = now_seconds = measure(now)
    for change in range(changes):
        if best_seconds <= enough:
            break
        threshold = best_seconds * _FIRST_THRESHOLD * (1 - (change + 1) / changes) ** 2
        other = moves.change(now, random)
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

    def change(self, order: Sequence[int], random: Generator) -> list[int]:
        """A copy with one change; where that is not possible, the same."""
        other, kind = list(order), random.below(6 if self._has_gangs else 4)
        place = random.below(len(other))
        if kind == 0:
            same = self._by_groups[self._groups[other[place]]]
            other[place] = same[random.below(len(same))]
        elif kind == 1:
            same = self._by_groups[self._groups[other[place]]]
            number = same[random.below(len(same))]
            del other[place]
            other.insert(random.below(len(other) + 1), number)
        elif kind == 2:
            other.insert(random.below(len(other)), other.pop(place))
        elif kind == 3:
            second = random.below(len(other))
            other[place], other[second] = other[second], other[place]
        else:
            self._regroup(other, place, random)
        return other

    def _regroup(self, order: list[int], place: int, random: Generator) -> None:
        groups = self._groups[order[place]]
        singles = [self._by_groups.get((group,), []) for group in groups]
        if len(groups) > 1 and all(singles):
            order[place : place + 1] = [ways[random.below(len(ways))] for ways in singles]
            return
        second = random.below(len(order))
        joined = self._by_groups.get(tuple(sorted(groups + self._groups[order[second]])), [])
        if second != place and joined:
            order[place] = joined[random.below(len(joined))]
            del order[second]
