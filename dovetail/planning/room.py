"""Room on the nodes of a cluster: which devices are free, and how much host memory, disk, cores and port are left.

The one implementation: list schedules, rounds, the controller's queues and trials all take from a `Room` and give back
to it. Only `planning/checker.py` counts for itself, because it judges the others. Devices and nodes go by their
numbers, in the cluster's order. Knows no time, no tasks, and not why something is started.
"""

import bisect
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from dovetail.vocabulary import Cluster, Node, Option, Placement


def shared_sizes(node: Node) -> tuple[float, float, float]:
    """What the placements of an empty node share: bytes of host memory, bytes of disk, and cores.

    >>> shared_sizes(Node(name="n0", cores=4, memory_bytes=8))
    (8, inf, 4)
    """
    # A disk of zero bytes is one that nobody measured, so nobody is held to it.
    return node.memory_bytes, node.disk_bytes or math.inf, node.cores


def shared_needs(option: Option) -> tuple[int, int, int]:
    """What an option takes of what a node's placements share, on each of its nodes, in the order of `shared_sizes`.

    >>> where = {"technique": "replicate", "kind": "cpu", "count": 4, "knobs": {"nodes": 2}}
    >>> shared_needs(Option(families=("f",), step_seconds=(1.0,), host_bytes=9, cores=4, **where))
    (5, 0, 2)
    """
    nodes = option.nodes
    if nodes == 1:
        return option.host_bytes, option.disk_bytes, option.cores
    return -(-option.host_bytes // nodes), -(-option.disk_bytes // nodes), -(-option.cores // nodes)


def _own_needs(option: Option) -> tuple[int, int, int]:
    """The same, for the loops: who has no knobs is on one node."""
    return shared_needs(option) if option.knobs else (option.host_bytes, option.disk_bytes, option.cores)


def find_linked(cluster: Cluster, nodes: Sequence[str], count: int, *, bytes_per_second: float) -> tuple[str, ...]:
    """So many of these nodes, the first that are found of which each has a link to each that carries so much; none
    where there are none. Takes from each node on the next that is linked to all taken: of the same nodes it finds the
    same, and sets that it passes over only if links are fast here and slow there without pattern are not waited for.

    >>> import dataclasses
    >>> from dovetail.vocabulary import Kind, Link
    >>> slow, *fast = (Link(source=a, target=b, bytes_per_second=rate, between_nodes=True)
    ...                for a, b, rate in (("n0", "n1", 1e8), ("n0", "n2", 1e9), ("n1", "n2", 1e9)))
    >>> cluster = dataclasses.replace(Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=3), links=(slow, *fast))
    >>> find_linked(cluster, ["n0", "n1", "n2"], 2, bytes_per_second=1e9)
    ('n0', 'n2')
    """
    for first in range(len(nodes) - count + 1):
        found = [nodes[first]]
        for node in nodes[first + 1 :]:
            if len(found) < count and all(link_rate(cluster, node, other) >= bytes_per_second for other in found):
                found.append(node)
        if len(found) == count:
            return tuple(found)
    return ()


def link_rate(cluster: Cluster, node: str, other: str) -> float:
    """Bytes a second of the link between two nodes; zero where none is known."""
    link = cluster.link(node, other)
    return link.bytes_per_second if link is not None else 0.0


class Room:
    """What is free now on every node of a cluster.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,), cores=2)
    >>> room = Room(Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=3))
    >>> devices = room.take(option, nodes=room.fullest(option))
    >>> devices, room.fullest(option), room.idle
    ((0, 1), None, {'cpu': 1})
    >>> room.give(option, devices)
    >>> room.fullest(option)
    (0,)
    """

    def __init__(self, cluster: Cluster, *, running: Iterable[Placement] = ()) -> None:
        numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
        self._cluster = cluster
        self._number_of = {device.name: number for number, device in enumerate(cluster.devices)}
        self._kind_of = [device.kind for device in cluster.devices]
        #: The number of each device's node.
        self.node_of = [numbers[device.node] for device in cluster.devices]
        self._gone: set[int] = set()
        # Free devices by kind and node, in ascending order: there are few on a node, so lists are faster than heaps.
        self._free: dict[str, list[list[int]]] = {kind.name: [[] for _ in cluster.nodes] for kind in cluster.kinds}
        for number, kind in enumerate(self._kind_of):
            self._free[kind][self.node_of[number]].append(number)
        #: Free devices of each kind, whether or not one node has enough of them for anything.
        self.idle = {kind: sum(map(len, nodes)) for kind, nodes in self._free.items()}
        sizes = [shared_sizes(node) for node in cluster.nodes]
        self._host_bytes = [size[0] for size in sizes]
        self._disk_bytes = [size[1] for size in sizes]
        self._cores = [size[2] for size in sizes]
        #: Bytes a second that gangs over several nodes have of a node's port.
        self._port_drawn = defaultdict[int, float](float)
        for placement in running:
            self.occupy(placement.option, self.numbers(placement.devices))

    def copy(self) -> "Room":
        """The same, to be taken from without touching this."""
        other = Room.__new__(Room)
        other._cluster, other._port_drawn = self._cluster, self._port_drawn.copy()
        other._number_of, other._kind_of, other.node_of = self._number_of, self._kind_of, self.node_of
        other._gone, other.idle = set(self._gone), dict(self.idle)
        other._free = {kind: [list(free) for free in nodes] for kind, nodes in self._free.items()}
        other._host_bytes, other._disk_bytes = list(self._host_bytes), list(self._disk_bytes)
        other._cores = list(self._cores)
        return other

    def numbers(self, devices: Iterable[str]) -> tuple[int, ...]:
        """The numbers of devices given by name."""
        return tuple([self._number_of[name] for name in devices])

    def free(self, kind: str) -> list[int]:
        """The free devices of a kind, in the cluster's order."""
        return sorted(device for devices in self._free[kind] for device in devices)

    def count_free(self, kind: str, node: int) -> int:
        """How many devices of a kind are free on a node."""
        return len(self._free[kind][node])

    def free_together(self, kind: str, count: int, nodes: int = 1) -> tuple[int, ...] | None:
        """So many free devices of a kind on nodes that have as many each, whatever else is left there, on the first or,
        of several, those that are linked best; or None."""
        each = count // nodes
        able = {number: free[:each] for number, free in enumerate(self._free[kind]) if len(free) >= each}
        if len(able) < nodes:
            return None
        chosen = self._linked_best(list(able), nodes) if nodes > 1 else list(able)[:1]
        return tuple(device for number in chosen for device in able[number])

    def _linked_best(self, nodes: Sequence[int], count: int) -> tuple[int, ...]:
        pairs = itertools.combinations([self._cluster.nodes[number].name for number in nodes], 2)
        rates = sorted({link_rate(self._cluster, *pair) for pair in pairs}, reverse=True)
        return next(found for rate in rates if (found := self._find_linked(nodes, count, rate)))

    def _find_linked(self, nodes: Sequence[int], count: int, bytes_per_second: float) -> tuple[int, ...]:
        """As `find_linked`, by numbers."""
        numbers = {self._cluster.nodes[number].name: number for number in sorted(nodes)}
        found = find_linked(self._cluster, list(numbers), count, bytes_per_second=bytes_per_second)
        return tuple([numbers[name] for name in found])

    def holds(self, option: Option, node: int) -> bool:
        """Whether a node has enough of everything for an option now, or for its share of one over several nodes. What
        an option does not need cannot stop it, even where something that runs has more of it than there is."""
        count = option.count_on_node if option.knobs else option.count
        return len(self._free[option.kind][node]) >= count and self._is_left(option, node)

    def fits(self, option: Option, devices: Sequence[int]) -> bool:
        """Whether these very devices are free and their nodes have the rest of what an option needs."""
        for device in devices:
            if device not in self._free[option.kind][self.node_of[device]]:
                return False
        nodes = self._nodes(option, devices)
        return all(self._is_left(option, node) for node in nodes) and self._are_linked(option, nodes)

    def _are_linked(self, option: Option, nodes: Iterable[int]) -> bool:
        least = option.link_bytes_per_second
        names = [self._cluster.nodes[node].name for node in nodes] if least else ()
        return all(link_rate(self._cluster, *pair) >= least for pair in itertools.combinations(names, 2))

    def fullest(self, option: Option) -> tuple[int, ...] | None:
        """The node with the fewest free devices that holds an option, so that wide ones find room on others, or as many
        such nodes as it goes over; None where they are too few."""
        if self.idle[option.kind] < option.count:
            return None
        count = option.count_on_node
        able: list[tuple[int, ...]] = [
            (len(devices), node)
            for node, devices in enumerate(self._free[option.kind])
            if len(devices) >= count and self._is_left(option, node)
        ]
        return self._first(able, option)

    def _first(self, able: list[tuple[int, ...]], option: Option) -> tuple[int, ...] | None:
        """The nodes that come last in the first of these tuples, as many as an option goes over, which must be linked
        as well as it was promised; None where there are too few."""
        count = option.nodes
        if len(able) < count:
            return None
        if count == 1:
            return (min(able)[-1],)
        if option.link_bytes_per_second:
            return self._find_linked([each[-1] for each in able], count, option.link_bytes_per_second) or None
        return tuple([each[-1] for each in heapq.nsmallest(count, able)])

    def take(self, option: Option, *, nodes: Sequence[int]) -> tuple[int, ...]:
        """Start an option on nodes that hold it: the devices it got, node by node, lowest numbers first."""
        count, devices = option.count_on_node, tuple[int, ...]()
        for node in sorted(nodes):
            free = self._free[option.kind][node]
            devices += tuple(free[:count])
            del free[:count]
            self._draw(option, node, 1)
        self.idle[option.kind] -= len(devices)
        return devices

    def take_these(self, option: Option, devices: Sequence[int]) -> bool:
        """Start an option on these very devices, if it fits there: whether it did."""
        if not self.fits(option, devices):
            return False
        self.occupy(option, devices)
        return True

    def occupy(self, option: Option | None, devices: Sequence[int]) -> None:
        """Take these very devices and what else an option needs, whether or not there is room; without an option the
        devices alone."""
        for device in devices:
            kind = self._kind_of[device]
            free = self._free[kind][self.node_of[device]]
            if device in free:
                free.remove(device)
                self.idle[kind] -= 1
        if option is not None:
            for node in self._nodes(option, devices):
                self._draw(option, node, 1)

    def give(self, option: Option | None, devices: Sequence[int]) -> None:
        """Give back what was taken; devices that have been withdrawn since stay away."""
        for device in devices:
            self._free_again(device)
        if option is not None:
            for node in self._nodes(option, devices):
                self._draw(option, node, -1)

    def withdraw(self, devices: Iterable[int]) -> None:
        """These devices are gone: nothing is placed on them until they are restored."""
        devices = tuple(devices)
        self._gone.update(devices)
        self.occupy(None, devices)

    def withdrawn(self) -> tuple[int, ...]:
        """The devices that are gone."""
        return tuple(self._gone)

    def restore(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Those of these devices that had been withdrawn are back, and free: which they are."""
        back = tuple(device for device in devices if device in self._gone)
        self._gone.difference_update(back)
        self.give(None, back)
        return back

    def _free_again(self, device: int) -> None:
        kind = self._kind_of[device]
        free = self._free[kind][self.node_of[device]]
        if device not in free and device not in self._gone:
            bisect.insort(free, device)
            self.idle[kind] += 1

    def _nodes(self, option: Option, devices: Sequence[int]) -> Iterable[int]:
        """The nodes from which an option on these devices draws."""
        return (self.node_of[devices[0]],) if option.nodes == 1 else {self.node_of[device] for device in devices}

    def _is_left(self, option: Option, node: int) -> bool:
        host_bytes, disk_bytes, cores = _own_needs(option)
        return (
            (self._host_bytes[node] >= host_bytes or not host_bytes)
            and (self._cores[node] >= cores or not cores)
            and (self._disk_bytes[node] >= disk_bytes or not disk_bytes)
            and (not option.link_bytes_per_second or self._has_port(option, node))
        )

    def _has_port(self, option: Option, node: int) -> bool:
        """Whether a node's port carries what an option was promised of it, beside what others were."""
        most = self._cluster.port(self._cluster.nodes[node].name)
        return self._port_drawn[node] + option.link_bytes_per_second <= most

    def _draw(self, option: Option, node: int, sign: int) -> None:
        host_bytes, disk_bytes, cores = _own_needs(option)
        if host_bytes:
            self._host_bytes[node] -= sign * host_bytes
        if disk_bytes:
            self._disk_bytes[node] -= sign * disk_bytes
        if cores:
            self._cores[node] -= sign * cores
        if option.link_bytes_per_second:
            self._port_drawn[node] += sign * option.link_bytes_per_second


class RoomForOptions:
    """Room for a fixed list of options that is asked ten thousand times, as list schedules do: each option remembers
    the nodes that may hold it, so that a start looks at few of them. Options go by their numbers.

    An option is *shut* after `find` found no node for it, until `give` frees what it needs: nothing else can make room,
    so a planner need not ask for it again before.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,), cores=2)
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=3)
    >>> room = RoomForOptions(cluster, options=[option])
    >>> devices = room.take(0, nodes=room.find(0))
    >>> devices, room.find(0), room.give(option, devices=devices)
    ((0, 1), None, [0])
    """

    def __init__(self, cluster: Cluster, *, options: Sequence[Option]) -> None:
        self._room, self._options = Room(cluster), options
        #: Free devices of each kind.
        self.idle = self._room.idle
        # Nodes that may hold an option, at first those that do when empty: `find` drops those that do not now,
        # `give` puts them back.
        nodes = range(len(cluster.nodes))
        self._maybe = [dict.fromkeys(node for node in nodes if self._room.holds(option, node)) for option in options]
        self._shut = [False] * len(options)
        self._options_on: list[list[tuple[int, str, int, int, int, int]]] = [[] for _ in nodes]
        for number, option in enumerate(options):
            for node in self._maybe[number]:
                self._options_on[node].append((number, option.kind, option.count_on_node, *shared_needs(option)))
        self._wanted = [len(held) for held in self._options_on]

    def find(self, number: int) -> tuple[int, ...] | None:
        """The node that holds this option now and is wanted least for others, or as many as it goes over; None where
        there are too few.

        Wanted least: one that holds the fewest options even when empty, then one with the fewest devices left over.
        """
        option, wanted = self._options[number], self._wanted
        free, maybe = self._room._free[option.kind], self._maybe[number]
        able: list[tuple[int, ...]] = []
        for node in list(maybe):
            if self._room.holds(option, node):
                able.append((wanted[node], len(free[node]), node))
            else:
                del maybe[node]
        best = self._room._first(able, option)
        self._shut[number] = best is None
        return best

    def take(self, number: int, *, nodes: Sequence[int]) -> tuple[int, ...]:
        """Start the option on nodes that `find` gave: the devices it got, node by node, lowest numbers first."""
        return self._room.take(self._options[number], nodes=nodes)

    def occupy(self, placement: Placement) -> tuple[int, ...]:
        """Take what a placement that is under way holds, whether or not there is room: its devices."""
        devices = tuple(sorted(self._room.numbers(placement.devices)))
        self._room.occupy(placement.option, devices)
        return devices

    def give(self, option: Option, *, devices: tuple[int, ...]) -> list[int]:
        """End an option on these devices: the numbers of the options that were shut and are no longer."""
        self._room.give(option, devices)
        return [number for node in self._room._nodes(option, devices) for number in self._reopen(node)]

    def _reopen(self, node: int) -> list[int]:
        # Large problems spend most of their time in this loop, so it tests what `Room.holds` does without calls.
        opened, shut, maybe, room = [], self._shut, self._maybe, self._room
        free = {kind: len(nodes[node]) for kind, nodes in room._free.items()}
        host_bytes, disk_bytes = max(0, room._host_bytes[node]), max(0, room._disk_bytes[node])
        cores = max(0, room._cores[node])
        for number, kind, count, needs_host, needs_disk, needs_cores in self._options_on[node]:
            if count > free[kind] or needs_host > host_bytes or needs_cores > cores or needs_disk > disk_bytes:
                continue
            maybe[number][node] = None
            if shut[number]:
                shut[number] = False
                opened.append(number)
        return opened
