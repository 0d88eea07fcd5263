"""An open shop of tasks and shards: every task visits every shard once an epoch, on a device that may hold the visit,
one at a time, and a device holds one visit at a time (Cerebro, VLDB 2020, section 4).

Records only. Whether a shard lies on a device, is read from afar or was copied there is in the seconds that a visit
takes on each device; where a visit is not possible, the device is absent.
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property

from dovetail.vocabulary import InvalidRecord, TaskId

VisitSeconds = Mapping[str, Mapping[str, float]]
"""For each shard the devices on which it can be visited, and how long that takes there."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShopDevice:
    """A device that holds one visit at a time, from when it is free.

    >>> ShopDevice(name="n0:0", node="n0").free_seconds
    0.0
    """

    name: str
    node: str
    free_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HopLink:
    """What carries a task's state between two nodes. On one node it stays where it is.

    >>> HopLink(bytes_per_second=1e9, latency_seconds=0.5).seconds(2_000_000_000)
    2.5
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and 0 <= self.latency_seconds < math.inf):
            raise InvalidRecord(
                f"a link must pass more than 0 bytes a second after at least 0 s, got {self.bytes_per_second} and "
                f"{self.latency_seconds}."
            )

    def seconds(self, size: int) -> float:
        """How long so many bytes take."""
        return self.latency_seconds + size / self.bytes_per_second


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tour:
    """What one task has to visit: the shards of each epoch that is left, in this order where it `is_ordered`, else in
    any. Its state of so many bytes is on node `at` (empty: nowhere yet, so that its first visit needs no hop) from
    `ready_seconds` on. Tasks of one family share one `visit_seconds`. Of shards that are `copied` it says from where.

    >>> Tour(task="a", epochs=(("s0", "s1"),), visit_seconds={"s0": {"n0:0": 1.0}, "s1": {"n1:0": 2.0}}).visits
    2
    """

    task: TaskId
    epochs: tuple[tuple[str, ...], ...]
    visit_seconds: VisitSeconds
    is_ordered: bool = False
    state_bytes: int = 0
    at: str = ""
    ready_seconds: float = 0.0
    copied: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for epoch in self.epochs:
            if len(set(epoch)) < len(epoch):
                raise InvalidRecord(f"task {self.task!r} must visit a shard once an epoch, got {', '.join(epoch)}.")
            for shard in epoch:
                where = self.visit_seconds.get(shard, {})
                if not where or not all(0 < seconds < math.inf for seconds in where.values()):
                    raise InvalidRecord(
                        f"task {self.task!r} must have a device for shard {shard!r} on which a visit takes a finite "
                        f"time of more than 0 s, got {dict(where)}."
                    )

    @property
    def visits(self) -> int:
        """How many there are."""
        return sum(map(len, self.epochs))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardCopy:
    """What the first visit on a node takes longer to make a copy for all later ones there; `nodes` need none.

    >>> ShardCopy(seconds=5.0, nodes=frozenset(["n0"])).seconds
    5.0
    """

    seconds: float
    nodes: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenShop:
    """Tours over devices, with one `link` between any two nodes; `copies` are of what tours say is copied.

    >>> shop = OpenShop(devices=(ShopDevice(name="n0:0", node="n0"),), tours=(), link=HopLink(latency_seconds=1.0))
    >>> shop.hop_seconds(10, "n0", "n1"), shop.hop_seconds(10, "n0", "n0"), shop.hop_seconds(10, "", "n0")
    (1.0, 0.0, 0.0)
    """

    devices: tuple[ShopDevice, ...]
    tours: tuple[Tour, ...]
    link: HopLink = HopLink()
    copies: Mapping[str, ShardCopy] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {device.name for device in self.devices}
        if len(names) < len(self.devices) or len({tour.task for tour in self.tours}) < len(self.tours):
            raise InvalidRecord("devices and tasks of an open shop must have names of their own; two share one.")
        used = {device for tour in self.tours for where in tour.visit_seconds.values() for device in where}
        if used - names:
            raise InvalidRecord(f"visits must be on devices of the shop, got {sorted(used - names)}.")

    def hop_seconds(self, size: int, source: str, target: str) -> float:
        """How long a state takes from node to node."""
        if not source or source == target:
            return 0.0
        return self.link.seconds(size)

    @cached_property
    def node_of(self) -> dict[str, str]:
        """The node of each device."""
        return {device.name: device.node for device in self.devices}

    @property
    def visits(self) -> int:
        """How many there are in all tours."""
        return sum(tour.visits for tour in self.tours)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One visit in a plan; `epoch` counts those of the tour that are left.

    >>> Stay(task="a", epoch=0, shard="s0", device="n0:0", start_seconds=1.0, duration_seconds=2.0).end_seconds
    3.0
    """

    task: TaskId
    epoch: int
    shard: str
    device: str
    start_seconds: float
    duration_seconds: float

    @property
    def end_seconds(self) -> float:
        """When it should be over."""
        return self.start_seconds + self.duration_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tours:
    """A plan: every visit with its device and time, and a proven lower bound of when the last can end.

    >>> Tours(stays=(), bound_seconds=0.0).gap
    0.0
    """

    stays: tuple[Stay, ...]
    bound_seconds: float

    @property
    def makespan_seconds(self) -> float:
        """When the last visit ends."""
        return max((stay.end_seconds for stay in self.stays), default=0.0)

    @property
    def gap(self) -> float:
        """How far above the bound that is, as a share of the bound."""
        return self.makespan_seconds / self.bound_seconds - 1 if self.bound_seconds > 0 else 0.0

    def orders(self) -> dict[TaskId, tuple[tuple[str, ...], ...]]:
        """The shards of each task's epochs in the order in which they are visited."""
        found: dict[TaskId, dict[int, list[str]]] = {}
        for stay in sorted(self.stays, key=lambda stay: stay.start_seconds):
            found.setdefault(stay.task, {}).setdefault(stay.epoch, []).append(stay.shard)
        return {task: tuple(tuple(epochs[each]) for each in sorted(epochs)) for task, epochs in found.items()}
