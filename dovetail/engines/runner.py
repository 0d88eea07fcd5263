"""What an order does inside a worker: build, measure or train, and report events.

Knows sessions, checkpoints and profiles; knows nothing of processes or sockets, so that every engine, every
test and the overhead bench run the same code.
"""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import torch

from dovetail.describe import versions
from dovetail.engines.base import Order
from dovetail.engines.gang_feeds import feed_members
from dovetail.engines.gang_losses import GangLosses
from dovetail.engines.trainer import Trainer
from dovetail.engines.trial import measure_option
from dovetail.engines.worker_context import (
    WorkerContext,
    build_in_gang,
    event_of,
    is_out_of_memory,
    local_knobs,
    reporting_failure,
)
from dovetail.feeds import Shards
from dovetail.feeds.process_server import prepare_processes
from dovetail.train import SessionMember, load_technique
from dovetail.train.base import Technique, Training, TrainingSession
from dovetail.train.numeric import open_session
from dovetail.train.ranked_session import RankedSession
from dovetail.train.ranks import RankedTechnique, is_of_others
from dovetail.train.shard_evaluation import EvaluationVisit, ShardEvaluation
from dovetail.vocabulary import Rejection, Task, TechniqueRefused
from dovetail.vocabulary.events import OptionRejected, TaskFingerprinted, TrialMeasured


def run(order: Order, around: WorkerContext) -> None:
    """Carry out an order. Whatever goes wrong with a task is reported as its `failed`; nothing is raised for it.

    Of several ranks, rank 0 does what a single process would, and the others follow and report only what goes wrong
    with them. A rank that finds another one gone reports `lost` with `of_others`: that one's end is the reason.
    """
    purposes = {"train": _train, "measure": _measure, "fingerprint": _fingerprint}
    try:
        if around.ranks is None or around.ranks.leads:
            purposes[order.purpose](order, around)
        else:
            _follow(order, around)
    finally:
        if around.ranks is not None:
            around.ranks.leave()
        gc.collect()
        if around.device.type == "cuda":
            torch.cuda.empty_cache()


def _fingerprint(order: Order, around: WorkerContext) -> None:
    from dovetail.profile.family_digest import fingerprint

    for member in order.members:
        with reporting_failure(member, around), around.builder.inspecting(member.task) as training:
            found = dataclasses.replace(fingerprint(training, _first_batch(training)), versions=versions())
            around.report(event_of(TaskFingerprinted, member, fingerprint=found))


def _measure(order: Order, around: WorkerContext) -> None:
    (member,) = order.members
    with reporting_failure(member, around), _reporting_rejection(order, around):
        profile = measure_option(order, around, _technique(order, around))
        around.report(event_of(TrialMeasured, member, profile=profile))


@contextlib.contextmanager
def _reporting_rejection(order: Order, around: WorkerContext) -> Iterator[None]:
    """Report an option that does not fit or is refused as `rejected`, not as the task's failure: others may fit."""
    try:
        yield
    except Exception as error:
        # Nor does what goes wrong with a model in parts say anything of the model: resident's own trial does.
        of_option = isinstance(error, TechniqueRefused) or is_out_of_memory(error)
        if not of_option and (around.ranks is None or is_of_others(error)):
            raise
        rejection = _rejection(order, around, error)
        around.report(event_of(OptionRejected, order.members[0], rejection=rejection))


def _technique(order: Order, around: WorkerContext) -> Technique:
    """The order's technique; one that takes several ranks is given them, after all have joined."""
    technique = load_technique(order.technique)
    if around.ranks is None:
        return technique
    assert isinstance(technique, RankedTechnique)
    around.doing("waiting for the other ranks")
    around.ranks.join(around.device)
    around.doing("opening")
    return technique.among(around.ranks)


def _session(order: Order, around: WorkerContext, members: list[SessionMember]) -> TrainingSession:
    knobs = local_knobs(order.technique, order.knobs, around)
    technique = _technique(order, around)
    return open_session(technique, members, device=around.device, threads=around.threads, knobs=knobs)


def _accepted_session(order: Order, around: WorkerContext, members: list[SessionMember]) -> TrainingSession:
    """A session of these members; where the technique refuses them, that names the first."""
    name = order.members[0].task.name
    # Opening refuses them as well, but only once the other ranks have come; and to ask twice takes `fuse` 50 ms.
    if around.ranks is not None and (reason := load_technique(order.technique).refuse(members)):
        raise TechniqueRefused(f"task {name!r}: {reason}")
    try:
        return _session(order, around, members)
    except TechniqueRefused as refused:
        if type(refused) is not TechniqueRefused:  # it tells what memory there must be
            raise
        raise TechniqueRefused(f"task {name!r}: {refused}") from None


