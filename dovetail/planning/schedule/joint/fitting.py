"""Schedules that end by a target: items in a list, each in the most frugal mode and the fullest place that still do.

MULTIFIT (Coffman, Garey and Johnson 1978) for gangs of devices and modes to choose from: towards a target, filling
places like bins beats balancing them. What finds no place moves up the list and the list is tried again (squeaky
wheel, Joslin and Clements 1999). Wide items lose the time for which some of their devices wait for the others.

For tables in which memory, disk and cores never run short (`InTurn.applies`).
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence

from dovetail.planning.schedule.joint.dice import Dice
from dovetail.planning.schedule.joint.modes import Table
from dovetail.planning.schedule.joint.packing import Begun, free_devices

# On more nodes of a kind the first that fits is taken: by then there are so many items that any place is as good.
_NODES_COMPARED = 16

_Places = list[list[tuple[float, int]]]


class Fitting:
    """Fits items, each given by one of the modes that would cover its tasks.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> Fitting(nothing).fit([], target_seconds=1.0)
    ([], [])
    """

    def __init__(self, table: Table, *, prices: Sequence[float] = ()) -> None:
        """With `prices` of the modes, an item prefers the cheapest that ends in time instead of the most frugal."""
        self._table, self._free = table, free_devices(table)
        covers = [mode.groups if len(mode.groups) == 1 else tuple(sorted(mode.groups)) for mode in table.modes]
        areas = prices or [mode.area for mode in table.modes]
        ways: dict[tuple[int, ...], list[tuple[int, str, int, float]]] = defaultdict(list)
        for number in sorted(range(len(covers)), key=areas.__getitem__):
            mode = table.modes[number]
            ways[covers[number]].append((number, mode.option.kind, mode.option.count, mode.seconds))
        self._ways = [ways[groups] for groups in covers]

    def by_area(self, order: Sequence[int]) -> list[int]:
        """The items that take the most device-seconds even when frugal first."""
        return sorted(order, key=lambda item: (-self._table.modes[self._ways[item][0][0]].area, item))

    def fit(self, order: Sequence[int], *, target_seconds: float) -> tuple[list[Begun], list[int]]:
        """What starts where, and the places in the list of the items that found none by the target."""
        free = {kind: [list(node) for node in nodes] for kind, nodes in self._free.items()}
        begun: list[Begun] = []
        failed: list[int] = []
        for place, item in enumerate(order):
            for way, kind, count, seconds in self._ways[item]:
                found = _fullest(free[kind], count, target_seconds - seconds)
                if found is not None:
                    node, last = found
                    start = node[last][0]
                    devices = tuple([device for _, device in node[last - count + 1 : last + 1]])
                    del node[last - count + 1 : last + 1]
                    for device in devices:
                        bisect.insort(node, (start + seconds, device))
                    begun.append(Begun(mode=way, start_seconds=start, devices=tuple(sorted(devices))))
                    break
            else:
                failed.append(place)
        return begun, failed

    def finish_first(self, order: Sequence[int]) -> list[Begun]:
        """Each item in the way that ends first among those with the fewest devices of each kind, the longest first.

        Where there are many more items than devices, hardly anything is wasted so, and it takes no search.
        """
        free = {kind: [list(node) for node in nodes] for kind, nodes in self._free.items()}
        fewest = {item: self._fewest(item) for item in dict.fromkeys(order)}
        begun = []
        for item in sorted(order, key=lambda item: (-min(way[3] for way in fewest[item]), item)):
            best_end, best_way, best_node = math.inf, fewest[item][0], None
            for way in fewest[item]:
                _, kind, count, seconds = way
                for node in free[kind]:
                    if len(node) >= count and node[count - 1][0] + seconds < best_end:
                        best_end, best_way, best_node = node[count - 1][0] + seconds, way, node
            assert best_node is not None, "an option that fits an empty node has one"
            number, _, count, seconds = best_way
            devices = tuple([device for _, device in best_node[:count]])
            del best_node[:count]
            for device in devices:
                bisect.insort(best_node, (best_end, device))
            begun.append(Begun(mode=number, start_seconds=best_end - seconds, devices=tuple(sorted(devices))))
        return begun

    def _fewest(self, item: int) -> list[tuple[int, str, int, float]]:
        """The way with the fewest devices of each kind, the fastest of equals."""
        found: dict[str, tuple[int, str, int, float]] = {}
        for way in self._ways[item]:
            known = found.get(way[1])
            if known is None or way[2:] < known[2:]:
                found[way[1]] = way
        return list(found.values())

    def meet(self, order: Sequence[int], *, target_seconds: float, changes: int) -> list[Begun] | None:
        """The first of so many tries in which everything ends by the target, or None."""
        dice, tried = Dice(), list(order)
        for _ in range(changes):
            begun, failed = self.fit(tried, target_seconds=target_seconds)
            if not failed:
                return begun
            for place in failed:
                tried.insert(dice.below(place + 1), tried.pop(place))
        return None

    def search(
        self, order: Sequence[int], *, low_seconds: float, high_seconds: float, changes: int, step: float = 0.002
    ) -> list[Begun] | None:
        """The best of so many tries below `high_seconds`, or None; ends within `step` of the bound `low_seconds`."""
        best, high = None, high_seconds
        for tried in (self.by_area(order), list(order)):
            found, high = self._search(tried, low_seconds, high, changes // 2, step)
            best = found or best
        return best

    def _search(
        self, order: list[int], low: float, high: float, changes: int, step: float
    ) -> tuple[list[Begun] | None, float]:
        dice, best, order = Dice(), None, list(order)
        # Early targets are bold; each failure brings the target closer to what is known to be possible.
        boldness = 1.0
        for _ in range(changes):
            if high - low <= step * low:
                break
            target = max(low, high - max(boldness * (high - low), step * low))
            begun, failed = self.fit(order, target_seconds=target)
            if not failed:
                best, high = begun, self._end(begun)
                continue
            boldness *= max(0.5, 1 - 12 / changes)
            for place in failed:
                order.insert(dice.below(place + 1), order.pop(place))
        return best, high

    def _end(self, begun: Sequence[Begun]) -> float:
        return max((each.start_seconds + self._table.modes[each.mode].seconds for each in begun), default=0.0)


def _fullest(nodes: _Places, count: int, latest: float) -> tuple[list[tuple[float, int]], int] | None:
    """The node and the last of the neighbouring free devices on it with the least waiting and then the latest start."""
    best, best_key = None, (math.inf, 0.0)
    many = len(nodes) > _NODES_COMPARED
    for node in nodes:
        if len(node) < count or node[count - 1][0] > latest:
            continue
        until = bisect.bisect_right(node, (latest, math.inf))
        for last in range(count - 1, until) if count > 1 else (until - 1,):
            start = node[last][0]
            waiting = count * start - sum(free for free, _ in node[last - count + 1 : last + 1]) if count > 1 else 0.0
            if (waiting, -start) < best_key:
                best, best_key = (node, last), (waiting, -start)
        if many and best is not None:
            return best
    return best
