"""The search behind a feed's plan: which kind of worker each stage has, and the fewest workers for the highest rate.

For one choice of kinds the optimum is reached by giving one more worker, again and again, to the kind whose stages are
slowest: whoever would be faster needs that worker, too, so no step is ever taken back. Choices of kinds are few and are
all looked at, the most promising first, until what cores and lock allow of the next is less than what was found.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from dovetail.planning.feeds.feed_model import MEMORY, FeedModel
from dovetail.planning.feeds.scaling import EQUAL, least_workers, peak_workers
from dovetail.vocabulary.feeds import FeedConsumer, StageProfile

Measured = Mapping[str, Mapping[str, StageProfile]]
"""Profiles by stage, in the order of the feed, and by kind of worker."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """What a feed may take: cores, bytes and workers of one kind; and who takes what it gives."""

    cores: float
    budget_bytes: int
    consumer: FeedConsumer
    most_workers: int

    def hold(self, held_bytes: float) -> bool:
        """Whether so many bytes are within the budget."""
        return held_bytes <= self.budget_bytes * (1 + EQUAL)

    @property
    def most_lock(self) -> float:
        """For how much of the time several threads may hold the interpreter's lock before they wait for one another
        for long: no more threads compute at once than there are cores."""
        return BUSY_BESIDE if self.consumer.lock_seconds else max(BUSY_LOCK, _QUEUE_CORES / self.cores)

    @property
    def near(self) -> float:
        """How much of the highest rate is enough where the lock is not busy."""
        return NEAR_BESIDE if self.consumer.lock_seconds else NEAR

    def without_consumer(self) -> "FeedLimits":
        """The same for a consumer that takes whatever there is."""
        return dataclasses.replace(self, consumer=dataclasses.replace(self.consumer, per_second=None))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChoice:
    """Workers for one choice of kinds, `pools` of each: the fewest that give this rate."""

    model: FeedModel
    pools: Mapping[str, int]
    rate: float
    wall: str

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers of each kind as parts of its stages: in proportion to what they take, one at least."""
        found = [1] * len(self.model.profiles)
        for kind, count in self.pools.items():
            stages = self.model.stages_of(kind)
            for _ in range(count - len(stages)):
                found[max(stages, key=lambda stage: self.model.seconds(stage) / found[stage])] += 1
        return tuple(found)

    def rounded_up(self, limits: "FeedLimits") -> "WorkerChoice":
        """With as many workers for each stage as it needs itself, where there is room and they do not slow one another
        down. The fewest that suffice on average leave a core idle whenever, by chance, more of them wait than usual: of
        five who wait for 4 ms and compute for 4 ms, two cores are kept busy for 93% of the time, of seven for 99%.
        """
        pools = dict(self.pools)
        for kind, count in self.pools.items():
            pool = self.model.pool(kind)
            if not pool.service_seconds:
                continue
            slowed = self.rate * count / (pool.rate(count) * pool.service_seconds)
            needs = (slowed * self.model.seconds(stage) for stage in self.model.stages_of(kind))
            wanted = sum(max(1, math.ceil(each * (1 - EQUAL))) for each in needs)
            more = {**pools, kind: min(wanted, limits.most_workers)}
            is_as_fast = pool.rate(more[kind]) >= self.rate * (1 - EQUAL)
            if more[kind] > count and is_as_fast and limits.hold(self.model.least_bytes(more)):
                pools = more
        return dataclasses.replace(self, pools=pools)

    @property
    def cores(self) -> float:
        """How many cores it keeps busy."""
        return self.rate * self.model.cpu_seconds if self.model.cpu_seconds else 0.0

    @property
    def lock_share(self) -> float:
        """For how much of the time several of its threads hold the interpreter's lock."""
        if self.pools.get("thread", 0) < 2:
            return 0.0
        model = self.model
        return self.rate * sum(model.visits[n] * model.paid[n].lock_seconds for n in model.stages_of("thread"))

    @property
    def least_bytes(self) -> float:
        """What it holds with the least buffers."""
        return self.model.least_bytes(self.pools)


