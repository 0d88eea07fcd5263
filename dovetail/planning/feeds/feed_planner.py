"""The best way to run a feed: which kind of worker each stage has, how many, how much may wait behind it, and why."""

import dataclasses
from collections.abc import Sequence

from dovetail.planning.feeds.feed_model import ANYONE, by_stage
from dovetail.planning.feeds.feed_reasons import remote_reason, stage_reasons, wall_reason, why_infeasible
from dovetail.planning.feeds.feed_search import FeedLimits, WorkerChoice, best_choice
from dovetail.planning.feeds.remote_reading import best_remote
from dovetail.planning.feeds.scaling import MOST_WORKERS
from dovetail.vocabulary import InvalidRecord, NoFeasiblePlan
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, RemoteProfile, StagePlan, StageProfile

# Behind one slow item the others of its stage go on until what they made has no more room. With so many items a worker,
# one that takes sixteen times as long as the others holds nobody back.
_WAITING_ITEMS = 16


def plan_feed(
    profiles: Sequence[StageProfile],
    *,
    cores: float,
    budget_bytes: int,
    consumer: FeedConsumer = ANYONE,
    most_workers: int = MOST_WORKERS,
    remote: RemoteProfile | None = None,
) -> FeedPlan:
    """The plan with the highest throughput for these cores and bytes, and of those with the same the one that keeps the
    fewest cores busy, and then holds the fewest bytes, with its stages' workers rounded up; or one that is nearly as
    fast, where threads would keep the interpreter's lock busy. What is left of the budget goes to buffers.

    `profiles` has each stage of the feed in its order, once for each kind of worker that it was measured with. More
    than `consumer` takes is not aimed at. Where its own cores are the wall, a feed whose stages can travel may have
    workers on the cores of `remote` too. Raises `NoFeasiblePlan` where one worker for each stage is too much.

    >>> read = StageProfile(name="read", worker="thread", service_seconds=4e-3, item_bytes=1000, most_bytes=1000)
    >>> decode = StageProfile(name="decode", worker="thread", service_seconds=3e-3, cpu_seconds=3e-3)
    >>> plan = plan_feed([read, decode], cores=2, budget_bytes=1 << 20)
    >>> [(stage.name, stage.workers) for stage in plan.stages], round(plan.items_per_second), plan.wall
    ([('read', 3), ('decode', 2)], 667, 'cores')
    """
    measured = by_stage(profiles)
    if not (measured and cores > 0 and budget_bytes >= 0 and most_workers >= 1):
        raise InvalidRecord(
            f"a feed must have stages, cores > 0, budget_bytes >= 0 and most_workers >= 1 to be planned; got "
            f"{list(measured)}, {cores}, {budget_bytes} and {most_workers}."
        )
    limits = FeedLimits(cores=cores, budget_bytes=budget_bytes, consumer=consumer, most_workers=most_workers)
    best = best_choice(measured, limits)
    if best is None:
        raise NoFeasiblePlan(why_infeasible(measured, budget_bytes))
    best = best.rounded_up(limits)
    plan = FeedPlan(
        stages=_with_buffers(best, budget_bytes),
        items_per_second=best.rate,
        wall=best.wall,
        worker_bytes=sum(count * best.model.own_bytes(kind) for kind, count in best.pools.items()),
        reasons=(*stage_reasons(best, measured, limits), wall_reason(best, measured, limits)),
    )
    return _with_remote(plan, best, limits, remote) if remote is not None and remote.cores else plan


def _with_remote(plan: FeedPlan, choice: WorkerChoice, limits: FeedLimits, remote: RemoteProfile) -> FeedPlan:
    """The plan with as many workers on other nodes as are worth it, and why. What waits here has room for them: a
    worker there holds what it works at in its own node's memory."""
    reading = best_remote(
        choice.model,
        remote,
        own_rate=choice.rate,
        own_wall=choice.wall,
        cores=limits.cores,
        consumer=limits.consumer,
    )
    reasons = (*plan.reasons, remote_reason(choice, remote, reading))
    if reading is None:
        return dataclasses.replace(plan, reasons=reasons)
    return dataclasses.replace(
        plan, items_per_second=reading.rate, wall=reading.wall, reasons=reasons, remote_workers=reading.workers
    )


def _with_buffers(choice: WorkerChoice, budget_bytes: int) -> tuple[StagePlan, ...]:
    """The stages with their buffers: the least, and of what is left as large a part of what each would like."""
    model = choice.model
    least = [model.least_buffer(stage) for stage in range(len(choice.workers))]
    liked = [
        max(0, _WAITING_ITEMS * count * profile.most_bytes - own)
        for count, profile, own in zip(choice.workers, model.profiles, least, strict=True)
    ]
    spare = max(0.0, budget_bytes - choice.least_bytes)
    share = min(1.0, spare / sum(liked)) if any(liked) else 0.0
    return tuple(
        StagePlan(name=profile.name, worker=profile.worker, workers=count, buffer_bytes=own + int(share * more))
        for profile, count, own, more in zip(model.profiles, choice.workers, least, liked, strict=True)
    )
