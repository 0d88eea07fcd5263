"""Schedules that end by a target: items in a list, each in the most frugal mode and the fullest place that still do.

MULTIFIT (Coffman, Garey and Johnson 1978) for gangs of devices and modes to choose from: towards a target, filling
places like bins beats balancing them. What finds no place moves up the list and the list is tried again (squeaky
wheel, Joslin and Clements 1999). Wide items lose the time for which some of their devices wait for the others.

For tables in which only devices bind.
"""

import bisect
import heapq
import math
from collections import defaultdict
from collections.abc import Sequence

from dovetail.planning.schedule.dual_approximation import DualApproximation
from dovetail.planning.schedule.improve import Generator
from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import by_seconds, device_ends
from dovetail.planning.schedule.relaxation import mode_prices
from dovetail.planning.schedule.table import Start, Table, makespan

# On more nodes of a kind the first that fits is taken: by then there are so many items that any place is as good.
_NODES_COMPARED = 16
# An item is placed in about so many seconds. However long a list is, a few targets are tried; and no target that is
# closer to the bound than a step, a coarse one where few can be tried.
_FIT_SECONDS = 25e-6
_FEWEST_TRIES = 6
_STEP, _COARSE_STEP = 0.002, 0.01

_Places = list[list[tuple[float, int]]]


