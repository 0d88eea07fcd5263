"""What stages put on each port for one microbatch, whoever else does: what is sent over a cut, and what is summed.

A stage alone says too little: along a row several stages share a node's port, a stage in the middle has a cut on either
side, and gradients pass where activations do. Here every microbatch is followed from replica to replica, in turn as
they take them, until they come round to where they began; and each sum of gradients goes once around a ring of its
replicas, in which a unit's are neighbours. Knows places and bytes, no layers. Works on arrays, as the search does.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.planning.links import ring_share
from dovetail.planning.pipeline.partition.fabric import WAYS, Fabric

Array = np.ndarray[Any, np.dtype[np.float64]]
Unit = tuple[str, ...]


class Ports:
    """The ports of a row in `copies` equal parts: those of its devices, named by their address and their own name, and
    of the units above them, by their address. What is asked for once is remembered.

    >>> ports = Ports(Fabric.uniform(sizes=(2, 2), bytes_per_second=(8.0, 1.0)))
    >>> sent = dict(zip(ports.units, 3 * ports.crossing(0, 2, 2), strict=True))  # three bytes from node to node
    >>> float(sent["0",]), float(sent["0", "0:0"])
    (6.0, 0.375)
    """

    def __init__(self, fabric: Fabric, *, copies: int = 1) -> None:
        self._size, self._copies = len(fabric.places) // copies, copies
        deepest = len(fabric.bytes_per_second)
        self._levels = [
            ([(*place.address, place.name)[: deepest - level] for place in fabric.places], rate)
            for level, rate in enumerate(fabric.bytes_per_second)
        ]
        self.units: tuple[Unit, ...] = tuple(dict.fromkeys(unit for units, _ in self._levels for unit in units))
        self._known: dict[tuple[int, ...], Array] = {}

    def crossing(self, first: int, width: int, following: int) -> Array:
        """How long each port is busy for each byte of a microbatch that crosses, there and back, from a stage on
        `width` places from `first` on to the next, on `following`."""
        key = first, width, following
        if key not in self._known:
            ways = list(self._ways(self._replicas(first, width), self._replicas(first + width, following)))
            seconds = defaultdict[Unit, float](float)
            for units, rate in self._levels:
                for source, target in ways:
                    if units[source] != units[target]:
                        seconds[units[source]] += WAYS / len(ways) / rate
                        seconds[units[target]] += WAYS / len(ways) / rate
            self._known[key] = self._in_order(seconds)
        return self._known[key]

    def summing(self, first: int, width: int) -> Array:
        """How long each port is busy for each byte that the replicas of a stage there sum."""
        key = first, width
        if key not in self._known:
            replicas = [n for copy in self._replicas(first, width) for n in copy]
            seconds = defaultdict[Unit, float](float)
            for units, rate in self._levels:
                ring = {units[n] for n in replicas}
                seconds |= {unit: WAYS * ring_share(len(replicas)) / rate for unit in ring if len(ring) > 1}
            self._known[key] = self._in_order(seconds)
        return self._known[key]

    def _in_order(self, seconds: Mapping[Unit, float]) -> Array:
        return np.array([seconds.get(unit, 0.0) for unit in self.units], dtype=np.float64)

    def _replicas(self, first: int, width: int) -> list[range]:
        """The places of a stage in each copy."""
        starts = [copy * self._size + first for copy in range(self._copies)]
        return [range(start, start + width) for start in starts]

    def _ways(self, sources: Sequence[range], targets: Sequence[range]) -> Iterator[tuple[int, int]]:
        """From which place to which the microbatches go, until all begins again."""
        wide, following = len(sources[0]), len(targets[0])
        for number in range(self._copies * math.lcm(wide, following)):
            copy, turn = number % self._copies, number // self._copies
            yield sources[copy][turn % wide], targets[copy][turn % following]
