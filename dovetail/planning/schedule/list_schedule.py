"""List schedules of chosen modes, by the two schedule generation schemes of the field, as neither is always better.

*Serial*: each activity in its turn takes the devices that are free first, and what comes later in the list never starts
in a hole before it; fast, and good to wide activities. *Greedy* (the parallel scheme): whenever something ends, the
first in the list that fits starts; it counts memory, disk and cores, and leaves no device idle that something could
use. Knows devices by number; does not know why modes were chosen.

From a relaxation's amounts to whole modes: which of them cover every task exactly once, the longest first.
"""

import bisect
import heapq
import math
from collections.abc import Sequence

from dovetail.planning.room import RoomForOptions
from dovetail.planning.schedule.table import Mode, Start, Table, makespan
from dovetail.planning.solver import Activity, pack
from dovetail.vocabulary import NoFeasiblePlan, Option


def device_ends(table: Table) -> dict[str, list[list[tuple[float, int]]]]:
    """For each kind and each node that has some, when each device is free of what runs now, soonest first.

    >>> from dovetail.vocabulary import Cluster, Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> device_ends(Table(cluster=cluster, running=(), groups=(), modes=(), shapes=()))
    {'cpu': [[(0.0, 0), (0.0, 1)]]}
    """
    ends: dict[str, float] = {}
    for placement in table.running:
        for name in placement.devices:
            ends[name] = max(ends.get(name, 0.0), placement.end_seconds)
    free: dict[str, dict[str, list[tuple[float, int]]]] = {kind.name: {} for kind in table.cluster.kinds}
    for number, device in enumerate(table.cluster.devices):
        until = max(0.0, ends.get(device.name, 0.0))
        free[device.kind].setdefault(device.node, []).append((until, number))
    return {kind: [sorted(devices) for devices in nodes.values()] for kind, nodes in free.items()}


class SerialList:
    """Schedules by the serial scheme, for tables in which only devices bind."""

    def __init__(self, table: Table, *, after: Sequence[Start] = ()) -> None:
        """With `after`, nothing takes a device before these have let it go."""
        self._free = device_ends(table)
        ends: dict[int, float] = {}
        for each in sorted(after, key=lambda each: each.start_seconds):
            ends |= dict.fromkeys(each.devices, each.start_seconds + table.modes[each.mode].seconds)
        for node in (node for nodes in self._free.values() if ends for node in nodes):
            node[:] = sorted((max(until, ends.get(device, 0.0)), device) for until, device in node)
        self._modes = [(mode.option.kind, mode.option.count, mode.seconds) for mode in table.modes]

    def makespan(self, order: Sequence[int]) -> float:
        """When the modes in this order end; infinity where one of them fits nowhere."""
        free = {kind: [[until for until, _ in node] for node in nodes] for kind, nodes in self._free.items()}
        last, insort, bisect_right = 0.0, bisect.insort, bisect.bisect_right
        for number in order:
            kind, count, seconds = self._modes[number]
            start, best = math.inf, None
            for node in free[kind]:
                if len(node) >= count and node[count - 1] < start:
                    start, best = node[count - 1], node
            if best is None:
                return math.inf
            end = start + seconds
            last = max(last, end)
            # Of the devices free by then those that became free last, so that the others can start something sooner.
            until = bisect_right(best, start)
            del best[until - count : until]
            for _ in range(count):
                insort(best, end)
        return last

    def schedule(self, order: Sequence[int]) -> list[Start]:
        """The modes in this order as starts on named devices."""
        free = {kind: [list(node) for node in nodes] for kind, nodes in self._free.items()}
        starts = []
        for number in order:
            kind, count, seconds = self._modes[number]
            able = [node for node in free[kind] if len(node) >= count]
            best = min(able, key=lambda node: node[count - 1][0])
            start = best[count - 1][0]
            until = bisect.bisect_right(best, (start, math.inf))
            devices = tuple(sorted(device for _, device in best[until - count : until]))
            del best[until - count : until]
            for device in devices:
                bisect.insort(best, (start + seconds, device))
            starts.append(Start(mode=number, start_seconds=start, devices=devices))
        return starts


def greedy_list(table: Table, order: Sequence[int]) -> list[Start]:
    """The schedule by the greedy scheme."""
    room = RoomForOptions(table.cluster, options=table.shapes)
    ends: list[tuple[float, int, Option, tuple[int, ...]]] = []
    for number, placement in enumerate(table.running):
        ends.append((placement.end_seconds, number - len(table.running), placement.option, room.occupy(placement)))
    heapq.heapify(ends)
    queues: list[list[int]] = [[] for _ in table.shapes]
    for turn in reversed(range(len(order))):
        queues[table.modes[order[turn]].shape].append(turn)
    awake = {shape for shape, queue in enumerate(queues) if queue}
    starts: list[Start] = []
    now = 0.0
    while True:
        while ends and ends[0][0] <= now:
            _, _, option, devices = heapq.heappop(ends)
            awake.update(room.give(option, devices=devices))
        while ready := [(queues[shape][-1], shape) for shape in awake if queues[shape]]:
            turn, shape = min(ready)
            nodes = room.find(shape)
            if nodes is None:
                awake.discard(shape)
                continue
            queues[shape].pop()
            devices = room.take(shape, nodes=nodes)
            starts.append(Start(mode=order[turn], start_seconds=now, devices=devices))
            mode = table.modes[order[turn]]
            heapq.heappush(ends, (now + mode.seconds, len(starts), mode.option, devices))
        if len(starts) == len(order):
            return starts
        assert ends, "what fits an empty node must fit once everything has ended"
        now = max(now, ends[0][0])


def list_schedules(table: Table, order: Sequence[int]) -> list[list[Start]]:
    """The list by each scheme that applies."""
    found = [greedy_list(table, order)]
    if table.only_devices_bind:
        found.append(SerialList(table).schedule(order))
    return found


def shortest_list(table: Table, order: Sequence[int]) -> list[Start]:
    """The shorter of the schedules by both schemes."""
    return min(list_schedules(table, order), key=lambda starts: makespan(table, starts))


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