class Multifit:
    """Fits items, each given by one of the modes that would cover its tasks."""

    def __init__(self, table: Table, *, prices: Sequence[float] = ()) -> None:
        """With `prices` of the modes, an item prefers the cheapest that ends in time instead of the most frugal."""
        self._table, self._free = table, device_ends(table)
        covers = [mode.groups if len(mode.groups) == 1 else tuple(sorted(mode.groups)) for mode in table.modes]
        areas = prices or [mode.area for mode in table.modes]
        ways: dict[tuple[int, ...], list[tuple[int, str, int, float]]] = defaultdict(list)
        for number in sorted(range(len(covers)), key=areas.__getitem__):
            mode = table.modes[number]
            ways[covers[number]].append((number, mode.option.kind, mode.option.count, mode.seconds))
        self._ways = [ways[groups] for groups in covers]
        places = {kind: enumerate(nodes) for kind, nodes in self._free.items()}
        self._place_of = {device: place for each in places.values() for place, node in each for _, device in node}

    def by_area(self, order: Sequence[int]) -> list[int]:
        """The items that take the most device-seconds even when frugal first."""
        return sorted(order, key=lambda item: (-self._table.modes[self._ways[item][0][0]].area, item))

    def fit(self, order: Sequence[int], *, target_seconds: float) -> tuple[list[Start], list[int]]:
        """What starts where, and the places in the list of the items that found none by the target."""
        free = {kind: [list(node) for node in nodes] for kind, nodes in self._free.items()}
        # Before when no node has so many devices of a kind free: as devices are taken, that only grows.
        soonest: dict[tuple[str, int], float] = {}
        starts: list[Start] = []
        failed: list[int] = []
        for place, item in enumerate(order):
            for way, kind, count, seconds in self._ways[item]:
                latest = target_seconds - seconds
                if latest < soonest.get((kind, count), 0.0):
                    continue
                found = _fullest(free[kind], count, latest)
                if found is None:
                    ends = [node[count - 1][0] for node in free[kind] if len(node) >= count]
                    soonest[kind, count] = min(ends, default=math.inf)
                    continue
                node, last = found
                start = node[last][0]
                devices = tuple([device for _, device in node[last - count + 1 : last + 1]])
                del node[last - count + 1 : last + 1]
                for device in devices:
                    bisect.insort(node, (start + seconds, device))
                starts.append(Start(mode=way, start_seconds=start, devices=tuple(sorted(devices))))
                break
            else:
                failed.append(place)
        return starts, failed

    def finish_first(self, order: Sequence[int]) -> list[Start]:
        """Each item in the way that ends first among those with the fewest devices of each kind, the longest first.

        Where there are many more items than devices, hardly anything is wasted so, and it takes no search.
        """
        free = {kind: [list(node) for node in nodes] for kind, nodes in self._free.items()}
        fewest = {item: self._fewest(item) for item in dict.fromkeys(order)}
        # When the first device of each node is free: most items take one, and there may be hundreds of nodes.
        heads = {kind: [(node[0][0], place) for place, node in enumerate(nodes)] for kind, nodes in free.items()}
        for each in heads.values():
            heapq.heapify(each)
        starts = []
        for item in sorted(order, key=lambda item: (-min(way[3] for way in fewest[item]), item)):
            best_end, best_way, best_node = math.inf, fewest[item][0], None
            for way in fewest[item]:
                _, kind, count, seconds = way
                while heads[kind][0][0] != free[kind][heads[kind][0][1]][0][0]:
                    heapq.heappop(heads[kind])
                for node in [free[kind][heads[kind][0][1]]] if count == 1 else free[kind]:
                    if len(node) >= count and node[count - 1][0] + seconds < best_end:
                        best_end, best_way, best_node = node[count - 1][0] + seconds, way, node
            assert best_node is not None, "an option that fits an empty node has one"
            number, _, count, seconds = best_way
            devices = tuple([device for _, device in best_node[:count]])
            del best_node[:count]
            for device in devices:
                bisect.insort(best_node, (best_end, device))
            kind = best_way[1]
            heapq.heappush(heads[kind], (best_node[0][0], self._place_of[best_node[0][1]]))
            starts.append(Start(mode=number, start_seconds=best_end - seconds, devices=tuple(sorted(devices))))
        return starts

    def _fewest(self, item: int) -> list[tuple[int, str, int, float]]:
        """The way with the fewest devices of each kind, the fastest of equals."""
        found: dict[str, tuple[int, str, int, float]] = {}
        for way in self._ways[item]:
            known = found.get(way[1])
            if known is None or way[2:] < known[2:]:
                found[way[1]] = way
        return list(found.values())

    def meet(self, order: Sequence[int], *, target_seconds: float, changes: int) -> list[Start] | None:
        """The first of so many tries in which everything ends by the target, or None."""
        random, tried = Generator(), list(order)
        for _ in range(changes):
            starts, failed = self.fit(tried, target_seconds=target_seconds)
            if not failed:
                return starts
            for place in failed:
                tried.insert(random.below(place + 1), tried.pop(place))
        return None

    def search(
        self, order: Sequence[int], *, low_seconds: float, high_seconds: float, changes: int, step: float = _STEP
    ) -> list[Start] | None:
        """The best of so many tries below `high_seconds`, or None; ends within `step` of the bound `low_seconds`."""
        best, high = None, high_seconds
        for tried in (self.by_area(order), list(order)):
            found, high = self._search(tried, low_seconds, high, changes // 2, step)
            best = found or best
        return best

    def _search(
        self, order: list[int], low: float, high: float, changes: int, step: float
    ) -> tuple[list[Start] | None, float]:
        random, best, order = Generator(), None, list(order)
        # Early targets are bold; each failure brings the target closer to what is known to be possible.
        boldness = 1.0
        for _ in range(changes):
            if high - low <= step * low:
                break
            target = max(low, high - max(boldness * (high - low), step * low))
            starts, failed = self.fit(order, target_seconds=target)
            if not failed:
                best, high = starts, makespan(self._table, starts)
                continue
            boldness *= max(0.5, 1 - 12 / changes)
            for place in failed:
                order.insert(random.below(place + 1), order.pop(place))
        return best, high


def _fullest(nodes: _Places, count: int, latest: float) -> tuple[list[tuple[float, int]], int] | None:
    """The node and the last of the neighbouring free devices on it with the least waiting and then the latest start."""
    best, least, newest = None, math.inf, 0.0
    many = len(nodes) > _NODES_COMPARED
    for node in nodes:
        if len(node) < count or node[count - 1][0] > latest:
            continue
        until = bisect.bisect_right(node, (latest, math.inf))
        for last in range(count - 1 if count > 1 else until - 1, until):
            start, waiting = node[last][0], 0.0
            for place in range(last - count + 1, last):
                waiting += start - node[place][0]
            if waiting < least or (waiting == least and start > newest):
                best, least, newest = (node, last), waiting, start
        if many and best is not None:
            return best
    return best


def shorten(judge: Judge, known: Sequence[Start], *, low: float, seconds: float) -> Sequence[Start]:
    """The schedule or a shorter one of the same gangs, fitted to targets between `low` and its makespan for about so
    many seconds."""
    table, high = judge.table, makespan(judge.table, known)
    if not known:
        return known
    if not table.only_devices_bind:
        return _shorten_in_room(judge, known, low=low)
    tries = max(_FEWEST_TRIES, int(seconds / (_FIT_SECONDS * max(1, len(known)))))
    step = _STEP if tries > 2 * _FEWEST_TRIES else _COARSE_STEP
    if high - low <= step * low:
        return known
    order = by_seconds(table, [each.mode for each in known])
    found = Multifit(table).search(order, low_seconds=low, high_seconds=high, changes=tries, step=step)
    return known if found is None else found


def _shorten_in_room(judge: Judge, known: Sequence[Start], *, low: float) -> Sequence[Start]:
    """The same where memory, disk or cores bind: frugal modes first, or those that are cheap by what is scarce."""
    table = judge.table
    best = DualApproximation(table, prices=[mode.area for mode in table.modes]).shorten(known, low=low)
    if makespan(table, best) - low <= _COARSE_STEP * low:
        return best
    return DualApproximation(table, prices=mode_prices(table), dearest_first=True).shorten(best, low=low)
