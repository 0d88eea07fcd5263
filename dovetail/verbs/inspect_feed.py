"""What a task's input pipeline could give, measured without training: `dovetail feed`."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.vocabulary import DovetailError, FeedPlan, StageProfile, Task, Workload
from dovetail.vocabulary.feeds import feed_bytes

if TYPE_CHECKING:
    from dovetail.train.base import Training

DEFAULT_SECONDS = 3.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One stage of a feed: what one worker gives alone, in items per second; its workers; and, with all stages at work,
    the share of its workers' time that it kept them busy, and the bytes that it held at the end."""

    name: str
    rate_alone: float
    worker: str
    workers: int
    busy_share: float
    held_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """What was measured of a task's feed: batches per second, as predicted and as they came; what its consumer could
    take, where that was measured; the wall; what would help, and `notes` of what was found on the way, in sentences."""

    task: str
    definition: str
    stages: tuple[StageReport, ...]
    predicted_per_second: float
    batches_per_second: float
    consumer_per_second: float | None
    wall: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    cores: float
    budget_bytes: int
    notes: tuple[str, ...] = ()


def inspect_feed(
    workload: Workload,
    *,
    task: str | None = None,
    cores: float | None = None,
    budget_bytes: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    consumer: bool = True,
) -> FeedReport:
    """Measure the feed of a workload's task: the first one, or that of this name. Builds its program here, takes a few
    steps with one batch to know what its consumer needs, unless `consumer` is false, and reads for `seconds`."""
    import torch

    from dovetail.engines.feeding import TrainingLoad, definition_of, open_feed
    from dovetail.planning.feeds import advise
    from dovetail.train.build import build

    chosen = _choose(workload, task)
    training = build(chosen)
    definition, why_not = definition_of(training.batches)
    if definition is None:
        raise DovetailError(f"task {chosen.name!r} must have batches that a feed can read; it has not: {why_not}")
    own_cores = cores or float(len(os.sched_getaffinity(0)))
    own_bytes = budget_bytes or feed_bytes(own_cores)
    wanted = _consumer_rate(training, chosen) if consumer else None
    load = TrainingLoad(batch_seconds=1 / wanted if wanted else 0.0, lock_share=float(torch.cuda.is_available()))
    with open_feed(definition, cores=own_cores, budget_bytes=own_bytes, load=load, watches=False) as feed:
        profiles, plan = feed.profiles, feed.plan
        rate, took = _read(feed, seconds)
        predicted = feed.predicted_per_second()
        stats = feed.stats()
        stages = _stages(profiles, plan, stats.stages, took)
    advice = advise(
        profiles,
        plan,
        cores=own_cores,
        budget_bytes=own_bytes,
        consumer=load.consumer,
        may_cache=definition.may_cache(),
    )
    return FeedReport(
        task=chosen.name,
        definition=repr(definition),
        stages=stages,
        predicted_per_second=predicted,
        batches_per_second=rate,
        consumer_per_second=wanted,
        wall=plan.wall,
        reasons=plan.reasons,
        advice=tuple(each.sentence() for each in advice),
        cores=own_cores,
        budget_bytes=own_bytes,
        notes=stats.notes,
    )


def _choose(workload: Workload, name: str | None) -> Task:
    for task in workload.tasks:
        if name is None or task.name == name:
            return task
    names = [task.name for task in workload.tasks]
    raise DovetailError(f"--task must name a task of the workload, one of {', '.join(names[:20])}; got {name!r}.")


def _consumer_rate(training: "Training", task: Task) -> float:
    """How many batches a second this training could take if they were all there: a few steps with the first one."""
    import torch

    from dovetail.feeds import Cursor
    from dovetail.train import RESIDENT, SessionMember

    batch = Cursor(training.batches, before_draw=lambda epoch, index: None).take(1)[0]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    repeated = dataclasses.replace(training, batches=[batch] * training.accumulate)
    members = [SessionMember(training=repeated, seed=task.seed)]
    with contextlib.closing(RESIDENT.open(members, device=device, threads=torch.get_num_threads())) as session:
        for _ in range(2):
            session.advance()
        began, steps = time.perf_counter(), 0
        while steps < 50 and time.perf_counter() - began < 0.5:
            session.advance()
            steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
        return steps * training.accumulate / (time.perf_counter() - began)


def _read(batches: Any, seconds: float) -> tuple[float, float]:
    """Batches per second over so many, the first of which is not counted, and how long that took."""
    began = counted = time.perf_counter()
    count = 0
    for count, _ in enumerate(batches):
        if not count:
            counted = time.perf_counter()
        if time.perf_counter() - counted >= seconds:
            break
    now = time.perf_counter()
    return count / (now - counted) if count else 1 / (now - began), now - began


def _stages(
    profiles: Sequence[StageProfile], plan: FeedPlan, stats: Sequence[Any], seconds: float
) -> tuple[StageReport, ...]:
    by_kind = {(profile.name, profile.worker): profile for profile in profiles}
    seen = {each.name: each for each in stats}
    return tuple(
        StageReport(
            name=stage.name,
            rate_alone=by_kind[stage.name, stage.worker].rate(1),
            worker=stage.worker,
            workers=stage.workers,
            busy_share=min(1.0, seen[stage.name].busy_seconds / (stage.workers * seconds)),
            held_bytes=seen[stage.name].held_bytes,
        )
        for stage in plan.stages
    )
