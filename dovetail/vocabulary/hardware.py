"""Devices, their kinds, their hosts, and the links between them."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.records import FrozenDict


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of device. Rates are measured, or stated by the vendor; zero means not known yet.

    `memory_bytes` is what one device holds; a CPU core's memory is its node's, so it is zero there
    and options on it count host bytes instead. Where it is `limited`, that is less than the device has, because a
    user asked for it, and workers must keep within it. `mps` says that processes can compute on one device at the same
    moment, by NVIDIA's Multi-Process Service, instead of taking turns.

    >>> Kind(name="cpu", processor="cpu").memory_bytes
    0
    """

    name: str
    processor: str
    memory_bytes: int = 0
    matrix_flops_per_second: float = 0.0
    memory_bytes_per_second: float = 0.0
    price_per_hour: float = 0.0
    limited: bool = False
    mps: bool = False

    def __post_init__(self) -> None:
        if self.processor not in ("cpu", "cuda"):
            raise InvalidRecord(f"a kind's processor must be 'cpu' or 'cuda', got {self.processor!r}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator or one CPU core: `index` is its number on its node.

    >>> Device(name="n0:1", kind="cpu", node="n0", index=1).name
    'n0:1'
    """

    name: str
    kind: str
    node: str
    index: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host: what its devices share.

    `update_parameters_per_second` is how many parameters all its cores update with AdamW; zero means not known yet.
    `labels` are what whoever started it says of it, by name.

    >>> Node(name="n0", cores=2, memory_bytes=8 << 30).cores
    2
    """

    name: str
    cores: int
    memory_bytes: int
    disk_bytes: int = 0
    update_parameters_per_second: float = 0.0
    labels: Mapping[str, str] = FrozenDict()

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", FrozenDict(self.labels))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How fast bytes move between two ends, each `host`, `process`, or a kind, on one node or between nodes; or, where
    both ends are names of nodes, between these two. It was measured at `measured_seconds` since 1970; zero: not known.

    >>> Link(source="host", target="h200", bytes_per_second=55e9).latency_seconds
    0.0
    """

    source: str
    target: str
    bytes_per_second: float
    latency_seconds: float = 0.0
    between_nodes: bool = False
    measured_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """All devices at hand.

    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2, devices_per_node=4)
    >>> len(cluster.devices), cluster.of_kind("cpu")[5].name
    (8, 'n1:1')
    """

    kinds: tuple[Kind, ...]
    nodes: tuple[Node, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if len({device.name for device in self.devices}) != len(self.devices):
            raise InvalidRecord("devices of a cluster must have names of their own; two share one.")
        kinds, nodes = {kind.name for kind in self.kinds}, {node.name for node in self.nodes}
        for device in self.devices:
            if device.kind not in kinds or device.node not in nodes:
                raise InvalidRecord(
                    f"device {device.name!r} must be of a kind and on a node of its cluster; "
                    f"found kind {device.kind!r} of {sorted(kinds)}, node {device.node!r} of {len(nodes)}."
                )

    @staticmethod
    def uniform(
        kind: Kind, *, nodes: int = 1, devices_per_node: int = 1, cores: int = 0, memory_bytes: int = 64 << 30
    ) -> "Cluster":
        """`nodes` equal hosts with `devices_per_node` devices of one kind.

        >>> Cluster.uniform(Kind(name="v100", processor="cuda"), devices_per_node=8).count("v100")
        8
        """
        return Cluster(
            kinds=(kind,),
            nodes=tuple(
                Node(name=f"n{n}", cores=cores or devices_per_node, memory_bytes=memory_bytes) for n in range(nodes)
            ),
            devices=tuple(
                Device(name=f"n{n}:{d}", kind=kind.name, node=f"n{n}", index=d)
                for n in range(nodes)
                for d in range(devices_per_node)
            ),
        )

    def without(self, devices: Iterable[str]) -> "Cluster":
        """What is left of it without some devices.

        >>> Cluster.uniform(Kind(name="v100", processor="cuda"), devices_per_node=8).without(["n0:3"]).count("v100")
        7
        """
        gone = set(devices)
        return dataclasses.replace(self, devices=tuple(each for each in self.devices if each.name not in gone))

    def part(self, nodes: Iterable[str]) -> "Cluster":
        """Some of its nodes as a cluster of their own.

        >>> Cluster.uniform(Kind(name="v100", processor="cuda"), nodes=3).part(["n1"]).devices[0].name
        'n1:0'
        """
        names = set(nodes)
        devices = tuple(device for device in self.devices if device.node in names)
        kinds = {device.kind for device in devices}
        return Cluster(
            kinds=tuple(kind for kind in self.kinds if kind.name in kinds),
            nodes=tuple(node for node in self.nodes if node.name in names),
            devices=devices,
            links=self.links,
        )

    def joined_by(self, other: "Cluster") -> "Cluster":
        """It and nodes that are not in it yet, after its own; of a kind or a link that both have, what is known here.

        >>> kind = Kind(name="v100", processor="cuda")
        >>> Cluster.uniform(kind).joined_by(Cluster.uniform(kind, nodes=2)).count("v100")
        2
        """
        kinds, nodes = {kind.name for kind in self.kinds}, {node.name for node in self.nodes}
        new = tuple(node for node in other.nodes if node.name not in nodes)
        names = {node.name for node in new}
        links = {(link.source, link.target, link.between_nodes): link for link in (*other.links, *self.links)}
        return Cluster(
            kinds=(*self.kinds, *(kind for kind in other.kinds if kind.name not in kinds)),
            nodes=(*self.nodes, *new),
            devices=(*self.devices, *(device for device in other.devices if device.node in names)),
            links=tuple(links.values()),
        )

    def limit_memory(self, device_bytes: int) -> "Cluster":
        """The same with accelerators that have no more memory than this.

        Such a device is a kind of its own, with a name of its own: what was measured or did not fit on it says
        nothing about the whole device, and the other way round.

        >>> kind = Kind(name="h200", processor="cuda", memory_bytes=141 << 30)
        >>> Cluster.uniform(kind).limit_memory(24 << 30).kinds[0].name
        'h200-24GiB'
        """
        accelerators = [kind for kind in self.kinds if kind.processor != "cpu"]
        if not accelerators:
            raise InvalidRecord(
                f"device memory can be limited for accelerators only; this cluster has none, but "
                f"{', '.join(kind.name for kind in self.kinds)}. Leave out --device-memory, in Python device_memory=."
            )
        large = [kind for kind in accelerators if not 0 < kind.memory_bytes <= device_bytes]
        names = {kind.name: f"{kind.name}-{device_bytes / 2**30:.4g}GiB" for kind in large}
        return Cluster(
            kinds=tuple(
                dataclasses.replace(kind, name=names[kind.name], memory_bytes=device_bytes, limited=True)
                if kind.name in names
                else kind
                for kind in self.kinds
            ),
            nodes=self.nodes,
            devices=tuple(dataclasses.replace(each, kind=names.get(each.kind, each.kind)) for each in self.devices),
            links=tuple(
                dataclasses.replace(
                    link, source=names.get(link.source, link.source), target=names.get(link.target, link.target)
                )
                for link in self.links
            ),
        )

    def count(self, kind: str) -> int:
        """How many devices there are of a kind."""
        return len(self.of_kind(kind))

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The devices of a kind, in cluster order."""
        return self._by_kind.get(kind, ())

    def kind(self, name: str) -> Kind:
        """The kind of that name."""
        return self._kinds[name]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return self._nodes[name]

    def device(self, name: str) -> Device:
        """The device of that name."""
        return self._devices[name]

    def link(self, node: str, other: str) -> Link | None:
        """The link between two nodes: as it was measured; or the slowest of those that were stated for any two nodes;
        or, where others of both nodes were measured, the slower of what these two have at the median, since each end
        has one port for all; or else the slowest that was measured. None where none was.

        >>> links = tuple(Link(source=a, target=b, bytes_per_second=rate, between_nodes=True)
        ...               for a, b, rate in (("n0", "n1", 9e8), ("n1", "n2", 3e8)))
        >>> cluster = dataclasses.replace(Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=3), links=links)
        >>> cluster.link("n1", "n0").bytes_per_second, cluster.link("n2", "n0").bytes_per_second
        (900000000.0, 300000000.0)
        """
        return self._pairs.get((node, other)) or self._foresee(node, other)

    def port(self, node: str) -> float:
        """Bytes a second that a node's port carries: those of the fastest of its links; infinite where none is known.

        >>> Cluster.uniform(Kind(name="cpu", processor="cpu")).port("n0")
        inf
        """
        own = self._ends.get(node, ())
        rates = [link.bytes_per_second for link in (*own, self._elsewhere) if link is not None]
        return max(rates, default=math.inf)

    def _foresee(self, node: str, other: str) -> Link | None:
        ends = [self._ends[end] for end in (node, other) if end in self._ends]
        if self._stated or len(ends) < 2:
            return self._elsewhere
        return Link(
            source=node,
            target=other,
            bytes_per_second=min(statistics.median_low(link.bytes_per_second for link in end) for end in ends),
            latency_seconds=max(statistics.median_high(link.latency_seconds for link in end) for end in ends),
            between_nodes=True,
        )

    @cached_property
    def _between(self) -> tuple[Link, ...]:
        return tuple(
            sorted((link for link in self.links if link.between_nodes), key=lambda link: -link.bytes_per_second)
        )

    @cached_property
    def _stated(self) -> tuple[Link, ...]:
        """Links between any two nodes."""
        return tuple(link for link in self._between if link.source == link.target)

    @cached_property
    def _elsewhere(self) -> Link | None:
        """What is taken for the link of nodes of which nothing is known."""
        return next(iter((self._stated or self._between)[-1:]), None)

    @cached_property
    def _pairs(self) -> dict[tuple[str, str], Link]:
        """Measured links by their two nodes, either way; of one measured both ways the slower, for traffic goes both
        ways."""
        found: dict[tuple[str, str], Link] = {}
        for link in self._between:
            if link.source != link.target:
                found |= {(link.source, link.target): link, (link.target, link.source): link}
        return found

    @cached_property
    def _ends(self) -> dict[str, list[Link]]:
        """The measured links of each node."""
        found: dict[str, list[Link]] = {}
        for (node, _), link in self._pairs.items():
            found.setdefault(node, []).append(link)
        return found

    def counts(self) -> Iterator[tuple[Kind, int]]:
        """Each kind with the number of its devices."""
        return ((kind, self.count(kind.name)) for kind in self.kinds)

    @cached_property
    def _by_kind(self) -> dict[str, tuple[Device, ...]]:
        return {kind.name: tuple(d for d in self.devices if d.kind == kind.name) for kind in self.kinds}

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        return {kind.name: kind for kind in self.kinds}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _devices(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}
