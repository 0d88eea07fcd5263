"""Where every task stands, folded from events: the same answer for the controller, the terminal and the report."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.vocabulary import Event, Fingerprint, TaskId
from dovetail.vocabulary.approximations import split_knobs
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStarted,
    AttemptStopped,
    CheckpointSaved,
    OptionRejected,
    RungReached,
    ShardEvaluated,
    ShardOrderChosen,
    StepsDone,
    TaskCancelled,
    TaskChanged,
    TaskExtended,
    TaskFailed,
    TaskFingerprinted,
    TaskFinished,
    TaskHalved,
    TaskHeld,
    TaskPromoted,
    TaskPruned,
    TaskReturned,
    TaskSubmitted,
    TaskVanished,
)
from dovetail.vocabulary.request_events import (
    CancelAsked,
    DeadlineChanged,
    PriorityChanged,
    PruneAsked,
    TaskPaused,
    TaskRestarted,
    TaskResumed,
    TaskRetried,
)

STATUSES = {
    "pending": "not running, to be placed",
    "running": "an attempt is under way",
    "paused": "saved, and not to be placed until a user resumes it",
    "resting": "reached a rung of successive halving, or a generation's end, and waits for the others",
    "finished": "met its stopping rule",
    "halved": "left behind by successive halving",
    "pruned": "ended by a search, because others were better",
    "failed": "cannot go on; the reason says why",
    "cancelled": "ended by a user",
}
ENDED = ("finished", "halved", "pruned", "failed", "cancelled")
ATTEMPT_ENDS = (AttemptLost, AttemptStopped, RungReached, TaskCancelled, TaskFailed, TaskFinished)
"""The events that end an attempt."""
# After so many losses of a gang in a row, with nothing newly saved in between, its members are tried alone.
GANG_LOSSES = 2


@dataclasses.dataclass(slots=True, kw_only=True)
class Span:
    """One placement of one task as it really ran: `end_seconds` is None while it runs."""

    placement: str
    devices: tuple[str, ...]
    start_seconds: float
    from_step: int
    until_step: int
    predicted_seconds: float
    end_seconds: float | None = None
    to_step: int = 0
    approximate: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class Progress:
    """Where a task stands.

    >>> Progress(task="a").status
    'pending'
    """

    task: TaskId
    status: str = "pending"
    attempt: int = 0
    step: int = 0
    saved_step: int = 0
    # The step of the checkpoint that is kept because it is the best, if one is.
    best_step: int | None = None
    promoted_step: int = 0
    last_step: int = 0
    reason: str = ""
    vanished: bool = False
    # Asked to be kept out of plans: its status says so once no attempt is under way.
    paused: bool = False
    # Asked to be ended: so it is, once no attempt is under way; and why, where it was a search that asked.
    cancelling: bool = False
    prune_reason: str = ""
    # What its metric was at the rungs at which it was judged.
    judged: dict[int, float] = dataclasses.field(default_factory=dict)
    # When it was given to a daemon, if ever; how much it counts to planners and policies; when it is to have ended; on
    # whose behalf it runs.
    submitted_seconds: float | None = None
    priority: float = 1.0
    deadline_seconds: float = math.inf
    entity: str = ""
    fingerprint: Fingerprint | None = None
    # Checkpoints of attempts up to this one, and their spans, do not count: it was to be trained anew, at this time.
    anew_since_attempt: int = 0
    anew_since_seconds: float | None = None
    former_spans: list[Span] = dataclasses.field(default_factory=list)
    # What is lost without progress in between counts against the retry budget; what is lost in a gang does not, until
    # its members are tried alone.
    losses: int = 0
    gang_losses: int = 0
    # How its worker's process last ended by its own doing, and how many times in a row so.
    ending: str = ""
    endings: int = 0
    alone: bool = False
    # Why nothing that is there can train it, though what has left could.
    held: str = ""
    # Not to be tried again before this, on the engine's clock.
    retry_at_seconds: float = 0.0
    # The threads it last had, where its devices are cores: it keeps them, for its rounding depends on them.
    count: int = 0
    # The approximations with which it last took steps; empty: exactly. It keeps them.
    approximate: str = ""
    steps_per_second: float = 0.0
    # The part of its last attempt's steps in which it waited for data.
    data_share: float = 0.0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    spans: list[Span] = dataclasses.field(default_factory=list)
    # By epoch, the order of its shards where a planner has chosen one.
    shard_orders: dict[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # By shard, what evaluating on it gave after `evaluated_step`, the last after which any was.
    evaluated_step: int = 0
    evaluated: dict[str, Mapping[str, tuple[float, float]]] = dataclasses.field(default_factory=dict)
    changes: int = 0  # how many events have changed it


def fold(events: Iterable[Event], progress: dict[TaskId, Progress] | None = None) -> dict[TaskId, Progress]:
    """Bring `progress` (by task identity) up to date with these events, in order; gives it back. Nothing else changes
    it: whoever reads the same events knows the same.

    >>> fold([TaskFinished(task="a", attempt=1, at_seconds=0.0, step=5)])["a"].status
    'finished'
    """
    progress = {} if progress is None else progress
    for event in events:
        if not event.task:
            continue
        one = progress.get(event.task)
        if one is None:
            one = progress[event.task] = Progress(task=event.task)
        handle = _HANDLERS.get(event.__class__)
        if handle is not None:  # most kinds of event do not change where a task stands
            handle(one, event)
            one.changes += 1
    return progress


def _fold_submitted(one: Progress, event: TaskSubmitted) -> None:
    one.submitted_seconds, one.priority = event.at_seconds, event.priority
    one.deadline_seconds, one.entity = event.deadline_seconds, event.entity


def _fold_fingerprinted(one: Progress, event: TaskFingerprinted) -> None:
    one.fingerprint, one.ending = event.fingerprint, ""


def _fold_shard_order(one: Progress, event: ShardOrderChosen) -> None:
    # The first choice stands: some of it may have been read.
    for number, order in enumerate(event.orders, start=event.epoch):
        one.shard_orders.setdefault(number, order)


def _fold_shard_sums(one: Progress, event: ShardEvaluated) -> None:
    if event.step != one.evaluated_step:
        one.evaluated_step, one.evaluated = event.step, {}
    one.evaluated[event.shard] = event.sums


def _threads_before(event: AttemptStarted) -> int:
    """The threads of a start that was recorded before events said it: each of several ranks had a device to itself."""
    is_ranked = event.option is not None and event.option.technique in ("pipeline", "replicate", "shard")
    return 1 if is_ranked else len(event.devices)


def _fold_started(one: Progress, event: AttemptStarted) -> None:
    one.status, one.attempt, one.step, one.reason = "running", event.attempt, event.step, ""
    one.held = ""
    one.retry_at_seconds = 0.0
    one.count = event.threads or _threads_before(event)
    one.approximate = split_knobs(event.option.knobs)[0] if event.option is not None else ""
    one.spans.append(
        Span(
            placement=event.placement,
            devices=event.devices,
            start_seconds=event.at_seconds,
            from_step=event.step,
            until_step=event.until,
            predicted_seconds=event.predicted_seconds,
            to_step=event.step,
            approximate=one.approximate,
        )
    )


def _fold_steps(one: Progress, event: StepsDone) -> None:
    one.step, one.steps_per_second = event.step, event.steps_per_second
    for name, _, value in event.points:
        one.metrics[name] = value
    if one.spans:
        one.spans[-1].to_step = one.step


def _fold_saved(one: Progress, event: CheckpointSaved) -> None:
    if event.step > one.saved_step:
        one.losses, one.gang_losses, one.ending = 0, 0, ""
    one.step = one.saved_step = event.step
    one.best_step = event.best_step


def _end(one: Progress, event: Event, *, status: str, step: int | None = None, reason: str = "") -> None:
    """Close the attempt that runs, if one does, and give the task this status."""
    one.status, one.reason, one.retry_at_seconds, one.held = status, reason, 0.0, ""
    if step is not None:
        one.step = step
    if one.spans and one.spans[-1].end_seconds is None:
        # No sooner than it began: the machine's clock may have been set back since.
        one.spans[-1].end_seconds = max(one.spans[-1].start_seconds, event.at_seconds)
        one.spans[-1].to_step = one.step


def _idle_status(one: Progress) -> str:
    return "paused" if one.paused else "pending"


def _fold_finished(one: Progress, event: TaskFinished) -> None:
    _end(one, event, status="finished", step=event.step, reason=event.reason)
    one.data_share = event.data_share or one.data_share
    one.metrics |= event.metrics


def _fold_rested(one: Progress, event: RungReached) -> None:
    _end(one, event, status="resting", step=event.step, reason=event.reason)
    one.data_share = event.data_share or one.data_share
    one.metrics |= event.metrics


def _fold_stopped(one: Progress, event: AttemptStopped) -> None:
    _end(one, event, status=_idle_status(one), step=event.step, reason=event.reason)
    one.data_share = event.data_share or one.data_share


def _fold_halved(one: Progress, event: TaskHalved) -> None:
    _end(one, event, status="halved", step=event.step, reason=event.reason)
    one.judged[event.step] = event.value


def _fold_pruned(one: Progress, event: TaskPruned) -> None:
    _end(one, event, status="pruned", step=event.step, reason=event.reason)
    if event.metric and event.step is not None:
        one.judged[event.step] = event.value


def _goes_on(one: Progress, event: Event) -> bool:
    """Whether what was measured with a task went wrong, which says nothing of the attempt that is under way."""
    return not event.attempt and one.status == "running"


def _fold_failed(one: Progress, event: TaskFailed) -> None:
    if _goes_on(one, event):
        return
    _end(one, event, status="failed", reason=event.reason)


def _fold_cancelled(one: Progress, event: TaskCancelled) -> None:
    _end(one, event, status="cancelled", step=event.step)


def _fold_lost(one: Progress, event: AttemptLost) -> None:
    if _goes_on(one, event):
        return
    _end(one, event, status=_idle_status(one), step=event.step, reason=event.reason)
    one.step = one.saved_step
    if event.again_in_seconds:
        one.retry_at_seconds = event.at_seconds + event.again_in_seconds
    if event.in_gang:
        one.gang_losses += 1
        one.alone = one.alone or one.gang_losses >= GANG_LOSSES
    elif not (event.of_option or event.of_run):
        one.losses += 1
        one.endings = one.endings + 1 if event.ending and event.ending == one.ending else 1
        one.ending = event.ending


def _fold_rejected(one: Progress, event: OptionRejected) -> None:
    if event.lost:
        one.losses, one.ending = 0, ""


def _fold_retried(one: Progress, event: TaskRetried) -> None:
    one.cancelling, one.prune_reason = False, ""
    one.status, one.losses, one.step, one.reason = _idle_status(one), 0, one.saved_step, ""
    one.ending = ""
    one.retry_at_seconds = 0.0


def _fold_restarted(one: Progress, event: TaskRestarted) -> None:
    one.paused = one.cancelling = one.alone = False
    one.prune_reason, one.judged = "", {}
    one.step = one.saved_step = one.promoted_step = one.last_step = one.count = 0
    one.losses, one.gang_losses, one.best_step, one.approximate = 0, 0, None, ""
    one.evaluated_step, one.evaluated = 0, {}
    one.status, one.reason, one.retry_at_seconds, one.metrics = "pending", "", 0.0, {}
    one.anew_since_attempt, one.anew_since_seconds = event.attempt, event.at_seconds
    one.former_spans, one.spans = [*one.former_spans, *one.spans], []


def _fold_held(one: Progress, event: TaskHeld) -> None:
    one.held = event.reason


def _fold_promoted(one: Progress, event: TaskPromoted) -> None:
    one.status, one.promoted_step = _idle_status(one), event.step
    one.judged[event.step] = event.value


def _fold_extended(one: Progress, event: TaskExtended) -> None:
    if one.status in ("finished", "halved", "pruned"):
        one.status, one.reason = _idle_status(one), ""


def _fold_paused(one: Progress, event: TaskPaused | TaskResumed) -> None:
    one.paused = isinstance(event, TaskPaused)
    if one.status in ("pending", "paused"):
        one.status = _idle_status(one)


def _fold_cancelling(one: Progress, event: CancelAsked) -> None:
    one.cancelling = True


def _fold_pruning(one: Progress, event: PruneAsked) -> None:
    one.cancelling, one.prune_reason = True, event.reason


def _fold_priority(one: Progress, event: PriorityChanged) -> None:
    one.priority = event.priority


def _fold_deadline(one: Progress, event: DeadlineChanged) -> None:
    one.deadline_seconds = event.deadline_seconds


def _fold_vanished(one: Progress, event: Event) -> None:
    one.vanished = not isinstance(event, TaskReturned)


_HANDLERS: dict[type[Event], Callable[[Progress, Any], None]] = {
    TaskSubmitted: _fold_submitted,
    TaskFingerprinted: _fold_fingerprinted,
    ShardOrderChosen: _fold_shard_order,
    ShardEvaluated: _fold_shard_sums,
    AttemptStarted: _fold_started,
    StepsDone: _fold_steps,
    CheckpointSaved: _fold_saved,
    TaskFinished: _fold_finished,
    AttemptStopped: _fold_stopped,
    RungReached: _fold_rested,
    TaskHalved: _fold_halved,
    TaskPruned: _fold_pruned,
    TaskFailed: _fold_failed,
    TaskCancelled: _fold_cancelled,
    CancelAsked: _fold_cancelling,
    PruneAsked: _fold_pruning,
    AttemptLost: _fold_lost,
    OptionRejected: _fold_rejected,
    TaskRetried: _fold_retried,
    TaskRestarted: _fold_restarted,
    TaskHeld: _fold_held,
    TaskPromoted: _fold_promoted,
    TaskPaused: _fold_paused,
    TaskResumed: _fold_paused,
    PriorityChanged: _fold_priority,
    DeadlineChanged: _fold_deadline,
    TaskExtended: _fold_extended,
    TaskVanished: _fold_vanished,
    TaskChanged: _fold_vanished,
    TaskReturned: _fold_vanished,
}
