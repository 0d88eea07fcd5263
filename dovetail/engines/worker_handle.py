"""A worker as its engine sees it, wherever it runs, and what its devices give it."""

import abc
import dataclasses
import math
from typing import Any

from dovetail.engines.base import Order
from dovetail.vocabulary import Cluster


class WorkerHandle(abc.ABC):
    """A worker as its engine sees it: bound to its devices, it outlives orders."""

    devices: tuple[str, ...]
    order: str  # the name of the order that it carries out; empty while it has none
    doing: str  # what it was at when last heard of
    heard_at: float  # when that was, by the monotonic clock
    idle_seconds: float = 0.0  # for how long, as it says, it had neither begun anything nor computed within a step

    @abc.abstractmethod
    def begin(self, order: str, message: dict[str, Any]) -> None:
        """Hand it an order. Returns at once."""

    @abc.abstractmethod
    def send(self, message: dict[str, Any]) -> None:
        """Tell it something. One that is gone shows itself where the engine listens, not here."""

    @abc.abstractmethod
    def kill(self, why: str) -> None:
        """End it at once."""

    @abc.abstractmethod
    def ended(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""

    @abc.abstractmethod
    def reason(self) -> str:
        """How it ended, in words."""

    @abc.abstractmethod
    def last_words(self) -> str:
        """The end of what it wrote to its log since its order began."""


@dataclasses.dataclass(kw_only=True)
class RunningOrder:
    """An order under way: its workers, in the order of ranks, and what has come of it."""

    order: Order
    workers: list[WorkerHandle]
    ended: set[str] = dataclasses.field(default_factory=set)
    through: list[WorkerHandle] = dataclasses.field(default_factory=list)
    hearsay: str = ""  # what ranks say that found another one gone; who is gone knows better
    due: float = math.inf

    def name(self, worker: WorkerHandle) -> str:
        """Which of several ranks a worker is."""
        return f"rank {self.workers.index(worker)} of {len(self.workers)} on {', '.join(worker.devices)}"


def cores_of(devices: tuple[str, ...], cluster: Cluster) -> list[str]:
    """Those of the devices that are CPU cores."""
    return [device for device in devices if cluster.kind(cluster.device(device).kind).processor == "cpu"]


def threads_of(devices: tuple[str, ...], cluster: Cluster) -> int:
    """How many threads a worker of these devices has.

    >>> from dovetail.vocabulary import Kind
    >>> threads_of(("n0:0", "n0:1"), Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2))
    2
    """
    node = cluster.node(cluster.device(devices[0]).node)
    return len(cores_of(devices, cluster)) or max(1, node.cores // max(1, len(cluster.devices)))
