"""Which placement may start next, as devices fall free in another order than planned.

Every device has its placements in planned order; one starts when it heads the queue of each of its devices, they
are free, and its node has room (`planning/room`): times drift, so what fitted side by side in the plan may not now.
Work for each device is constant, so that a thousand of them cost nothing.
"""

import itertools
from collections import deque
from collections.abc import Iterable

from dovetail.planning.room import Room
from dovetail.vocabulary import Cluster, Option, Placement, Schedule, TaskId


class Queues:
    """Planned placements waiting for their devices.

    >>> from dovetail.vocabulary import Kind
    >>> Queues(Cluster.uniform(Kind(name="cpu", processor="cpu"))).ready()
    []
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queues: dict[str, deque[Placement]] = {device.name: deque() for device in cluster.devices}
        self._on_node: dict[str, list[str]] = {}
        for device in cluster.devices:
            self._on_node.setdefault(device.node, []).append(device.name)
        self._touched: set[str] = set()
        # Of tasks that visit shards: what is to come, in its order, and which of them are at one, or not saved yet.
        self._tours: dict[TaskId, deque[Placement]] = {}
        self._away: set[TaskId] = set()
        self.room = Room(cluster)

    def load(self, schedule: Schedule) -> None:
        """Follow this schedule from now on."""
        for queue in self._queues.values():
            queue.clear()
        self._tours.clear()
        for placement in sorted(schedule.placements, key=lambda p: (p.start_seconds, p.devices)):
            for device in placement.devices:
                self._queues[device].append(placement)
            if placement.shard:
                self._tours.setdefault(placement.tasks[0], deque()).append(placement)
        self._touched = set(self._queues)

    def ready(self) -> list[Placement]:
        """Take out what may start now; its devices count as busy from here on."""
        started = []
        for device in sorted(self._touched):
            queue = self._queues[device]
            if queue and queue[0].shard:
                started += self._visit(device)
            elif queue and self._may_start(queue[0]):
                placement = queue[0]
                for each in placement.devices:
                    self._queues[each].popleft()
                self.occupy(placement.devices, placement.option)
                started.append(placement)
        self._touched.clear()
        return started

    def leave(self, devices: Iterable[str]) -> None:
        """These devices are gone; what was planned for them waits for another plan."""
        self.room.withdraw(self.room.numbers(devices))
        self.load(Schedule(placements=()))

    def join(self, devices: Iterable[str]) -> None:
        """These devices, which were gone, are back, and free."""
        back = self.room.restore(self.room.numbers(devices))
        self._touched.update(self._names(back))

    def grow(self, cluster: Cluster, *, taken: Iterable[tuple[tuple[str, ...], Option | None]]) -> None:
        """The cluster has more devices from now on, after those it had, of which these are taken. What was planned
        waits for another plan."""
        gone, self._cluster, self.room = self.room.withdrawn(), cluster, Room(cluster)
        for device in cluster.devices:
            if device.name not in self._queues:
                self._queues[device.name] = deque()
                self._on_node.setdefault(device.node, []).append(device.name)
        self.room.withdraw(gone)
        for devices, option in taken:
            self.occupy(devices, option)
        self.load(Schedule(placements=()))

    def occupy(self, devices: Iterable[str], option: Option | None) -> None:
        """These devices are busy, with an option or, for a trial, without one."""
        self.room.occupy(option, self.room.numbers(devices))

    def release(self, devices: Iterable[str], option: Option | None) -> None:
        """These devices are free again."""
        devices = tuple(devices)
        self.room.give(option, self.room.numbers(devices))
        # Room on a node may let the head of any queue of that node start.
        for node in {self._cluster.device(device).node for device in devices}:
            self._touched.update(self._on_node[node])

    def come_back(self, tasks: Iterable[TaskId]) -> None:
        """These tasks are saved after a visit, or lost, and may go on elsewhere."""
        if back := self._away.intersection(tasks):
            self._away -= back
            self._touched.update(self._queues)  # a device of any node may wait for them

    def upcoming(self) -> list[tuple[str, TaskId]]:
        """The task that each device will visit with next, as far as that is saved and waits for the device alone."""
        found = []
        for device in self._queues if self._tours else ():
            if (placement := self._next_visit(device)) is not None:
                found.append((device, placement.tasks[0]))
        return found

    def fits(self, devices: Iterable[str], option: Option) -> bool:
        """Whether these devices are free and their node has room for an option."""
        return self.room.fits(option, self.room.numbers(devices))

    def free_together(self, kind: str, count: int, nodes: int = 1) -> tuple[str, ...] | None:
        """So many free devices of a kind on one node, or as many on each of several, if there are."""
        found = self.room.free_together(kind, count, nodes)
        return None if found is None else self._names(found)

    def idles(self) -> bool:
        """Whether some device has nothing to do."""
        return any(self.room.idle.values())

    def idle_and_behind(self) -> bool:
        """Whether some device has nothing left to do while placements wait elsewhere."""
        if self.empty():
            return False
        idle = self._names(device for kind in self.room.idle for device in self.room.free(kind))
        return any(not self._queues[device] for device in idle)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._queues.values())

    def _visit(self, device: str) -> list[Placement]:
        """Start the first visit planned for a device whose task is not elsewhere and has made all visits before it:
        times drift, and whoever is on the way need not keep others waiting."""
        placement = self._next_visit(device)
        if placement is None or not self.fits((device,), placement.option):
            return []
        self._queues[device].remove(placement)
        self._tours[placement.tasks[0]].popleft()
        self._away.add(placement.tasks[0])
        self.occupy((device,), placement.option)
        return [placement]

    def _next_visit(self, device: str) -> Placement | None:
        for placement in itertools.takewhile(lambda placement: placement.shard, self._queues[device]):
            task = placement.tasks[0]
            if task not in self._away and self._tours[task][0] is placement:
                return placement
        return None

    def _names(self, devices: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._cluster.devices[device].name for device in devices)

    def _may_start(self, placement: Placement) -> bool:
        if any(self._queues[device][0] is not placement for device in placement.devices):
            return False
        return self.fits(placement.devices, placement.option)
