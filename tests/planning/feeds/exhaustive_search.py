"""Every way to run a small feed, looked at one by one. Shares no code with the planner."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.vocabulary.feeds import FeedConsumer, StageProfile


def best_of_all(
    profiles: Sequence[StageProfile],
    *,
    cores: float,
    budget_bytes: int,
    consumer: FeedConsumer,
    most_workers: int,
) -> tuple[float, float, float] | None:
    """The highest rate, the fewest cores and the fewest bytes that go with it; None where nothing fits."""
    found = list(every_way(profiles, most_workers=most_workers, cores=cores, consumer=consumer))
    fitting = [each for each in found if each[2] <= budget_bytes * (1 + 1e-9)]
    if not fitting:
        return None
    fastest = max(rate for rate, _, _ in fitting)
    equal = [each for each in fitting if math.isclose(each[0], fastest, rel_tol=1e-9)]
    fewest = min(busy for _, busy, _ in equal)
    return fastest, fewest, min(held for _, busy, held in equal if math.isclose(busy, fewest, rel_tol=1e-9))


def every_way(
    profiles: Sequence[StageProfile], *, most_workers: int, **limits: Any
) -> Iterator[tuple[float, float, float]]:
    """Rate, cores and bytes of every choice of kinds and workers."""
    names = list(dict.fromkeys(profile.name for profile in profiles))
    kinds = [[profile for profile in profiles if profile.name == name] for name in names]
    for chosen in itertools.product(*kinds):
        workers = sorted({stage.worker for stage in chosen})
        # One for each stage at least.
        counts = [range(least, max(least, most_workers) + 1) for least in map(_times(chosen), workers)]
        for pools in itertools.product(*counts):
            yield of_one(chosen, dict(zip(workers, pools, strict=True)), **limits)


def _times(chosen: Sequence[StageProfile]) -> Callable[[str], int]:
    return [stage.worker for stage in chosen].count


def of_one(
    chosen: Sequence[StageProfile],
    pools: Mapping[str, int],
    *,
    cores: float,
    consumer: FeedConsumer,
) -> tuple[float, float, float]:
    """Rate, cores and bytes of one way to run a feed: with so many workers of each kind, whom its stages share."""
    made, rates, core_seconds, lock_seconds, held = 1.0, [consumer.per_second or math.inf], 0.0, 0.0, 0
    worked, busy, held_by_worker = (dict.fromkeys(pools, 0.0) for _ in range(3))
    for number in reversed(range(len(chosen))):
        stage, count = chosen[number], pools[chosen[number].worker]
        # A process hands its items in, and out; not where the stage before, or the one after, is in a process too.
        handed = stage.lock_seconds
        if stage.worker == "process":
            beside = [*chosen[max(0, number - 1) : number], *chosen[number + 1 : number + 2]]
            handed *= 1 - sum(other.worker == "process" for other in beside) / 2
        spared = stage.lock_seconds - handed
        slowed = 1 + stage.contention * (count - 1) + stage.coherency * count * (count - 1)
        seconds = max(0.0, stage.service_seconds - spared)
        worked[stage.worker] += made * seconds * slowed
        busy[stage.worker] += made * seconds
        held_by_worker[stage.worker] += made * seconds * stage.most_bytes
        core_seconds += made * max(0.0, stage.cpu_seconds - spared)
        lock_seconds += made * handed
        gathered = math.ceil(chosen[number + 1].inputs) if number + 1 < len(chosen) else 1
        held += max(stage.most_bytes, gathered * stage.item_bytes)
        made *= stage.inputs
    for kind, count in pools.items():
        rates.append(count / worked[kind] if worked[kind] else math.inf)
        own = [stage for stage in chosen if stage.worker == kind]
        # Its workers are at each of its stages for as long as that takes.
        item = held_by_worker[kind] / busy[kind] if busy[kind] else max(stage.most_bytes for stage in own)
        held += count * (max(stage.worker_bytes for stage in own) + item)
    if core_seconds + consumer.cpu_seconds:
        rates.append(cores / (core_seconds + consumer.cpu_seconds))
    if lock_seconds + consumer.lock_seconds:
        rates.append(1 / (lock_seconds + consumer.lock_seconds))
    return min(rates), min(rates) * core_seconds, held
