"""A trial inside a worker: an option measured, and where a resident one runs out of memory, the rungs below it.

What a profile's knobs say is what fitted. The next rung is tried in the same worker: what is learned is one profile
a trial, and planning chooses between that and whatever else fits.
"""

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dovetail.engines.base import Order
from dovetail.engines.feeding import WatchedFeed
from dovetail.engines.gang_feeds import feed_members, feed_room, training_load
from dovetail.engines.loader_trial import CLEARLY, loader_stages, may_be_faster, waits_for_loader
from dovetail.engines.worker_context import WorkerContext, build_in_gang, event_of, is_out_of_memory, local_knobs
from dovetail.feeds import Shards
from dovetail.planning.techniques import spec_of
from dovetail.planning.techniques.resident import in_words
from dovetail.train.base import Technique, Training
from dovetail.train.shard_evaluation import ShardEvaluation
from dovetail.train.spill.refusals import refusal, slot_bytes_each
from dovetail.vocabulary import Profile, StageProfile, Task, TechniqueRefused
from dovetail.vocabulary.approximations import join_knobs, split_knobs
from dovetail.vocabulary.events import Warned


def measure_option(order: Order, around: WorkerContext, technique: Technique) -> Profile:
    """Carry out an order's trial and give the profile. Raises what the session raises."""
    knobs = asked = {name: value for name, value in order.knobs.items() if name != "members"}
    first, task = "", order.members[0].task
    while True:
        around.doing("building")
        start = time.monotonic()
        # A gang's trial needs no other tasks: it is the same one several times, from other seeds.
        size = int(order.knobs.get("members", 1))
        # Always anew, since what a start takes is measured too.
        trainings = _build(task, around, size)
        build_seconds = (time.monotonic() - start) / size
        try:
            found = _measure_once(
                order, around, technique, trainings, build_seconds=build_seconds, knobs=knobs, is_whole=knobs == asked
            )
            if around.ranks is None and waits_for_loader(trainings[0], found):
                found = _read_ahead(order, around, technique, found, size=size, knobs=knobs, is_whole=knobs == asked)
            # What a session was told of this worker's places is no part of the option.
            return dataclasses.replace(found, knobs={**knobs, "members": size} if size > 1 else knobs)
        except Exception as error:
            rung = _next_knobs(order, knobs, error)
            why = str(error).partition("\n")[0].rstrip(".")
            if rung is None or _is_hopeless(trainings[0], around):
                if not first:
                    raise
                raise torch.OutOfMemoryError(f"{first}. With {in_words(knobs)}: {why}") from error
        # Here, where the error, and with it all that did not fit, is gone.
        del trainings
        gc.collect()
        if around.device.type == "cuda":
            torch.cuda.empty_cache()
        message = f"its trial did not fit: {why}. It is tried with {in_words(rung)}"
        around.report(event_of(Warned, order.members[0], message=message))
        first, knobs = first or why, rung


def _build(task: Task, around: WorkerContext, size: int) -> list[Training]:
    if size == 1:
        return [_reading_here(around.builder.build(task))]
    return [_reading_here(build_in_gang(task, around.builder)) for _ in range(size)]


def _reading_here(training: Training) -> Training:
    """The training with the shards that this node has: steps take as long on any of them."""
    if isinstance(training.batches, Shards):
        training.batches = training.batches.keep_readable()
    return training


@contextlib.contextmanager
def _evaluating_here(training: Training) -> Iterator[float]:
    """Within, it is evaluated on the shards that this node has; gives which part of all batches is in them."""
    whole, part = training.evaluate, 1.0
    if isinstance(whole, ShardEvaluation):
        training.evaluate, part = whole.here() or (None, 1.0)
    try:
        yield part
    finally:
        training.evaluate = whole


