"""What happens to the nodes of a cluster: they join, are given notice, are given back and leave."""

import dataclasses
from typing import ClassVar

from dovetail.vocabulary.event_base import Event
from dovetail.vocabulary.hardware import Cluster


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLeft(Event):
    """Devices left the cluster, for the rest of the run or, with `back_seconds`, until then."""

    kind: ClassVar[str] = "departed"
    devices: tuple[str, ...]
    reason: str = ""
    back_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesJoined(Event):
    """Devices are in the cluster: again, where they had left; for the first time with what they are, as a `cluster` of
    their own. With `anew` they are all there are: a run has begun."""

    kind: ClassVar[str] = "joined"
    devices: tuple[str, ...]
    cluster: Cluster | None = None
    anew: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving(Event):
    """A node will be gone at `leaves_seconds`, at the latest: what is trained there is saved by then, and nothing more
    is begun there."""

    kind: ClassVar[str] = "leaving"
    node: str
    leaves_seconds: float
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeRented(Event):
    """A node was asked for in a market, at this price of an hour."""

    kind: ClassVar[str] = "rented"
    name: str
    device_kind: str
    zone: str
    spot: bool
    price_per_hour: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(Event):
    """A rented node was given back, or taken away, and this is what it cost, by the market's prices."""

    kind: ClassVar[str] = "returned_node"
    name: str
    spend: float
    reason: str = ""
