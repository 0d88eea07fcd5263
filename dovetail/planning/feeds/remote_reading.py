"""What a feed gives with workers on idle cores of other nodes (InTuneX): each reads whole batches, of which it is sent
the numbers, and sends them back. Chooses nothing but how many.

With m of them, whose worker takes w seconds for a final item of b bytes, over a link of B bytes a second that all share
and on which a message and its answer take l seconds, they give

    R = min( m / (w + l + b / B),  B / b,  cores / (h + u),  1 / (h + v) )

final items a second, where to take one in takes h seconds of this node's cores, and of its interpreter's lock, and the
consumer u seconds of its cores and v of the lock. What is read here then has the rest: with c core seconds and k lock
seconds for each item that is read here,

    O = min( what the own workers give,  (cores - R (h + u)) / (c + u),  (1 - R (h + v)) / (k + v) ).

The feed gives O + R, unless its consumer takes less.
"""

import dataclasses
import math

from dovetail.planning.feeds.feed_model import ANYONE, CONSUMER, CORES, LINK, LOCK, FeedModel
from dovetail.planning.feeds.resizing import MARGIN
from dovetail.vocabulary.feeds import FeedConsumer, RemoteProfile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReading:
    """What a feed gives with so many workers on other nodes, and what keeps it from giving more."""

    workers: int
    rate: float
    wall: str
    own_rate: float
    remote_rate: float


def worker_seconds(model: FeedModel, remote: RemoteProfile) -> float:
    """What one worker on another node takes for a final item: as it was seen, or else as long as one here would, and
    what the item is under way for."""
    if remote.worker_seconds:
        return remote.worker_seconds
    here = sum(visits * profile.service_seconds for visits, profile in zip(model.visits, model.paid, strict=True))
    return here + remote.transfer_seconds(model.profiles[-1].item_bytes)


def read_remotely(
    model: FeedModel,
    remote: RemoteProfile,
    workers: int,
    *,
    own_rate: float,
    own_wall: str,
    cores: float,
    consumer: FeedConsumer = ANYONE,
) -> RemoteReading:
    """What a feed gives with so many workers on other nodes, of which the workers here give `own_rate` alone, with
    `own_wall` as their wall.

    >>> from dovetail.vocabulary.feeds import StageProfile
    >>> loop = StageProfile(name="loop", worker="process", service_seconds=0.1, cpu_seconds=0.1, item_bytes=1 << 20)
    >>> link = RemoteProfile(cores=4, latency_seconds=0.0, bytes_per_second=20 << 20)
    >>> for count in (1, 2, 4):
    ...     found = read_remotely(FeedModel(profiles=(loop,)), link, count, own_rate=20.0, own_wall="cores", cores=2)
    ...     print(round(found.rate, 1), found.wall)
    26.7 cores
    33.3 cores
    40.0 the link
    """
    size = model.profiles[-1].item_bytes
    most = remote.bytes_per_second / size if size else math.inf
    seconds = worker_seconds(model, remote)
    hand = remote.hand_seconds(size)
    busy, locked = hand + consumer.cpu_seconds, hand + consumer.lock_seconds
    given = min(most, cores / _seconds(busy), 1 / _seconds(locked), workers / _seconds(seconds))
    left = (cores - given * busy) / _seconds(model.cpu_seconds + consumer.cpu_seconds)
    unlocked = (1 - given * locked) / _seconds(model.lock_seconds + consumer.lock_seconds)
    limits = {CORES: left, LOCK: unlocked}
    limits[own_wall] = min(own_rate, limits.get(own_wall, math.inf))
    wall = min(limits, key=lambda name: limits[name])
    own = max(0.0, limits[wall])
    if workers and given >= most:
        wall = LINK
    asked = math.inf if consumer.per_second is None else consumer.per_second
    rate = min(own + given, asked)
    return RemoteReading(
        workers=workers,
        rate=rate,
        wall=CONSUMER if rate >= asked else wall,
        own_rate=own,
        remote_rate=given,
    )


def _seconds(value: float) -> float:
    return value or 1e-300


def best_remote(
    model: FeedModel,
    remote: RemoteProfile,
    *,
    own_rate: float,
    own_wall: str,
    cores: float,
    consumer: FeedConsumer = ANYONE,
) -> RemoteReading | None:
    """The fewest workers on other nodes with which a feed gives the most; None where nothing that counts is won: its
    own cores are not the wall, a stage cannot travel, or the link carries too little.

    >>> from dovetail.vocabulary.feeds import StageProfile
    >>> loop = StageProfile(name="loop", worker="process", service_seconds=0.1, cpu_seconds=0.1, item_bytes=1 << 20)
    >>> fast, slow = (RemoteProfile(cores=4, latency_seconds=0.0, bytes_per_second=each) for each in (1e9, 1e6))
    >>> own = {"own_rate": 20.0, "own_wall": "cores", "cores": 2}
    >>> best_remote(FeedModel(profiles=(loop,)), fast, **own).workers
    4
    >>> best_remote(FeedModel(profiles=(loop,)), slow, **own)  # one item a second: not worth it
    """
    if own_wall not in (CORES, LOCK) or not all(profile.portable for profile in model.profiles):
        return None
    found = [
        read_remotely(
            model,
            remote,
            count,
            own_rate=own_rate,
            own_wall=own_wall,
            cores=cores,
            consumer=consumer,
        )
        for count in range(1, remote.cores + 1)
    ]
    best = max(found, key=lambda each: (each.rate, -each.workers), default=None)
    return best if best is not None and best.rate > (1 + MARGIN) * own_rate else None
