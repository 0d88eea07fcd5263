"""What an engine promises (`Engine`), and what it is asked to do (`Order`). Knows nothing of processes."""

import abc
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dovetail.vocabulary import Event, FrozenDict, StageProfile, Task
from dovetail.vocabulary.shards import UrlProbe

REMOTE_CORES = "DOVETAIL_REMOTE_CORES"
"""The variable of a worker's environment that says at which socket its feeds may borrow cores of other nodes; not there
where there are none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemberOrder:
    """One task of an order: train it to `until_step`, its checkpoints in `directory`.

    `final` says that the task's stopping rule ends there, and not only a rung of successive halving. Checkpoints of
    attempts up to `anew_since_attempt` are removed first. `feed` is what is known of the feed that its family reads,
    `computing_seconds` what a step of the order takes where it need not wait for batches (zero: not known). One that
    `visits` a shard ends with it, saved, to go on elsewhere; `shard_orders` are the orders of shards that a planner has
    chosen, by epoch, empty where none was. A visit that `evaluates` on a shard takes no step; what was `evaluated` on
    others before it is with it.
    """

    task: Task
    attempt: int = 0
    until_step: int = 0
    final: bool = True
    directory: str = ""
    anew_since_attempt: int = 0
    feed: tuple[StageProfile, ...] = ()
    computing_seconds: float = 0.0
    visits: bool = False
    shard_orders: tuple[tuple[str, ...], ...] = ()
    evaluates: str = ""
    evaluated: Mapping[str, Mapping[str, tuple[float, float]]] = FrozenDict()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine is to do on some devices: train a gang, measure an option, or only build tasks to learn
    their families (`purpose` is `train`, `measure` or `fingerprint`).

    `name` is unique; everything that comes of the order carries it as its placement. `exact` leaves out ways of taking
    batches that round otherwise. Its feeds have `feed_cores` (zero: as many as there are).
    """

    name: str
    purpose: str
    members: tuple[MemberOrder, ...]
    devices: tuple[str, ...]
    technique: str = "resident"
    knobs: Mapping[str, Any] = FrozenDict()
    feed_cores: int = 0
    family: str = ""
    save_every_seconds: float = 30.0
    save_every_steps: int | None = None
    keep_count: int = 2
    keep_bytes: int | None = None
    exact: bool = False
    predicted_seconds: float = 0.0

    @property
    def nodes(self) -> int:
        """The number of nodes that this order's devices are on."""
        return int(self.knobs.get("nodes", 1))


def order_log(folder: Path, name: str, *, rank: int = 0) -> Path:
    """Where the worker of a rank writes what an order's programs print; `folder` is that of the logs.

    >>> order_log(Path("logs"), "12.5-1").name, order_log(Path("logs"), "12.5-1", rank=2).name
    ('order-12.5-1.log', 'order-12.5-1-rank-2.log')
    """
    return folder / (f"order-{name}-rank-{rank}.log" if rank else f"order-{name}.log")


class Engine(abc.ABC):
    """Where placements run. Called by the controller alone, from one thread, but for `interrupt`.

    Everything an order leads to comes back through `wait` as events. Whatever happens to an order, the last
    event it leads to is `released`, after which its devices are free; before it, every member that was to be
    trained has ended with one of finished, waiting, stopped, failed or lost. Devices that may have the next order while
    what this one has learned is being saved are `vacated` before. Devices that are gone for the rest of the
    run are `departed`, together with what their orders come to; those that will be gone are `leaving`, and those that
    came are `joined`.
    """

    may_grow = False
    """Whether devices may join that are not in the cluster which it was made for."""

    @abc.abstractmethod
    def start(self, order: Order) -> None:
        """Begin an order on its devices, which must be free. Returns at once."""

    @abc.abstractmethod
    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """Ask an order to save and end early; with `save=False`, end it at once. Unknown names are ignored."""

    @abc.abstractmethod
    def wait(self) -> list[Event]:
        """The events since the last call. Blocks for as long as the engine sees fit, and may give none.

        Calling it again says that everything given before is in the store, so orders need not keep it any longer.
        """

    def wake(self, at_seconds: float) -> None:  # noqa: B027
        """Let the next `wait` return at this time even if nothing has happened. An engine whose `wait` returns within
        a second anyway need not do anything; one with a clock of its own must."""

    def interrupt(self) -> None:  # noqa: B027
        """Let a `wait` that is under way return soon, because somebody asks for something. May be called from any
        thread or signal handler. An engine whose `wait` never blocks for long need not do anything."""

    def dismiss(self, devices: Collection[str]) -> None:  # noqa: B027
        """Hold these devices no longer, on which nothing runs: they are to leave, or did."""

    def fetch(self, devices: tuple[str, ...], directory: str) -> None:  # noqa: B027
        """The next order of these devices goes on from what is saved in a directory, which is complete: it may be
        fetched while the order before it runs."""

    def find(self, paths: Collection[str]) -> Mapping[str, Collection[str]] | None:
        """Which of these paths exist on which nodes, by the nodes' names; None where that cannot be told."""
        return None

    def probe_urls(self, readers: Mapping[str, str]) -> Mapping[str, UrlProbe | None] | None:
        """What the nodes that these URLs are given with found, reading the beginning of each: None where it cannot be
        read there; nothing of those that did not answer in time. None as a whole where that cannot be told."""
        return None

    @abc.abstractmethod
    def now(self) -> float:
        """The engine's clock, in seconds since 1970 or, simulated, since its start."""

    @abc.abstractmethod
    def close(self) -> None:
        """End every process this engine started. May be called twice."""
