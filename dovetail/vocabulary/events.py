"""What happened, as workers report it and the store keeps it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail.vocabulary.errors import InvalidRecord
from dovetail.vocabulary.records import FrozenDict

EVENTS = {
    "described": "a task entered the store; data: nothing, the task is in its own table",
    "submitted": "a task was given to a daemon; data: priority, deadline_seconds (when it is to have ended, if ever), "
    "entity (on whose behalf it runs, if anybody's), "
    "of a clone also: of, step (of the weights that it begins with; 0: its program's own)",
    "changed": "a task's program or parameters were edited, a new identity took over; data: by",
    "vanished": "a task is no longer in its workload file; it is kept",
    "returned": "a vanished task is in its workload file again",
    "extended": "a task's stopping rule was edited; data: before, after",
    "fingerprinted": "a worker built a task; data: a Fingerprint",
    "measured": "a trial ended; data: a Profile",
    "rejected": "a trial found that an option does not fit, or that its technique refuses; data: a Rejection",
    "divided": "a placement ran out of memory: batches of its family, no smaller than before, are offered in more "
    "parts, or with activations computed again; data: family, kind, count, microbatches, recompute, message",
    "planned": "a plan was made; data: plan (its number), makespan_seconds, bound_seconds, because",
    "shared": "a policy shared the cluster anew; data: workload, because, tasks (how many), value, bound",
    "started": "an attempt began; data: placement, devices, step, until, predicted_seconds, option",
    "progress": "steps were done; data: step, steps_per_second, points [[name, step, value], ...]",
    "saved": "a checkpoint is complete; data: step, path, bytes",
    "timed": "what the ranks of a pipeline did when in a recent step (without a flush, in its last three); data: step, "
    "timetable, microbatches, ranks [[[operation, stage, microbatch, start, end], ...], ...]",
    "fell_back": "a damaged checkpoint was passed over; data: path, reason",
    "finished": "a task met its stopping rule; data: step, reason, metrics",
    "stopped": "an attempt ended early after saving, to go on later; data: step, reason",
    "waiting": "a task reached a rung and waits for the others; data: step, metrics",
    "promoted": "a task goes on past a rung; data: step, metric, value",
    "retried": "a failed task is to be tried again, since its workload was run again",
    "halved": "a task was left behind by successive halving; data: step, metric, value",
    "lost": "a worker died or fell silent; data: reason, log, again_in_seconds if it is not tried again at once, "
    "of_option if its option was rejected and it is planned anew",
    "failed": "a task cannot go on; data: reason, log",
    "cancelling": "a user asked that a running task be saved and ended; it may still run for a moment",
    "paused": "a user asked that a task be saved and kept out of plans; it may still run for a moment",
    "resumed": "a paused task may be placed again",
    "prioritized": "a user gave a task another priority; data: priority",
    "cancelled": "a user ended a task; data: step",
    "departed": "devices left the cluster, for the rest of the run or, with back_seconds, until then; data: devices, "
    "reason, back_seconds",
    "joined": "devices that had left are in the cluster again; data: devices",
    "released": "a placement's devices are free again; data: placement, duration_seconds",
    "warned": "something the user should know; data: message",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a task (or, with an empty task, to the whole), in its n-th attempt.

    >>> Event(kind="saved", task="a", attempt=1, at_seconds=12.5, data={"step": 10}).data["step"]
    10
    """

    kind: str
    at_seconds: float
    task: str = ""
    attempt: int = 0
    data: Mapping[str, Any] = FrozenDict()

    def __post_init__(self) -> None:
        if self.kind not in EVENTS:
            raise InvalidRecord(f"an event's kind must be one of {sorted(EVENTS)}, got {self.kind!r}.")
        if self.data.__class__ is not FrozenDict:
            object.__setattr__(self, "data", FrozenDict(self.data))
