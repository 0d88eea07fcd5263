"""What users and searches ask of tasks; `asked_by` is who, where that was said."""

import dataclasses
from typing import ClassVar

from dovetail.vocabulary.event_base import Event


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetried(Event):
    """A task is to be tried again, with all its retries, since its workload was run again or a user resumed it."""

    kind: ClassVar[str] = "retried"
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskRestarted(Event):
    """A task is trained anew from its first step, as a user asked (`fresh`): what its attempts up to this event's came
    to, checkpoints and metrics, counts no more and is removed."""

    kind: ClassVar[str] = "restarted"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked(Event):
    """A user asked that a running task be saved and ended; it may still run for a moment."""

    kind: ClassVar[str] = "cancelling"
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PruneAsked(Event):
    """A search asked that a running task be saved and ended; it may still run for a moment."""

    kind: ClassVar[str] = "pruning"
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskPaused(Event):
    """A user asked that a task be saved and kept out of plans; it may still run for a moment."""

    kind: ClassVar[str] = "paused"
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskResumed(Event):
    """A paused task may be placed again."""

    kind: ClassVar[str] = "resumed"
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PriorityChanged(Event):
    """A user gave a task another priority."""

    kind: ClassVar[str] = "prioritized"
    priority: float
    asked_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineChanged(Event):
    """A user said when a task is to have ended; never, with infinity."""

    kind: ClassVar[str] = "dated"
    deadline_seconds: float = float("inf")
    asked_by: str = ""
