"""A worker and a running order as an engine sees them, wherever the worker runs. Knows nothing of processes."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from dovetail.engines.base import Order
from dovetail.planning.techniques.beside import MOST_LANES
from dovetail.vocabulary import Cluster, TaskId

Place = tuple[tuple[str, ...], int]
"""The devices of a worker, and its lane."""


class WorkerHandle(abc.ABC):
    """A worker as its engine sees it: bound to its devices, it outlives orders. Used from the engine's thread alone."""

    devices: tuple[str, ...]
    lane: int = 0  # of several workers on the same device each has one, from 1 on; 0: it has its devices for itself
    order: str  # the name of the order that it carries out; empty while it has none
    doing: str  # what it was at when last heard of
    heard_at: float  # when that was, by the monotonic clock
    idle_seconds: float = 0.0  # for how long, as it says, it had neither begun anything nor computed within a step
    held_bytes: int = 0  # the most that its last order held on its device

    @property
    def place(self) -> "Place":
        """What tells it from the other workers of its engine."""
        return self.devices, self.lane

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
    """An order under way: its workers by rank, the tasks that have ended, and the workers that have released it. Where
    workers know nothing of each other, each has the one of its `parts` that has its number."""

    order: Order
    workers: list[WorkerHandle]
    parts: Sequence[Order] = ()
    ended_tasks: set[str] = dataclasses.field(default_factory=set)
    lost_tasks: set[str] = dataclasses.field(default_factory=set)  # of those that have ended, those reported as lost
    released: list[WorkerHandle] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # what the first rank spent on what
    busy_seconds: float | None = None  # for how long its devices computed, as far as is known
    held_bytes: int = 0
    is_vacated: bool = False  # its worker may have another order already, and saves what this one has learned
    hearsay: str = ""  # what ranks report that found another one gone; the lost rank's own end is the better reason
    deadline: float = math.inf
    tasks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.tasks = frozenset(member.task.identity for member in self.order.members)

    @property
    def is_apart(self) -> bool:
        """Whether its workers know nothing of each other."""
        return bool(self.parts)

    @property
    def is_ranked(self) -> bool:
        """Whether its workers wait for each other."""
        return len(self.workers) > 1 and not self.is_apart

    @property
    def is_building_apart(self) -> bool:
        """Whether its workers build at the same moment, each some of the tasks."""
        return self.is_apart and self.order.purpose == "fingerprint"

    def worker_of(self, task: TaskId) -> WorkerHandle:
        """The worker that carries out a task of this order, or leads those that do."""
        has = (any(member.task.identity == task for member in part.members) for part in self.parts)
        return self.workers[next((number for number, found in enumerate(has) if found), 0)]

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


def session_threads(devices: tuple[str, ...], cluster: Cluster, *, on_host: bool, feed_cores: int = 0) -> int:
    """How many threads a worker of these devices trains with. Where several may train on one accelerator at once, each
    has a part of the node's cores, and has no more when it is alone, so that what it reads comes out the same; unless
    the host computes a part of the steps, which is done alone, with all cores but those of its feed.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="h200", processor="cuda", mps=True), cores=16)
    >>> [session_threads(("n0:0",), cluster, on_host=on_host) for on_host in (False, True)]
    [2, 16]
    """
    threads = threads_of(devices, cluster)
    if on_host:
        threads = max(1, threads - feed_cores)
    has_lanes = cluster.kind(cluster.device(devices[0]).kind).mps and not on_host
    return max(1, threads // MOST_LANES) if has_lanes else threads
