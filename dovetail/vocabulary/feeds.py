"""What was measured of a feed's stages, and what was decided for them."""

import dataclasses
import math

from dovetail.vocabulary.errors import InvalidRecord

WORKERS = ("thread", "process")
"""The kinds of workers that a stage may have."""

FEED_BYTES = 256 << 20
"""What a feed may hold unless somebody says otherwise, at least."""
_BYTES_PER_CORE = 128 << 20


def feed_bytes(cores: float) -> int:
    """What a feed may hold that has so many cores, unless somebody says otherwise: a process for each, with what it
    works at, and as much again.

    >>> feed_bytes(1) >> 20, feed_bytes(16) >> 20
    (256, 2048)
    """
    return max(FEED_BYTES, int(cores * _BYTES_PER_CORE))


def held_bytes(budget_bytes: int) -> int:
    """What a feed may hold itself of its budget. The rest is for the batch that its consumer has, and for what
    allocators keep: with 56 MiB held, a process had grown by 73.

    >>> held_bytes(1000)
    700
    """
    return budget_bytes * 7 // 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """One stage of a feed, as measured with one kind of worker.

    `service_seconds` is what one item takes one worker; of that, `cpu_seconds` keep a core busy, and `lock_seconds`
    hold the lock of this process's interpreter: nearly all of `cpu_seconds` for a thread that computes in Python, and
    for a process only what sending and receiving take. `beside_seconds` are those of `cpu_seconds` that are not the
    stage's own, which whoever watches it at work does not see: to hand items over, to queue them and put them in order.
    `contention` and `coherency` are the universal law's two
    constants, beyond what cores and lock explain: `a` workers give a / (1 + contention (a - 1) + coherency a (a - 1))
    times the items of one. `item_bytes` and `most_bytes` are the mean and the largest of what one item that it gives
    holds, `worker_bytes` the memory of one more worker, `inputs` how many items of the stage before make one of its
    own; `portable` says whether it can travel to another process, and `draws` whether it draws random numbers.

    >>> StageProfile(name="decode", worker="thread", service_seconds=2e-3, cpu_seconds=2e-3).rate(2)
    1000.0
    """

    name: str
    worker: str
    service_seconds: float
    cpu_seconds: float = 0.0
    lock_seconds: float = 0.0
    beside_seconds: float = 0.0
    contention: float = 0.0
    coherency: float = 0.0
    item_bytes: int = 0
    most_bytes: int = 0
    worker_bytes: int = 0
    inputs: float = 1.0
    portable: bool = True
    draws: bool = False

    def __post_init__(self) -> None:
        _check_worker(self.name, self.worker)
        # Written so that NaN fails too.
        seconds = (self.service_seconds, self.cpu_seconds, self.lock_seconds, self.beside_seconds)
        if not (all(0 <= each < math.inf for each in seconds) and 0 < self.inputs < math.inf):
            raise InvalidRecord(
                f"a stage's profile must have seconds of at least 0 and inputs > 0; that of {self.name!r} has "
                f"{seconds} and {self.inputs}."
            )
        laws = (self.contention, self.coherency)
        sizes = (self.item_bytes, self.most_bytes, self.worker_bytes)
        if not (all(0 <= each < math.inf for each in laws) and min(sizes) >= 0):
            raise InvalidRecord(
                f"a stage's profile must have contention, coherency and bytes of at least 0; that of {self.name!r} "
                f"has {laws} and {sizes}."
            )

    def rate(self, workers: int) -> float:
        """Items per second of this many workers, as long as nothing else is the wall."""
        slowed = 1 + self.contention * (workers - 1) + self.coherency * workers * (workers - 1)
        return workers / slowed / self.service_seconds if self.service_seconds else math.inf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedConsumer:
    """Who takes what a feed gives: how many items a second where they are always there (None: all that come), and for
    each of them the seconds for which it keeps a core of the feed's busy and holds the lock of this process's
    interpreter.

    >>> FeedConsumer(per_second=50.0, lock_seconds=0.02).hurried(2.0)
    FeedConsumer(per_second=100.0, cpu_seconds=0.0, lock_seconds=0.01)
    """

    per_second: float | None = None
    cpu_seconds: float = 0.0
    lock_seconds: float = 0.0

    def __post_init__(self) -> None:
        seconds = (self.cpu_seconds, self.lock_seconds)
        # Written so that NaN fails too.
        if not (all(0 <= each < math.inf for each in seconds) and (self.per_second is None or self.per_second > 0)):
            raise InvalidRecord(
                f"a feed's consumer must take more than 0 items per second, or None for all, in seconds of at least 0; "
                f"got {self.per_second} and {seconds}."
            )

    def hurried(self, times: float) -> "FeedConsumer":
        """One that takes so many times as much, and lets go of the lock sooner. The cores are as busy as before: what
        is aimed at beyond what is taken must not come from them."""
        per_second = None if self.per_second is None else times * self.per_second
        return dataclasses.replace(self, per_second=per_second, lock_seconds=self.lock_seconds / times)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteProfile:
    """Idle cores of other nodes, and the link to them as measured: how long a message and its answer take, how many
    bytes pass a second, all workers there together, and what taking one in costs this node's cores, for each message
    and for each byte. `worker_seconds` is what one worker there was seen to take for one item at the feed's end; 0
    where none has been seen.

    >>> RemoteProfile(cores=4, latency_seconds=2e-3, bytes_per_second=1e9).transfer_seconds(1 << 20)
    0.003048576
    """

    cores: int
    latency_seconds: float
    bytes_per_second: float
    cpu_seconds: float = 0.0
    cpu_seconds_per_byte: float = 0.0
    worker_seconds: float = 0.0

    def __post_init__(self) -> None:
        seconds = (self.latency_seconds, self.cpu_seconds, self.cpu_seconds_per_byte, self.worker_seconds)
        # Written so that NaN fails too.
        if not (self.cores >= 0 and self.bytes_per_second > 0 and all(0 <= each < math.inf for each in seconds)):
            raise InvalidRecord(
                f"cores of other nodes must be at least 0, bytes_per_second more than 0 and seconds at least 0; got "
                f"{self.cores}, {self.bytes_per_second} and {seconds}."
            )

    def transfer_seconds(self, size: float) -> float:
        """How long so many bytes are under way."""
        return self.latency_seconds + size / self.bytes_per_second

    def hand_seconds(self, size: float) -> float:
        """What so many bytes in one message cost this node's cores."""
        return self.cpu_seconds + size * self.cpu_seconds_per_byte


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """How a stage is to run: which kind of worker, how many, and how many bytes may wait behind it.

    >>> StagePlan(name="decode", worker="process", workers=2, buffer_bytes=1 << 20).workers
    2
    """

    name: str
    worker: str
    workers: int
    buffer_bytes: int = 0

    def __post_init__(self) -> None:
        _check_worker(self.name, self.worker)
        if self.workers < 1 or self.buffer_bytes < 0:
            raise InvalidRecord(
                f"a stage must have at least 1 worker and buffer_bytes of at least 0; {self.name!r} has "
                f"{self.workers} and {self.buffer_bytes}."
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlan:
    """How a feed is to run, stage by stage, in their order.

    `items_per_second` is what it will give at its end, as predicted; `wall` names what keeps it from giving more: a
    stage, "cores", "the interpreter's lock", "the link", "memory" or "the consumer". `reasons` say why, in sentences.
    `remote_workers` are processes on idle cores of other nodes, each of which reads whole batches by itself.
    `worker_bytes` is what its workers hold by themselves, beside what they work at.

    >>> plan = FeedPlan(stages=(StagePlan(name="read", worker="thread", workers=4),), wall="read")
    >>> plan.stage("read").workers
    4
    """

    stages: tuple[StagePlan, ...]
    items_per_second: float = 0.0
    wall: str = ""
    reasons: tuple[str, ...] = ()
    remote_workers: int = 0
    worker_bytes: int = 0

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise InvalidRecord(f"the stages of a feed's plan must have names of their own, got {names}.")
        if not (self.items_per_second >= 0 and self.remote_workers >= 0):
            raise InvalidRecord(
                f"a feed's plan must give items_per_second >= 0, got {self.items_per_second}, with "
                f"remote_workers >= 0, got {self.remote_workers}."
            )

    def stage(self, name: str) -> StagePlan:
        """The plan of the stage of this name."""
        for each in self.stages:
            if each.name == name:
                return each
        raise InvalidRecord(
            f"a feed's plan must have the stage {name!r}; it has {[each.name for each in self.stages]}."
        )


def _check_worker(name: str, worker: str) -> None:
    if worker not in WORKERS:
        raise InvalidRecord(f"stage {name!r} must have workers of a kind among {list(WORKERS)}, got {worker!r}.")
