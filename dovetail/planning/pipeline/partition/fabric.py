"""Devices in a row, the links at each level between them, and what a stage on some of them pays for traffic.

A *level* joins units of the one below: level 1 the devices of a node, level 2 nodes, and so on. Each unit has one
port of the level's rate. Traffic is charged to ports, by the same rule at every level:

- m replicas add up their gradients along a ring, as collective libraries do, in which a unit's are neighbours: each
  port on it passes (m−1)/m of the parameter bytes, out and in, once for summing and once for handing on.
- At a cut, a port passes the share of the stage's microbatches that go through it: that of the replicas behind it, or,
  where the cut lies inside a unit, that of the replicas outside it.

One stage's traffic is not added to another's here, which the search for stages cannot do: what all of them put on a
port is in `ports`. Knows no graphs.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dovetail.planning.links import links_between, network_rate, ring_share
from dovetail.vocabulary import Cluster, InvalidRecord, Link

# For what nobody measured, low on purpose: sockets between the processes of one host.
_NODE_BYTES_PER_SECOND = 1e9
# Rows tried where kinds are unlike: all orders of up to so many kinds.
_KINDS_PERMUTED = 3
WAYS = 2
"""What a port sends and what it receives share its rate."""
# Nodes take turns in 2 to the power of one fewer ways.
_NODES_DEALT = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One device of a fabric: `address` names its units, outermost first, and `memory_bytes` zero means no limit."""

    name: str
    kind: str
    memory_bytes: int = 0
    address: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Places in a row, in which stages take neighbours, and each level's rate, innermost first.

    >>> fabric = Fabric.uniform(sizes=(4, 2), bytes_per_second=(12e9, 1e9))
    >>> [place.name for place in fabric.places][3:5], fabric.places[4].address
    (['0:3', '1:0'], ('1',))
    """

    places: tuple[Place, ...]
    bytes_per_second: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.places or any(len(place.address) + 1 != len(self.bytes_per_second) for place in self.places):
            raise InvalidRecord(
                f"a fabric must have places, each with one unit fewer in its address than there are levels "
                f"({len(self.bytes_per_second)}), got {[len(place.address) for place in self.places][:8]}."
            )
        if not all(rate > 0 for rate in self.bytes_per_second):
            raise InvalidRecord(f"every level must move some bytes per second, got {self.bytes_per_second}.")

    @staticmethod
    def uniform(
        *, sizes: Sequence[int], bytes_per_second: Sequence[float], kind: str = "device", memory_bytes: int = 0
    ) -> "Fabric":
        """Equal devices: `sizes` of each level, innermost first."""
        units = itertools.product(*(range(size) for size in reversed(sizes)))
        return Fabric(
            places=tuple(
                Place(
                    name=":".join(map(str, path)),
                    kind=kind,
                    memory_bytes=memory_bytes,
                    address=tuple(map(str, path[:-1])),
                )
                for path in units
            ),
            bytes_per_second=tuple(bytes_per_second),
        )

    @staticmethod
    def of(cluster: Cluster, *, devices: Sequence[str] = ()) -> "Fabric":
        """The cluster's devices, or those named, node by node, with the slowest measured link of each level: between
        nodes, of those between these nodes.

        >>> from dovetail.vocabulary import Kind
        >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2, devices_per_node=2)
        >>> Fabric.of(cluster).bytes_per_second
        (1000000000.0, 125000000.0)
        """
        taken = [device for device in cluster.devices if not devices or device.name in set(devices)]
        order = {node.name: n for n, node in enumerate(cluster.nodes)}
        taken.sort(key=lambda device: (order[device.node], device.index))
        several = len({device.node for device in taken}) > 1
        nodes = list(dict.fromkeys(device.node for device in taken))
        between = network_rate(links_between(cluster, nodes))
        rates = _node_rate(cluster.links, {device.kind for device in taken}), between
        return Fabric(
            places=tuple(
                Place(
                    name=device.name,
                    kind=device.kind,
                    memory_bytes=cluster.kind(device.kind).memory_bytes,
                    address=(device.node,) if several else (),
                )
                for device in taken
            ),
            bytes_per_second=rates if several else rates[:1],
        )

    def rows(self) -> Iterator["Fabric"]:
        """The rows worth trying: this one, and for unlike kinds those with the kinds one after another."""
        yield self
        kinds = list(dict.fromkeys(place.kind for place in self.places))
        if 1 < len(kinds) <= _KINDS_PERMUTED:
            for order in itertools.permutations(kinds):
                row = tuple(sorted(self.places, key=lambda place: order.index(place.kind)))
                if row != self.places:
                    yield dataclasses.replace(self, places=row)

    def dealt(self) -> Iterator["Fabric"]:
        """The rows in which the devices of neighbouring nodes take turns: stages there have as many in each of these
        nodes, so that each node runs a copy of their part of the pipeline, and other nodes another part.

        >>> fabric = Fabric.uniform(sizes=(2, 3), bytes_per_second=(2.0, 1.0))
        >>> [" ".join(place.name for place in row.places) for row in fabric.dealt()]
        ['0:0 0:1 1:0 2:0 1:1 2:1', '0:0 1:0 0:1 1:1 2:0 2:1']
        """
        nodes = [list(group) for _, group in itertools.groupby(self.places, key=lambda place: place.address)]
        shapes = {tuple((place.kind, place.memory_bytes) for place in node) for node in nodes}
        if len(shapes) > 1 or not 2 < len(nodes) <= _NODES_DEALT:
            return
        for ends in itertools.product((True, False), repeat=len(nodes) - 1):
            if all(ends) or not any(ends):
                continue  # no turns at all, or copies of the whole pipeline
            row: list[Place] = []
            block: list[list[Place]] = []
            for node, ends_here in zip(nodes, (*ends, True), strict=True):
                block.append(node)
                if ends_here:
                    row += [place for turn in zip(*block, strict=True) for place in turn]
                    block = []
            yield dataclasses.replace(self, places=tuple(row))

    def copies(self) -> Iterator[int]:
        """Into how many equal parts the row may be divided, each to run the whole pipeline: whole units, all alike."""
        yield 1
        if len(self.bytes_per_second) > 1:
            yield from (w for w in range(2, len(self.places) // 2 + 1) if self._divides_into(w))

    def _divides_into(self, copies: int) -> bool:
        size, rest = divmod(len(self.places), copies)
        kinds = [(place.kind, place.memory_bytes) for place in self.places]
        if rest or any(kinds[n] != kinds[n % size] for n in range(len(kinds))):
            return False
        nodes = [place.address for place in self.places]
        # A part is made of whole nodes, or a node of whole parts.
        return all(
            nodes[part - 1] != nodes[part] or len(set(nodes[part - size : part + size])) == 1
            for part in range(size, len(nodes), size)
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a stage on its replicas pays at each level, innermost first, by the busiest of its ports there: seconds for
    each byte of parameters in one summing of gradients, and for each byte that crosses the cut before it and the one
    after it, there and back, for one microbatch."""

    replicas: int
    sync: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def sync_per_byte(self) -> float:
        """How long a sum takes for each byte: a ring is as fast as the slowest level that it passes."""
        return max(self.sync)