def _measure_once(
    order: Order,
    around: WorkerContext,
    technique: Technique,
    trainings: list[Training],
    *,
    build_seconds: float,
    knobs: Mapping[str, Any],
    is_whole: bool,  # one by one, layers are measured with whole batches
    stages: tuple[StageProfile, ...] = (),  # of its loader, where workers are to read it
    computing_seconds: float = 0.0,
) -> Profile:
    from dovetail.profile.step_measurement import measure

    training, *others = trainings
    member = dataclasses.replace(order.members[0], feed=stages, computing_seconds=computing_seconds)
    with (
        feed_members(trainings, [member] * len(trainings), around, technique=order.technique, is_trial=True) as feeds,
        _evaluating_here(training) as part,
    ):
        found = measure(
            technique,
            training,
            others=others,
            seed=order.members[0].task.seed,
            device=around.device,
            threads=around.threads,
            kind=around.kind.name,
            count=len(order.devices),
            family=order.family,
            build_seconds=build_seconds,
            scratch=around.home / "scratch",
            task_steps=_last_step(order.members[0].task, training),
            # Others are predicted from the layers of one that foretells.
            layers=len(order.devices) == 1 and not others and is_whole and spec_of(order.technique).foretells,
            knobs=local_knobs(order.technique, knobs, around),
        )
        found = dataclasses.replace(found, evaluate_seconds=found.evaluate_seconds / part)
        is_beside = around.device.type != "cpu" and not spec_of(order.technique).on_host
        return _predict_sustained(found, feeds[0], around, is_beside=is_beside) if feeds else found


def _last_step(task: Task, training: Training) -> int | None:
    steps_per_epoch = training.steps_per_epoch()
    return None if task.stop.steps is None and steps_per_epoch is None else task.stop.last_step(steps_per_epoch)


def _read_ahead(
    order: Order,
    around: WorkerContext,
    technique: Technique,
    plain: Profile,
    *,
    size: int,
    knobs: Mapping[str, Any],
    is_whole: bool,
) -> Profile:
    """The same trial with the loaders read by workers, where that is clearly faster; else the plain one."""
    task = order.members[0].task
    stages = loader_stages(around.builder.build(task))
    feeds = 1 if spec_of(order.technique).shares_batches else size
    load = training_load(around, plain.computing_seconds, accumulate=plain.accumulate, feeds=feeds)
    if not may_be_faster(plain, stages, room=feed_room(around, feeds), load=load):
        return plain
    found = _measure_once(
        order,
        around,
        technique,
        _build(task, around, size),  # these loaders have not been iterated
        build_seconds=plain.build_seconds,
        knobs=knobs,
        is_whole=is_whole,
        stages=stages,
        computing_seconds=plain.computing_seconds,
    )
    return found if found.step_seconds < CLEARLY * plain.step_seconds else plain


def _predict_sustained(found: Profile, feed: WatchedFeed, around: WorkerContext, *, is_beside: bool) -> Profile:
    """What a trial has found of a training that reads a feed, in the long run: it was given what was read before, or
    waited for workers that were only beginning. All feeds of a gang work at once, each with its part of the cores;
    `is_beside` says that the training computes elsewhere, and takes none of them."""
    load = training_load(around, found.computing_seconds, accumulate=found.accumulate)
    per_second = load.predict(feed.profiles, feed.room) if is_beside else feed.predicted_per_second()
    own_seconds = found.computing_seconds if is_beside else found.step_seconds
    step_seconds = max(own_seconds, found.accumulate / per_second if per_second else 0.0)
    return dataclasses.replace(
        found,
        feed=feed.profiles,
        step_seconds=step_seconds,
        waits_seconds=max(0.0, found.waits_seconds + step_seconds - found.step_seconds),
    )


def _next_knobs(order: Order, knobs: Mapping[str, Any], error: Exception) -> dict[str, Any] | None:
    refused, ladder = isinstance(error, TechniqueRefused), spec_of(order.technique).ladder
    if ladder is None or not (refused or is_out_of_memory(error)):
        return None
    approximate, own = split_knobs(knobs)
    rung = ladder.next_rung(own, exact=order.exact, refused=refused, smallest=getattr(error, "is_smallest", False))
    return None if rung is None else join_knobs(approximate, rung)


def _is_hopeless(training: Training, around: WorkerContext) -> bool:
    """Whether weights, gradients and optimizer state alone are more than the device has: no rung makes them smaller,
    and building a large model again and again takes minutes."""
    if not around.kind.memory_bytes:
        return False
    trained = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
    kept = sum(each.nbytes for each in training.model.parameters()) + sum(each.nbytes for each in trained)
    if refusal(training) is None:
        assert isinstance(training.optimizer, torch.optim.Optimizer)
        kept += int(slot_bytes_each(training.optimizer) * sum(each.numel() for each in trained))
    return kept > around.kind.memory_bytes
