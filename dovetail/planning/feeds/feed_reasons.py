"""Why a feed is planned as it is, in sentences."""

from collections.abc import Iterator

from dovetail.planning.feeds.feed_model import CONSUMER, CORES, LOCK, MEMORY, FeedModel
from dovetail.planning.feeds.feed_search import FeedLimits, Measured, WorkerChoice, best_choice, fill, least_choice
from dovetail.planning.feeds.remote_reading import RemoteReading
from dovetail.planning.feeds.scaling import EQUAL
from dovetail.vocabulary.feeds import RemoteProfile
from dovetail.vocabulary.units import show_bytes, show_number, show_rate, show_seconds

_PLURALS = {"thread": "threads", "process": "processes"}


def stage_reasons(choice: WorkerChoice, measured: Measured, limits: FeedLimits) -> Iterator[str]:
    """For each stage, why it has so many workers, and why not of another kind."""
    model = choice.model
    for number, (profile, count) in enumerate(zip(model.paid, choice.workers, strict=True)):
        workers, pool = _count(count, profile.worker), choice.pools[profile.worker]
        if pool > count:
            workers = f"{count} of {_count(pool, profile.worker)} that stages share"
        text = f"{profile.name!r} has {workers}: {show_rate(choice.rate * model.visits[number])} are needed"
        text += f", and one gives {show_number(profile.rate(1))}." if profile.service_seconds else "."
        for other in measured[profile.name].values():
            if other.worker != profile.worker:
                swapped = (*model.profiles[:number], other, *model.profiles[number + 1 :])
                text += f" {_against(choice, fill(FeedModel(profiles=swapped), limits), _PLURALS[other.worker])}"
        if not profile.portable:
            text += " It cannot travel to a process."
        yield text


def _against(choice: WorkerChoice, other: WorkerChoice | None, workers: str) -> str:
    """What the same feed would come to with another kind of worker at one stage."""
    if other is None:
        return f"With {workers} it would not fit into the budget."
    if other.rate < choice.rate * (1 - EQUAL):
        return f"With {workers} the feed would give {show_rate(other.rate)}, and {_name(other.wall)} be the wall."
    if other.cores > choice.cores:
        return f"With {workers} the feed would keep {other.cores:.3g} cores busy instead of {choice.cores:.3g}."
    return (
        f"With {workers} the feed would hold {show_bytes(other.least_bytes)} and not {show_bytes(choice.least_bytes)}."
    )


def _name(wall: str) -> str:
    if wall in (CORES, MEMORY):
        return {CORES: "the cores", MEMORY: "memory"}[wall]
    return wall if wall in (LOCK, CONSUMER) else repr(wall)


def wall_reason(choice: WorkerChoice, measured: Measured, limits: FeedLimits) -> str:
    """What keeps the feed from giving more."""
    model, rate = choice.model, choice.rate
    if choice.wall == CONSUMER:
        free = best_choice(measured, limits.without_consumer())
        assert free is not None
        return (
            f"The consumer is the wall: it takes {show_rate(rate)}, and the feed could give {show_number(free.rate)}."
        )
    if choice.wall == CORES:
        also = _consumer_too(limits.consumer.cpu_seconds)
        return (
            f"The cores are the wall: one item at the end takes {show_seconds(model.cpu_seconds)} of a core{also}, and "
            f"{limits.cores:g} of them give {show_rate(rate)}."
        )
    if choice.wall == LOCK:
        also = _consumer_too(limits.consumer.lock_seconds)
        return (
            f"The interpreter's lock is the wall: one item at the end holds it for {show_seconds(model.lock_seconds)}"
            f"{also}, and one thread at a time can."
        )
    pools = {kind: model.pool(kind) for kind in choice.pools}
    kind = min(pools, key=lambda each: pools[each].rate(choice.pools[each]))
    count = choice.pools[kind]
    if choice.wall == MEMORY:
        left = limits.budget_bytes - choice.least_bytes
        return (
            f"Memory is the wall: one more {kind}, with {pools[kind].name!r} as the slowest stage, needs "
            f"{show_bytes(model.worker_bytes(kind))}, and {show_bytes(left)} of {show_bytes(limits.budget_bytes)} are "
            f"left."
        )
    more = "no more are given" if count >= limits.most_workers else "more would not make it faster"
    gives = f"{_count(count, kind)} {'gives' if count == 1 else 'give'} {show_rate(rate)}"
    return f"{pools[kind].name!r} is the wall: {gives}, and {more}."


def _consumer_too(seconds: float) -> str:
    return f" and its consumer {show_seconds(seconds)}" if seconds else ""


def _count(count: int, worker: str) -> str:
    return f"{count} {worker if count == 1 else _PLURALS[worker]}"


def remote_reason(choice: WorkerChoice, remote: RemoteProfile, reading: RemoteReading | None) -> str:
    """Why idle cores of other nodes are used, or are not."""
    link = f"over a link of {show_bytes(remote.bytes_per_second)} a second"
    if reading is not None:
        return (
            f"{reading.workers} of {remote.cores} idle cores of other nodes read whole batches, too: "
            f"{show_rate(reading.remote_rate)} {link}, and {show_number(reading.own_rate)} here."
        )
    if choice.wall not in (CORES, LOCK):
        return f"Idle cores of other nodes are left alone: {_name(choice.wall)} is the wall, and not the cores here."
    stays = [profile.name for profile in choice.model.profiles if not profile.portable]
    if stays:
        return f"Idle cores of other nodes are left alone: {', '.join(map(repr, stays))} cannot travel."
    carried = show_number(remote.bytes_per_second / max(1, choice.model.profiles[-1].item_bytes))
    return (
        f"Idle cores of other nodes are left alone: {link} that carries {carried} items a second, nothing that counts "
        f"would be added to {show_number(choice.rate)}."
    )


def why_infeasible(measured: Measured, budget_bytes: int) -> str:
    """Why not even one worker for each stage fits into the budget."""
    model = least_choice(measured)
    needed = model.least_bytes(model.least_pools())
    largest = max(model.profiles, key=lambda profile: profile.most_bytes + profile.worker_bytes)
    return (
        f"a feed must have room for one worker of each stage with its item, and for what waits behind it: that is "
        f"{show_bytes(needed)}, for an item of {largest.name!r} takes {show_bytes(largest.most_bytes)} and its worker "
        f"{show_bytes(largest.worker_bytes)}; the budget is {show_bytes(budget_bytes)}. Raise the budget, or make "
        f"items or batches smaller."
    )