def traffic(fabric: Fabric, *, first: int, width: int, copies: int = 1) -> Traffic:
    """What a stage pays on `width` neighbours from place `first` on, in each of `copies` equal parts of the row. What a
    port sends and what it receives share its rate.

    >>> fabric = Fabric.uniform(sizes=(4, 4), bytes_per_second=(12e9, 1e9))
    >>> inside, across = (traffic(fabric, first=0, width=width) for width in (4, 8))
    >>> round(inside.sync_per_byte * 12e9, 3), round(across.sync_per_byte * 1e9, 3)  # 4·3/4 and 4·7/8
    (3.0, 3.5)
    """
    size = len(fabric.places) // copies
    own = range(first, first + width)
    everywhere = [fabric.places[part * size + n].address for part in range(copies) for n in own]
    rates, share = fabric.bytes_per_second, WAYS * ring_share(width * copies)
    sync = (share / rate if units > 1 else 0.0 for units, rate in zip(_units(everywhere), rates, strict=True))
    none = (0.0,) * len(rates)
    before, after = (
        tuple(each / copies for each in _crossing(fabric, own, edge)) if 0 < edge < size else none
        for edge in (first, first + width)
    )
    return Traffic(replicas=width * copies, sync=tuple(sync), before=before, after=after)


def _units(addresses: Sequence[tuple[str, ...]]) -> Iterator[int]:
    """For each level, innermost first, among how many units of one parent replicas are spread, at most."""
    paths: list[tuple[str, ...]] = [(*address, str(n)) for n, address in enumerate(addresses)]
    for _ in range(len(paths[0])):
        yield max(Counter(path[:-1] for path in set(paths)).values())
        paths = [path[:-1] for path in paths]


def _crossing(fabric: Fabric, own: range, edge: int) -> Iterator[float]:
    """At each level the seconds for each byte that crosses the edge between places `edge - 1` and `edge`, by the
    busiest of the stage's ports."""
    yield WAYS / (len(own) * fabric.bytes_per_second[0])
    for level, rate in enumerate(fabric.bytes_per_second[1:], start=1):
        depth = len(fabric.bytes_per_second) - level
        units = Counter(fabric.places[n].address[:depth] for n in own)
        left, right = (fabric.places[n].address[:depth] for n in (edge - 1, edge))
        stays = _stays(fabric, units, edge, is_before=edge == own.start, depth=depth)
        share = 0 if stays else (len(own) - units[left]) if left == right else max(units.values())
        yield WAYS * share / len(own) / rate


def _stays(fabric: Fabric, units: "Counter[tuple[str, ...]]", edge: int, *, is_before: bool, depth: int) -> bool:
    """Whether microbatches stay in their unit across an edge, since the stages on both sides take turns in the same."""
    start = edge - len(units) if is_before else edge
    if len(set(units.values())) > 1 or start < 0 or start + len(units) > len(fabric.places):
        return False
    return {place.address[:depth] for place in fabric.places[start : start + len(units)]} == units.keys()


def _node_rate(links: Sequence[Link], kinds: set[str]) -> float:
    ends = kinds | {"process"}
    inside = (each for each in links if not each.between_nodes and {each.source, each.target} <= ends)
    return min((each.bytes_per_second for each in inside), default=_NODE_BYTES_PER_SECOND)


def memory_bytes(fabric: Fabric, places: Mapping[int, int] | Sequence[int]) -> int:
    """The least memory among places that have a limit; zero where none has.

    >>> memory_bytes(Fabric.uniform(sizes=(2,), bytes_per_second=(1e9,), memory_bytes=8), [0, 1])
    8
    """
    return min((fabric.places[n].memory_bytes for n in places if fabric.places[n].memory_bytes), default=0)
