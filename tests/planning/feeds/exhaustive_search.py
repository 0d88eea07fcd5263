"""Every way to run a small feed, looked at one by one. Shares no code with the planner."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.vocabulary.feeds import StageProfile


def best_of_all(
    profiles: Sequence[StageProfile],
    *,
    cores: float,
    budget_bytes: int,
    consumer: float | None,
    consumer_cpu: float,
    most_workers: int,
) -> tuple[float, float, int] | None:
    """The highest rate, the fewest cores and the fewest bytes that go with it; None where nothing fits."""
    limits = {"cores": cores, "consumer": consumer, "consumer_cpu": consumer_cpu}
    found = list(every_way(profiles, most_workers=most_workers, **limits))
    fitting = [each for each in found if each[2] <= budget_bytes]
    if not fitting:
        return None
    fastest = max(rate for rate, _, _ in fitting)
    equal = [each for each in fitting if math.isclose(each[0], fastest, rel_tol=1e-9)]
    fewest = min(busy for _, busy, _ in equal)
    return fastest, fewest, min(held for _, busy, held in equal if math.isclose(busy, fewest, rel_tol=1e-9))


def every_way(
    profiles: Sequence[StageProfile], *, most_workers: int, **limits: Any
) -> Iterator[tuple[float, float, int]]:
    """Rate, cores and bytes of every choice of kinds and workers."""
    names = list(dict.fromkeys(profile.name for profile in profiles))
    kinds = [[profile for profile in profiles if profile.name == name] for name in names]
    for chosen in itertools.product(*kinds):
        for workers in itertools.product(range(1, most_workers + 1), repeat=len(chosen)):
            yield of_one(chosen, workers, **limits)


def of_one(
    chosen: Sequence[StageProfile],
    workers: Sequence[int],
    *,
    cores: float,
    consumer: float | None,
    consumer_cpu: float,
) -> tuple[float, float, int]:
    """Rate, cores and bytes of one way to run a feed."""
    made, rates, core_seconds, lock_seconds, held = 1.0, [consumer or math.inf], 0.0, 0.0, 0
    for number in reversed(range(len(chosen))):
        stage, count = chosen[number], workers[number]
        # A process hands its items in, and out; not where the stage before, or the one after, is in a process too.
        handed = stage.lock_seconds
        if stage.worker == "process":
            beside = [*chosen[max(0, number - 1) : number], *chosen[number + 1 : number + 2]]
            handed *= 1 - sum(other.worker == "process" for other in beside) / 2
        spared = stage.lock_seconds - handed
        slowed = 1 + stage.contention * (count - 1) + stage.coherency * count * (count - 1)
        seconds = max(0.0, stage.service_seconds - spared)
        rates.append(count / (seconds * slowed) / made if seconds else math.inf)
        core_seconds += made * max(0.0, stage.cpu_seconds - spared)
        lock_seconds += made * handed
        gathered = math.ceil(chosen[number + 1].inputs) if number + 1 < len(chosen) else 1
        held += count * (stage.worker_bytes + stage.most_bytes)
        held += max(stage.most_bytes, gathered * stage.item_bytes)
        made *= stage.inputs
    if core_seconds + consumer_cpu:
        rates.append(cores / (core_seconds + consumer_cpu))
    if lock_seconds:
        rates.append(1 / lock_seconds)
    return min(rates), min(rates) * core_seconds, held
