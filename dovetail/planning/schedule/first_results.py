"""For objectives that read first results: when so many tasks can have ended at the earliest, whichever they are; tables
of some of the tasks, and whole schedules from schedules of some."""

import dataclasses
import math
from collections.abc import Sequence

from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import SerialList, frugal_modes, greedy_list, shortest_list
from dovetail.planning.schedule.table import Start, Table, makespan

_PRICE_CHANGES = 8
_HALVINGS = 8
_ROUNDING = 1e-9
# In larger tables the bound of a target reads fewer ranks.
_SOME_MODES = 300


def restrict_to_first(table: Table, results: int) -> list[tuple[Table, list[int]]]:
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


def complete(judge: Judge, starts: Sequence[Start], numbers: Sequence[int] | None = None) -> Sequence[Start]:
    """A schedule of some tasks and, after it on each device, of the others. `numbers` are the whole table's of the
    modes, where they are a part's."""
    table = judge.table
    placed = [dataclasses.replace(each, mode=numbers[each.mode] if numbers else each.mode) for each in starts]
    left = table.needs
    for each in placed:
        for group, times in table.modes[each.mode].covers.items():
            left[group] -= times
    rest = _restricted(table, left) if any(left) else None
    if rest is None:
        if any(left):  # only gangs cover what is left, and only all of it: as one list
            return shortest_list(table, frugal_modes(table))
        return placed
    part, of_part = rest
    order = [of_part[number] for number in frugal_modes(part)]
    if table.only_devices_bind:
        return [*placed, *SerialList(table, after=placed).schedule(order)]
    begin = max([0.0, *judge.running_ends, makespan(table, placed)])
    later = greedy_list(dataclasses.replace(table, running=()), order)
    return [*placed, *(dataclasses.replace(each, start_seconds=begin + each.start_seconds) for each in later)]


def target_bound(judge: Judge) -> float:
    """The sum over ranks of what is proven of each; in large tables of a few, since no later rank is sooner."""
    ranks = [each for each in judge.ranks(judge.table.tasks + len(judge.running_ends)) if each[1] > 1e-9]
    step = 1.5 if len(judge.table.modes) > _SOME_MODES else 1.0
    bound = proven = 0.0
    due = 1
    for rank, share in ranks:
        if rank >= due:
            proven, due = max(proven, rank_bound(judge, rank)), max(rank + 1, math.ceil(step * rank))
        bound += share * proven
    return bound


def rank_bound(judge: Judge, rank: int) -> float:
    """When so many have ended at the earliest, what runs now counted in."""
    table, fastest = judge.table, [math.inf] * len(judge.table.groups)
    for number, mode in enumerate(table.modes):
        for group, end in zip(mode.groups, judge.ends[number], strict=True):
            fastest[group] = min(fastest[group], end)
    alone = [end for end, need in zip(fastest, table.needs, strict=True) for _ in range(need)]
    ends = sorted([*judge.running_ends, *alone])
    return max(ends[rank - 1], earliest(table, rank - len(judge.running_ends)))


def earliest(table: Table, results: int) -> float:
    """Seconds before which no schedule has ended so many of the tasks.

    Any prices of the kinds' devices prove one: each task costs at least its part of the cheapest mode it is in, so
    the `results` cheapest tasks together are worth no more than all devices until then. Modes that end later do not
    count, so a target that this refutes, with them left out, is refuted.

    >>> from dovetail.planning.schedule.table import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))
    >>> [round(earliest(table, results), 3) for results in (0, 1, 3)]
    [0.0, 10.0, 15.0]
    """
    if results <= 0:
        return 0.0
    return _ResultRanks(table).bound(results)


class _ResultRanks:
    def __init__(self, table: Table) -> None:
        self._devices = {kind.name: count for kind, count in table.cluster.counts() if count}
        self._needs = table.needs
        self._ways: list[list[tuple[float, str, float]]] = [[] for _ in self._needs]
        for mode in table.modes:
            for group, end in zip(mode.groups, mode.ends(table.groups), strict=True):
                # A gang may go on after a member has ended; until then it has taken at least this much for each.
                self._ways[group].append((end, mode.option.kind, end * mode.option.count / len(mode.groups)))

    def bound(self, results: int) -> float:
        low = self._fastest(results)
        found = self._priced(results, math.inf)
        low = max(low, found)
        high = 2 * low
        while self._priced(results, high) > high:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._priced(results, middle) > middle else (low, middle)
        return low * (1 - _ROUNDING)

    def _fastest(self, results: int) -> float:
        ends = sorted((min(way[0] for way in ways), need) for ways, need in zip(self._ways, self._needs, strict=True))
        for end, need in ends:
            results -= need
            if results <= 0:
                return end
        return math.inf

    def _priced(self, results: int, target: float) -> float:
        """The best bound that prices prove with the modes that end by a target."""
        timely = [[way for way in ways if way[0] <= target * (1 + _ROUNDING)] for ways in self._ways]
        prices, best = dict.fromkeys(self._devices, 1.0), 0.0
        for change in range(_PRICE_CHANGES if len(self._devices) > 1 else 1):
            cheapest = sorted(
                (min((prices[kind] * area, kind) for _, kind, area in ways), need)
                for ways, need in zip(timely, self._needs, strict=True)
                if ways
            )
            left, worth, asked = results, 0.0, dict.fromkeys(self._devices, 0.0)
            for (price, kind), need in cheapest:
                taken = min(left, need)
                worth, left = worth + price * taken, left - taken
                asked[kind] += price * taken
                if not left:
                    break
            if left:
                return math.inf
            total = sum(prices[kind] * count for kind, count in self._devices.items())
            best = max(best, worth / total)
            for kind, count in self._devices.items():
                prices[kind] *= 1 + (asked[kind] / worth - prices[kind] * count / total) / (change + 1)
        return best
