"""Where every task stands, folded from events: the same answer for the controller, the terminal and the report."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.vocabulary import Event

STATUSES = {
    "pending": "not running, to be placed",
    "running": "an attempt is under way",
    "paused": "saved, and not to be placed until a user resumes it",
    "resting": "reached a rung of successive halving and waits for the others",
    "finished": "met its stopping rule",
    "halved": "left behind by successive halving",
    "failed": "cannot go on; the reason says why",
    "cancelled": "ended by a user",
}
ENDED = ("finished", "halved", "failed", "cancelled")


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


@dataclasses.dataclass(slots=True, kw_only=True)
class Progress:
    """Where a task stands.

    >>> Progress(task="a").status
    'pending'
    """

    task: str
    status: str = "pending"
    attempt: int = 0
    step: int = 0
    saved_step: int = 0
    promoted_step: int = 0
    last_step: int = 0
    reason: str = ""
    vanished: bool = False
    # Asked to be kept out of plans: its status says so once no attempt is under way.
    paused: bool = False
    # Asked to be ended: so it is, once no attempt is under way.
    cancelling: bool = False
    # When it was given to a daemon, if ever; how much it counts to planners and policies; when it is to have ended; on
    # whose behalf it runs.
    submitted_seconds: float | None = None
    priority: float = 1.0
    deadline_seconds: float = math.inf
    entity: str = ""
    fingerprint: dict[str, Any] | None = None
    # What is lost without progress in between counts against the retry budget.
    losses: int = 0
    # The threads it last had, where its devices are cores: it keeps them, for its rounding depends on them.
    count: int = 0
    steps_per_second: float = 0.0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    spans: list[Span] = dataclasses.field(default_factory=list)


def fold(events: Iterable[Event], progress: dict[str, Progress] | None = None) -> dict[str, Progress]:
    """Bring `progress` (by task identity) up to date with these events, in order; gives it back.

    >>> fold([Event(kind="finished", task="a", attempt=1, at_seconds=0.0, data={"step": 5})])["a"].status
    'finished'
    """
    progress = {} if progress is None else progress
    for event in events:
        if not event.task:
            continue
        one = progress.get(event.task)
        if one is None:
            one = progress[event.task] = Progress(task=event.task)
        _HANDLERS.get(event.kind, _nothing)(one, event)
    return progress


def _nothing(one: Progress, event: Event) -> None:
    """Most kinds of event do not change where a task stands."""


def _submitted(one: Progress, event: Event) -> None:
    one.submitted_seconds, one.priority = event.at_seconds, event.data["priority"]
    one.deadline_seconds = event.data.get("deadline_seconds", math.inf)
    one.entity = event.data.get("entity", "")


def _fingerprinted(one: Progress, event: Event) -> None:
    one.fingerprint = dict(event.data)


def _threads_before(data: Mapping[str, Any]) -> int:
    """The threads of a start that was recorded before events said it: each of several ranks had a device to itself."""
    is_ranked = data.get("option", {}).get("technique") in ("pipeline", "replicate", "shard")
    return 1 if is_ranked else len(data["devices"])


def _started(one: Progress, event: Event) -> None:
    data = event.data
    one.status, one.attempt, one.step, one.reason = "running", event.attempt, data["step"], ""
    one.count = data.get("threads") or _threads_before(data)
    one.spans.append(
        Span(
            placement=data["placement"],
            devices=tuple(data["devices"]),
            start_seconds=event.at_seconds,
            from_step=data["step"],
            until_step=data["until"],
            predicted_seconds=data["predicted_seconds"],
            to_step=data["step"],
        )
    )


def _progressed(one: Progress, event: Event) -> None:
    one.step = event.data["step"]
    one.steps_per_second = event.data.get("steps_per_second", 0.0)
    for name, _, value in event.data.get("points", ()):
        one.metrics[name] = value
    if one.spans:
        one.spans[-1].to_step = one.step


def _saved(one: Progress, event: Event) -> None:
    if event.data["step"] > one.saved_step:
        one.losses = 0
    one.step = one.saved_step = event.data["step"]


def _ended(status: str) -> Any:
    def handle(one: Progress, event: Event) -> None:
        one.status = _waiting(one) if status == "pending" else status
        one.reason = event.data.get("reason", "")
        one.step = event.data.get("step", one.step)
        one.metrics |= event.data.get("metrics", {})
        if one.spans and one.spans[-1].end_seconds is None:
            one.spans[-1].end_seconds = event.at_seconds
            one.spans[-1].to_step = one.step

    return handle


def _waiting(one: Progress) -> str:
    return "paused" if one.paused else "pending"


def _lost(one: Progress, event: Event) -> None:
    _ended("pending")(one, event)
    one.losses += 1
    one.step = one.saved_step


def _retried(one: Progress, event: Event) -> None:
    one.cancelling = False
    one.status, one.losses, one.step, one.reason = _waiting(one), 0, one.saved_step, ""


def _promoted(one: Progress, event: Event) -> None:
    one.status, one.promoted_step = _waiting(one), event.data["step"]


def _extended(one: Progress, event: Event) -> None:
    if one.status in ("finished", "halved"):
        one.status, one.reason = _waiting(one), ""


def _paused(one: Progress, event: Event) -> None:
    one.paused = event.kind == "paused"
    if one.status in ("pending", "paused"):
        one.status = _waiting(one)


def _cancelling(one: Progress, event: Event) -> None:
    one.cancelling = True


def _prioritized(one: Progress, event: Event) -> None:
    one.priority = event.data["priority"]


def _vanished(one: Progress, event: Event) -> None:
    one.vanished = event.kind != "returned"


_HANDLERS = {
    "submitted": _submitted,
    "fingerprinted": _fingerprinted,
    "started": _started,
    "progress": _progressed,
    "saved": _saved,
    "finished": _ended("finished"),
    "stopped": _ended("pending"),
    "waiting": _ended("resting"),
    "halved": _ended("halved"),
    "failed": _ended("failed"),
    "cancelled": _ended("cancelled"),
    "cancelling": _cancelling,
    "lost": _lost,
    "retried": _retried,
    "promoted": _promoted,
    "paused": _paused,
    "resumed": _paused,
    "prioritized": _prioritized,
    "extended": _extended,
    "vanished": _vanished,
    "changed": _vanished,
    "returned": _vanished,
}