# Threads that hold the lock for more of the time than this wait for one another: on 16 cores fifteen that decoded gave
# half of what the sum of what they hold it for promises, or a quarter. On two cores 64 that waited for a disk, and
# held it all the time otherwise, gave 9,100 items a second, and 5,200 where a process made their batches. A consumer
# that wants it all the time waits for them long before.
BUSY_LOCK, BUSY_BESIDE, _QUEUE_CORES = 0.25, 0.05, 2.0
# So much of the highest rate is given up for a lock that is not busy: more where the consumer wants it, too. 16 threads
# that decoded beside a training on an H200 were thought to be a third faster than processes, and each step took three
# times as long.
NEAR, NEAR_BESIDE = 0.85, 0.7


def best_choice(measured: Measured, limits: FeedLimits) -> WorkerChoice | None:
    """The highest rate, of those the fewest cores, of those the fewest bytes; None where nothing fits. Where the lock
    would be busy with it, the best of those near it with which it is not."""
    found: list[WorkerChoice] = []
    fastest = 0.0
    for bound, model in _models(measured, limits):
        if bound < limits.near * fastest:
            break
        choice = fill(model, limits)
        if choice is not None:
            found.append(choice)
            fastest = max(fastest, choice.rate)
    best = _best(found)
    if best is None or best.lock_share <= limits.most_lock:
        return best
    near = [each for each in found if each.rate >= limits.near * fastest and each.lock_share <= limits.most_lock]
    return _best(near) or best


def _best(found: list[WorkerChoice]) -> WorkerChoice | None:
    fastest = max((choice.rate for choice in found), default=0.0)
    equal = [choice for choice in found if choice.rate >= fastest * (1 - EQUAL)]
    return min(equal, key=lambda choice: (choice.cores, choice.least_bytes), default=None)


def _models(measured: Measured, limits: FeedLimits) -> Iterator[tuple[float, FeedModel]]:
    """Each choice of kinds with the rate that it could have at most, the highest first. None is left out beforehand: a
    process that takes longer than a thread may still have fewer stages to share with."""
    models = _all_models(measured)
    bounds = [_bound(model, limits)[0] for model in models]
    yield from sorted(zip(bounds, models, strict=True), key=lambda each: -each[0])


def _all_models(measured: Measured) -> list[FeedModel]:
    return [FeedModel(profiles=each) for each in itertools.product(*(kinds.values() for kinds in measured.values()))]


def _bound(model: FeedModel, limits: FeedLimits) -> tuple[float, str]:
    """What would be given with all the memory that one could wish for, and what would be the wall."""
    found = model.limits(cores=limits.cores, consumer=limits.consumer)
    for kind, least in model.least_pools().items():
        pool = model.pool(kind)
        found[pool.name] = pool.rate(max(least, peak_workers(pool, most=limits.most_workers)))
    wall = min(found, key=lambda name: found[name])
    return found[wall], wall


def fill(model: FeedModel, limits: FeedLimits) -> WorkerChoice | None:
    """The highest rate for one choice of kinds, with the fewest workers that give it; None where nothing fits."""
    bound, wall = _bound(model, limits)
    pools = _pools_for(model, bound, most=limits.most_workers)
    if limits.hold(model.least_bytes(pools)):
        return WorkerChoice(model=model, pools=pools, rate=bound, wall=wall)
    counts, profiles = model.least_pools(), {kind: model.pool(kind) for kind in model.kinds}
    held = model.least_bytes(counts)
    if not limits.hold(held):
        return None
    # It ends, since with the workers that the bound needs it would hold too much.
    while True:
        slowest = min(counts, key=lambda kind: profiles[kind].rate(counts[kind]))
        held += model.worker_bytes(slowest)
        if not limits.hold(held):
            rate = profiles[slowest].rate(counts[slowest])
            # Another kind whose stages were as slow may have been given a worker in vain.
            pools = _pools_for(model, rate, most=limits.most_workers)
            return WorkerChoice(model=model, pools=pools, rate=rate, wall=MEMORY)
        counts[slowest] += 1


def _pools_for(model: FeedModel, rate: float, *, most: int) -> dict[str, int]:
    found, enough = {}, rate * (1 - EQUAL)
    for kind, least in model.least_pools().items():
        pool = model.pool(kind)
        count = least if pool.rate(least) >= enough else least_workers(pool, rate, most=most)
        assert count is not None, "a rate is asked for that the pool's peak allows"
        found[kind] = max(least, count)
    return found


def least_choice(measured: Measured) -> FeedModel:
    """The kinds of workers that hold the fewest bytes with one worker for each stage."""
    return min(_all_models(measured), key=lambda model: model.least_bytes(model.least_pools()))
