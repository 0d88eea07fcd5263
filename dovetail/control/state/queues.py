"""Which placement may start next, as devices fall free in another order than planned.

Every device has its placements in planned order; one starts when it heads the queue of each of its devices, they
are free, and its node has room: times drift, so what fitted side by side in the plan may not now. Work for each
device is constant, so that a thousand of them cost nothing.
"""

from collections import Counter, deque
from collections.abc import Iterable

from dovetail.vocabulary import Cluster, Option, Placement, Schedule


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
        self._free = {device.name for device in cluster.devices}
        self._gone: set[str] = set()
        self._host_bytes: Counter[str] = Counter()
        self._cores: Counter[str] = Counter()

    def load(self, schedule: Schedule) -> None:
        """Follow this schedule from now on."""
        for queue in self._queues.values():
            queue.clear()
        for placement in sorted(schedule.placements, key=lambda p: (p.start_seconds, p.devices)):
            for device in placement.devices:
                self._queues[device].append(placement)
        self._touched = set(self._queues)

    def ready(self) -> list[Placement]:
        """Take out what may start now; its devices count as busy from here on."""
        started = []
        for device in sorted(self._touched):
            queue = self._queues[device]
            if queue and self._may_start(queue[0]):
                placement = queue[0]
                for each in placement.devices:
                    self._queues[each].popleft()
                self.occupy(placement.devices, placement.option)
                started.append(placement)
        self._touched.clear()
        return started

    def leave(self, devices: Iterable[str]) -> None:
        """These devices are gone; what was planned for them waits for another plan."""
        self._gone.update(devices)
        self._free -= self._gone
        self.load(Schedule(placements=()))

    def join(self, devices: Iterable[str]) -> None:
        """These devices, which were gone, are back, and free."""
        devices = [device for device in devices if device in self._gone]
        self._gone.difference_update(devices)
        self._free.update(devices)
        self._touched.update(devices)

    def occupy(self, devices: Iterable[str], option: Option | None) -> None:
        """These devices are busy, with an option or, for a trial, without one."""
        self._free.difference_update(devices)
        self._account(devices, option, 1)

    def release(self, devices: Iterable[str], option: Option | None) -> None:
        """These devices are free again."""
        devices = tuple(devices)
        self._free.update(device for device in devices if device not in self._gone)
        self._account(devices, option, -1)
        # Room on the node may let the head of any queue of that node start.
        self._touched.update(self._on_node[self._cluster.device(devices[0]).node])

    def fits(self, devices: Iterable[str], option: Option) -> bool:
        """Whether these devices are free and their node has room for an option."""
        first = ""
        for device in devices:
            if device not in self._free:
                return False
            first = first or device
        if not (option.host_bytes or option.cores):
            return True
        node = self._cluster.node(self._cluster.device(first).node)
        fits = self._host_bytes[node.name] + option.host_bytes <= node.memory_bytes
        return fits and self._cores[node.name] + option.cores <= node.cores

    def free(self, kind: str) -> list[str]:
        """The free devices of a kind."""
        return [device.name for device in self._cluster.of_kind(kind) if device.name in self._free]

    def idles(self) -> bool:
        """Whether some device has nothing to do."""
        return bool(self._free)

    def idle_and_behind(self) -> bool:
        """Whether some device has nothing left to do while placements wait elsewhere."""
        waiting = any(self._queues.values())
        return waiting and any(not self._queues[device] for device in self._free)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not any(self._queues.values())

    def _may_start(self, placement: Placement) -> bool:
        if any(self._queues[device][0] is not placement for device in placement.devices):
            return False
        return self.fits(placement.devices, placement.option)

    def _account(self, devices: Iterable[str], option: Option | None, sign: int) -> None:
        if option is not None:
            node = self._cluster.device(next(iter(devices))).node
            self._host_bytes[node] += sign * option.host_bytes
            self._cores[node] += sign * option.cores