def _build_member(task: Task, order: Order, around: WorkerContext) -> SessionMember:
    """A folder or environment that a program chooses stays for its training, where it trains alone."""
    if len(order.members) > 1:
        return SessionMember(training=build_in_gang(task, around.builder, take=True), seed=task.seed)
    training, orders = around.builder.take(task), order.members[0].shard_orders
    if isinstance(training.batches, Shards):
        training.batches = dataclasses.replace(training.batches, chosen=orders, copies=str(around.copies or ""))
    if (shard := order.members[0].evaluates) and isinstance(training.evaluate, ShardEvaluation):
        training.evaluate = EvaluationVisit(training.evaluate, shard=shard, found=order.members[0].evaluated)
    return SessionMember(training=training, seed=task.seed)


def _follow(order: Order, around: WorkerContext) -> None:
    """What ranks other than 0 do: build the same tasks and follow rank 0's calls."""
    rejecting = _reporting_rejection(order, around) if order.purpose == "measure" else contextlib.nullcontext()
    with reporting_failure(order.members[0], around, gang=order.members), rejecting:
        around.doing("building")
        members = [_build_member(member.task, order, around) for member in order.members]
        with contextlib.closing(_session(order, around, members)) as session:
            assert isinstance(session, RankedSession)
            session.follow(doing=around.doing)


def _rejection(order: Order, around: WorkerContext, error: BaseException) -> Rejection:
    return Rejection(
        families=(order.family,) * int(order.knobs.get("members", 1)),
        technique=order.technique,
        knobs=order.knobs,
        kind=around.kind.name,
        count=len(order.devices),
        reason=_rejection_reason(error),
        needed_bytes=getattr(error, "needed_bytes", 0),
        free_bytes=getattr(error, "free_bytes", 0),
    )


def _rejection_reason(error: BaseException) -> str:
    if isinstance(error, TechniqueRefused):
        return str(error)
    if is_out_of_memory(error):
        return f"ran out of memory in its trial: {str(error).partition('. GPU')[0].rstrip('.')}."
    return f"its trial raised {type(error).__name__}: {error}"


def _train(order: Order, around: WorkerContext) -> None:
    with contextlib.ExitStack() as stack:
        losses = GangLosses(around.device)
        trainers = _open_trainers(order, around, losses, stack)
        live = [trainer for trainer in trainers if trainer.begin()]
        while live:
            if reason := around.stop_reason():
                for trainer in live:
                    trainer.stop(reason)
                return
            live = _advance(live, losses, around)


def _open_trainers(
    order: Order, around: WorkerContext, losses: GangLosses, stack: contextlib.ExitStack
) -> "list[Trainer]":
    """A trainer for each member over one session; none where that failed, which was reported of all members."""
    members: list[SessionMember] = []
    if any(stage.worker == "process" for member in order.members for stage in member.feed):
        prepare_processes()  # which import what they need while this one builds
    for member in order.members:
        around.doing("building")
        with reporting_failure(member, around, gang=order.members):
            members.append(_build_member(member.task, order, around))
        if len(members) <= order.members.index(member):
            return []
    with reporting_failure(order.members[0], around, gang=order.members):
        trainings = [member.training for member in members]
        stack.enter_context(feed_members(trainings, order.members, around, technique=order.technique))
        session = _accepted_session(order, around, members)
        stack.enter_context(contextlib.closing(session))
        if isinstance(session, RankedSession):
            session.doing = around.doing
        return [
            Trainer(order, number, member.training, session, losses, around) for number, member in enumerate(members)
        ]
    return []


def _advance(live: "list[Trainer]", losses: GangLosses, around: WorkerContext) -> "list[Trainer]":
    """Take one step of all members; gives the trainers that have more to do."""
    session, gang = live[0].session, [trainer.member for trainer in live]
    numbers = [trainer.number for trainer in live]
    reports = None
    around.doing(f"step {live[0].step + 1}")
    # A session that raised is of no more use to anybody in it.
    with reporting_failure(gang[0], around, gang=gang):
        reports = session.advance(numbers)
    if reports is None:
        return []
    losses.add(numbers, reports, in_one=session.last_losses)
    return [trainer for trainer, report in zip(live, reports, strict=True) if trainer.finish_step(report)]


def _first_batch(training: Training) -> Any:
    from dovetail.feeds import Cursor

    batches = training.batches.keep_readable() if isinstance(training.batches, Shards) else training.batches
    return Cursor(batches, before_draw=lambda epoch, index: None).take(1)[0]
