"""What is free on each node while a round is being placed. A handle; knows devices and pools, not time or turns.

`capacity` does the same for a schedule in which things end and start; here nothing ends, gangs want their
own devices back, and a whole kind may be laid out anew.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from dovetail.vocabulary import Cluster, Option, Placement


class Nodes:
    """Free devices by kind and node, and what is left of the nodes' memory, disk and cores.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,))
    >>> nodes = Nodes(Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=3))
    >>> nodes.take(option), nodes.take(option), nodes.idle
    (('n0:0', 'n0:1'), None, {'cpu': 1})
    """

    def __init__(self, cluster: Cluster, *, running: Iterable[Placement] = ()) -> None:
        self._cluster = cluster
        self._free: dict[str, dict[str, dict[str, None]]] = {kind.name: {} for kind in cluster.kinds}
        self.idle = {kind.name: 0 for kind in cluster.kinds}
        self._node_of = {device.name: device.node for device in cluster.devices}
        for device in cluster.devices:
            self._free[device.kind].setdefault(device.node, {})[device.name] = None
            self.idle[device.kind] += 1
        # What gangs draw from a node, besides devices, is seldom much; only nodes that give any are listed.
        self._drawn: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for placement in running:
            self._draw(placement.option, placement.devices)

    def copy(self) -> "Nodes":
        """The same, to be taken from without touching this."""
        other = Nodes.__new__(Nodes)
        other._cluster, other.idle, other._node_of = self._cluster, dict(self.idle), self._node_of
        other._free = {kind: {node: dict(free) for node, free in nodes.items()} for kind, nodes in self._free.items()}
        other._drawn = defaultdict(lambda: [0, 0, 0], {node: list(drawn) for node, drawn in self._drawn.items()})
        return other

    def take(self, option: Option) -> tuple[str, ...] | None:
        """Devices on the node with the fewest free ones that holds the option, or None where none does."""
        if self.idle[option.kind] < option.count:
            return None
        best: str | None = None
        free = self._free[option.kind]
        for node, devices in free.items():
            fuller = len(devices) >= option.count and (best is None or len(devices) < len(free[best]))
            if fuller and self._holds(option, node):
                best = node
                if len(devices) == option.count:
                    break
        if best is None:
            return None
        found = iter(free[best])
        taken = tuple([next(found) for _ in range(option.count)])
        self._draw(option, taken)
        return taken

    def take_these(self, option: Option, devices: tuple[str, ...]) -> bool:
        """Take the very devices that a gang had, if they are free and their node holds it."""
        node = self._node_of[devices[0]]
        free = self._free[option.kind].get(node, {})
        for device in devices:
            if device not in free:
                return False
        if option.host_bytes or option.disk_bytes or option.cores:
            if not self._holds(option, node):
                return False
            self._draw(option, devices)
            return True
        for device in devices:
            del free[device]
        self.idle[option.kind] -= len(devices)
        return True

    def give(self, option: Option, devices: tuple[str, ...]) -> None:
        """Undo a `take`."""
        self._draw(option, devices, sign=-1)

    def _holds(self, option: Option, node: str) -> bool:
        if not (option.host_bytes or option.disk_bytes or option.cores):
            return True
        host, disk, cores = self._drawn[node]
        size = self._cluster.node(node)
        return (
            host + option.host_bytes <= size.memory_bytes
            and disk + option.disk_bytes <= (size.disk_bytes or math.inf)
            and cores + option.cores <= size.cores
        )

    def _draw(self, option: Option, devices: tuple[str, ...], *, sign: int = 1) -> None:
        node = self._node_of[devices[0]]
        free = self._free[option.kind].setdefault(node, {})
        for device in devices:
            if sign > 0:
                free.pop(device, None)
            else:
                free[device] = None
        self.idle[option.kind] -= sign * len(devices)
        if option.host_bytes or option.disk_bytes or option.cores:
            drawn = self._drawn[node]
            drawn[0] += sign * option.host_bytes
            drawn[1] += sign * option.disk_bytes
            drawn[2] += sign * option.cores
