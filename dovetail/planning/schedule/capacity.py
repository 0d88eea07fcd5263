"""What is free on each node while a list schedule is being made: devices, host memory, disk, cores.

A handle that changes as placements start and end. Knows nodes, devices and options; does not know time,
tasks, or why something is started. Written for ten thousand starts on a thousand devices: nodes and devices
are numbers, and each option remembers the nodes that may hold it, so that a start looks at few of them.
"""

import heapq
import math
from collections.abc import Sequence

from dovetail.vocabulary import Cluster, Option, Placement


class Capacity:
    """What is free now, for a fixed list of options. Options, nodes and devices go by their numbers, each in
    the order of its list.

    An option is *shut* after `find` found no node for it, until `give` frees what it needs: nothing else
    can make room, so a planner need not ask for it again before.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,), cores=2)
    >>> capacity = Capacity(Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=3), options=[option])
    >>> devices = capacity.take(0, node=capacity.find(0))
    >>> devices, capacity.find(0), capacity.give(option, devices=devices)
    ((0, 1), None, [0])
    """

    def __init__(self, cluster: Cluster, *, options: Sequence[Option]) -> None:
        self._cluster, self._options = cluster, options
        self._host_bytes = [node.memory_bytes for node in cluster.nodes]
        # A disk of zero bytes is one that nobody measured.
        self._disk_bytes = [node.disk_bytes or math.inf for node in cluster.nodes]
        self._cores = [node.cores for node in cluster.nodes]
        self._free = self._all_devices()
        #: Free devices of each kind, whether or not one node has enough of them for anything.
        self.idle = {kind: sum(map(len, nodes)) for kind, nodes in self._free.items()}
        # Nodes that may hold an option, at first those that do when empty: `find` drops those that do not now,
        # `give` puts them back.
        self._maybe = [
            dict.fromkeys(node for node in range(len(cluster.nodes)) if self._holds(option, node)) for option in options
        ]
        self._shut = [False] * len(options)
        self._options_on: list[list[tuple[int, str, int, int, int, int]]] = [[] for _ in cluster.nodes]
        for number, option in enumerate(options):
            needs = (number, option.kind, option.count, option.host_bytes, option.disk_bytes, option.cores)
            for node in self._maybe[number]:
                self._options_on[node].append(needs)
        self._wanted = [len(held) for held in self._options_on]

    def find(self, number: int) -> int | None:
        """The node that holds this option now and is wanted least for others, or None where none does.

        Wanted least: one that holds the fewest options even when empty, then one with the fewest devices left over.
        """
        option, wanted = self._options[number], self._wanted
        free, maybe = self._free[option.kind], self._maybe[number]
        best = None
        for node in list(maybe):
            if not self._holds(option, node):
                del maybe[node]
            elif best is None or (wanted[node], len(free[node]), node) < (wanted[best], len(free[best]), best):
                best = node
        self._shut[number] = best is None
        return best

    def take(self, number: int, *, node: int) -> tuple[int, ...]:
        """Start the option on a node that `find` gave: the devices it got, lowest numbers first."""
        option = self._options[number]
        free = self._free[option.kind][node]
        devices = tuple([heapq.heappop(free) for _ in range(option.count)])
        self._draw(option, node, 1)
        return devices

    def occupy(self, placement: Placement) -> tuple[int, ...]:
        """Take what a placement that is under way holds, whether or not there is room: its devices."""
        names = set(placement.devices)
        devices = tuple(number for number, device in enumerate(self._cluster.devices) if device.name in names)
        for device in devices:
            free = self._free[placement.option.kind][self._nodes[device]]
            free.remove(device)
            heapq.heapify(free)
        self._draw(placement.option, self._nodes[devices[0]], 1)
        return devices

    def give(self, option: Option, *, devices: tuple[int, ...]) -> list[int]:
        """End an option on these devices: the numbers of the options that were shut and are no longer."""
        node = self._nodes[devices[0]]
        for device in devices:
            heapq.heappush(self._free[option.kind][self._nodes[device]], device)
        self._draw(option, node, -1)
        return self._reopen(node)

    def _all_devices(self) -> dict[str, list[list[int]]]:
        """For each kind and node its devices: ascending lists of numbers, which are heaps already."""
        numbers = {node.name: number for number, node in enumerate(self._cluster.nodes)}
        self._nodes = [numbers[device.node] for device in self._cluster.devices]
        free: dict[str, list[list[int]]] = {kind.name: [[] for _ in numbers] for kind in self._cluster.kinds}
        for number, device in enumerate(self._cluster.devices):
            free[device.kind][self._nodes[number]].append(number)
        return free

    def _holds(self, option: Option, node: int) -> bool:
        return (
            len(self._free[option.kind][node]) >= option.count
            and self._host_bytes[node] >= option.host_bytes
            and self._cores[node] >= option.cores
            and self._disk_bytes[node] >= option.disk_bytes
        )

    def _draw(self, option: Option, node: int, sign: int) -> None:
        self._host_bytes[node] -= sign * option.host_bytes
        self._disk_bytes[node] -= sign * option.disk_bytes
        self._cores[node] -= sign * option.cores
        self.idle[option.kind] -= sign * option.count

    def _reopen(self, node: int) -> list[int]:
        # Large problems spend most of their time in this loop, so it tests what `_holds` does without calls.
        opened, shut, maybe = [], self._shut, self._maybe
        free = {kind: len(nodes[node]) for kind, nodes in self._free.items()}
        host_bytes, disk_bytes, cores = self._host_bytes[node], self._disk_bytes[node], self._cores[node]
        for number, kind, count, needs_host, needs_disk, needs_cores in self._options_on[node]:
            if count > free[kind] or needs_host > host_bytes or needs_cores > cores or needs_disk > disk_bytes:
                continue
            maybe[number][node] = None
            if shut[number]:
                shut[number] = False
                opened.append(number)
        return opened
