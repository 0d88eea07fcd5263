"""A worker and a running order as an engine sees them, wherever the worker runs. Knows nothing of processes."""

import abc
import dataclasses
import math
from typing import Any

from dovetail.engines.base import Order
from dovetail.vocabulary import Cluster


class WorkerHandle(abc.ABC):
    """A worker as its engine sees it: bound to its devices, it outlives orders. Used from the engine's thread alone."""

    devices: tuple[str, ...]
    order: str  # the name of the order that it carries out; empty while it has none
    doing: str  # what it was at when last heard of
    heard_at: float  # when that was, by the monotonic clock
    idle_seconds: float = 0.0  # for how long, as it says, it had neither begun anything nor computed within a step

    def excuse(self, seconds: float) -> None:
        """Do not count so many seconds of its silence: nobody listened."""
        self.heard_at += seconds

    @abc.abstractmethod
    def begin(self, order: str, message: dict[str, Any]) -> None:
        """Hand the worker an order. Returns at once."""

    @abc.abstractmethod
    def send(self, message: dict[str, Any]) -> None:
        """Send the worker a message. That a worker is gone is noticed where the engine receives, not here."""

    @abc.abstractmethod
    def kill(self, why: str) -> None:
        """Kill the worker at once; `why` becomes part of `reason`."""

    @abc.abstractmethod
    def exited(self, seconds: float) -> bool:
        """Wait up to `seconds` for the worker to exit; whether it has."""

    @abc.abstractmethod
    def reason(self) -> str:
        """How the worker ended, as a sentence for people."""

    @abc.abstractmethod
    def ending(self) -> str:
        """How the worker's process ended by its own doing, such as `exit 3` or `SIGSEGV`; empty where others, or nobody
        knows who, ended it."""

    @abc.abstractmethod
    def log_tail(self) -> str:
        """The end of what the worker wrote to its log since its order began."""


@dataclasses.dataclass(kw_only=True)
class RunningOrder:
    """An order under way: its workers by rank, the tasks that have ended, and the workers that have released it."""

    order: Order
    workers: list[WorkerHandle]
    ended_tasks: set[str] = dataclasses.field(default_factory=set)
    released: list[WorkerHandle] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # what the first rank spent on what
    hearsay: str = ""  # what ranks report that found another one gone; the lost rank's own end is the better reason
    deadline: float = math.inf
    tasks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.tasks = frozenset(member.task.identity for member in self.order.members)

    def name(self, worker: WorkerHandle) -> str:
        """The worker's rank and devices, for messages."""
        return f"rank {self.workers.index(worker)} of {len(self.workers)} on {', '.join(worker.devices)}"


def cores_of(devices: tuple[str, ...], cluster: Cluster) -> list[str]:
    """The devices among these that are CPU cores."""
    return [device for device in devices if cluster.kind(cluster.device(device).kind).processor == "cpu"]


def threads_of(devices: tuple[str, ...], cluster: Cluster) -> int:
    """How many threads a worker of these devices has.

    >>> from dovetail.vocabulary import Kind
    >>> threads_of(("n0:0", "n0:1"), Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2))
    2
    """
    node = cluster.node(cluster.device(devices[0]).node)
    return len(cores_of(devices, cluster)) or max(1, node.cores // max(1, len(cluster.devices)))
