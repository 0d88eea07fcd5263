"""The search behind a feed's plan: which kind of worker each stage has, and the fewest workers for the highest rate.

For one choice of kinds the optimum is reached by giving one more worker, again and again, to the stage that is slowest:
whoever would be faster needs that worker, too, so no step is ever taken back. Choices of kinds are few and are all
looked at, the most promising first, until what cores and lock allow of the next is less than what was found.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from dovetail.planning.feeds.feed_model import MEMORY, FeedModel
from dovetail.planning.feeds.scaling import EQUAL, least_workers, peak_workers
from dovetail.vocabulary.feeds import StageProfile

Measured = Mapping[str, Mapping[str, StageProfile]]
"""Profiles by stage, in the order of the feed, and by kind of worker."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedLimits:
    """What a feed may take: cores, bytes and workers of one stage; and what its consumer takes of it."""

    cores: float
    budget_bytes: int
    consumer_per_second: float | None
    consumer_cpu_seconds: float
    most_workers: int

    def without_consumer(self) -> "FeedLimits":
        """The same for a consumer that takes whatever there is."""
        return dataclasses.replace(self, consumer_per_second=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChoice:
    """Workers for one choice of kinds: the fewest that give this rate."""

    model: FeedModel
    workers: tuple[int, ...]
    rate: float
    wall: str

    @property
    def cores(self) -> float:
        """How many cores it keeps busy."""
        return self.rate * self.model.cpu_seconds if self.model.cpu_seconds else 0.0

    @property
    def least_bytes(self) -> int:
        """What it holds with the least buffers."""
        return self.model.least_bytes(self.workers)


def best_choice(measured: Measured, limits: FeedLimits) -> WorkerChoice | None:
    """The highest rate, of those the fewest cores, of those the fewest bytes; None where nothing fits."""
    found: list[WorkerChoice] = []
    fastest = 0.0
    for bound, model in _models(measured, limits):
        if bound < fastest * (1 - EQUAL):
            break
        choice = fill(model, limits)
        if choice is not None:
            found.append(choice)
            fastest = max(fastest, choice.rate)
    equal = [choice for choice in found if choice.rate >= fastest * (1 - EQUAL)]
    return min(equal, key=lambda choice: (choice.cores, choice.least_bytes), default=None)


def _models(measured: Measured, limits: FeedLimits) -> Iterator[tuple[float, FeedModel]]:
    """Each choice of kinds with the rate that it could have at most, the highest first."""
    stages = list(measured.values())
    kinds = [
        _undominated(list(each.values()), spares_neighbours=_has_processes(stages, place))
        for place, each in enumerate(stages)
    ]
    models = [FeedModel(profiles=profiles) for profiles in itertools.product(*kinds)]
    bounds = [_bound(model, limits)[0] for model in models]
    yield from sorted(zip(bounds, models, strict=True), key=lambda each: -each[0])


def _has_processes(stages: Sequence[Mapping[str, StageProfile]], place: int) -> bool:
    """Whether a stage beside this one may be in processes."""
    return any("process" in each for each in (*stages[max(0, place - 1) : place], *stages[place + 1 : place + 2]))


def _undominated(profiles: list[StageProfile], *, spares_neighbours: bool) -> list[StageProfile]:
    """These kinds of workers without those that another equals or betters in everything. A process stays where it may
    spare its neighbours handing over."""
    kept: list[StageProfile] = []
    for profile in sorted(profiles, key=_measures):
        stays = profile.worker == "process" and spares_neighbours
        if stays or not any(all(map(float.__le__, _measures(other), _measures(profile))) for other in kept):
            kept.append(profile)
    return kept


def _measures(profile: StageProfile) -> tuple[float, ...]:
    return (
        profile.service_seconds,
        profile.cpu_seconds,
        profile.lock_seconds,
        profile.contention,
        profile.coherency,
        float(profile.item_bytes),
        float(profile.most_bytes),
        float(profile.worker_bytes),
        profile.inputs,
    )


def _bound(model: FeedModel, limits: FeedLimits) -> tuple[float, str]:
    """What would be given with all the memory that one could wish for, and what would be the wall."""
    found = model.limits(
        cores=limits.cores,
        consumer_per_second=limits.consumer_per_second,
        consumer_cpu_seconds=limits.consumer_cpu_seconds,
    )
    for number, profile in enumerate(model.paid):
        found[profile.name] = model.rate(number, peak_workers(profile, most=limits.most_workers))
    wall = min(found, key=lambda name: found[name])
    return found[wall], wall


def fill(model: FeedModel, limits: FeedLimits) -> WorkerChoice | None:
    """The highest rate for one choice of kinds, with the fewest workers that give it; None where nothing fits."""
    bound, wall = _bound(model, limits)
    workers = _workers_for(model, bound, most=limits.most_workers)
    if model.least_bytes(workers) <= limits.budget_bytes:
        return WorkerChoice(model=model, workers=workers, rate=bound, wall=wall)
    counts = [1] * len(workers)
    held = model.least_bytes(counts)
    if held > limits.budget_bytes:
        return None
    # It ends, since with the workers that the bound needs it would hold too much.
    while True:
        slowest = min(range(len(counts)), key=lambda stage: model.rate(stage, counts[stage]))
        held += model.worker_bytes(slowest)
        if held > limits.budget_bytes:
            rate = model.rate(slowest, counts[slowest])
            # Another stage that was as slow may have been given a worker in vain.
            workers = _workers_for(model, rate, most=limits.most_workers)
            return WorkerChoice(model=model, workers=workers, rate=rate, wall=MEMORY)
        counts[slowest] += 1


def _workers_for(model: FeedModel, rate: float, *, most: int) -> tuple[int, ...]:
    found = []
    for profile, visits in zip(model.paid, model.visits, strict=True):
        count = least_workers(profile, rate, visits=visits, most=most)
        assert count is not None, "a rate is asked for that the stage's peak allows"
        found.append(count)
    return tuple(found)


def least_choice(measured: Measured) -> FeedModel:
    """The kinds of workers that hold the fewest bytes with one worker each."""
    models = [FeedModel(profiles=each) for each in itertools.product(*(kinds.values() for kinds in measured.values()))]
    return min(models, key=lambda model: model.least_bytes([1] * len(measured)))
