"""What a list of tasks says: where each stands, why it waits, and when it should start and end."""

import math
from collections.abc import Mapping
from typing import Any

from dovetail.control.daemon.commands import Encoded
from dovetail.control.deciding.outlook import Outlook
from dovetail.control.state import State
from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import Task, TaskId
from dovetail.vocabulary.records import thaw
from dovetail.vocabulary.units import show_seconds


class Listing:
    """Every task of a state as plain data; times are on the engine's clock. Who lists thousands of tasks asks again and
    again, while few of them change: the others' rows are those of last time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[TaskId, tuple[tuple[object, ...], Encoded]] = {}

    def now(self, outlook: Mapping[TaskId, Outlook]) -> list[Encoded]:
        """As things stand."""
        state, known, unknown = self._state, self._known, Outlook()
        self._known = {}
        for task, record in state.tasks.items():
            one, found = state.ledger[task], outlook.get(task, unknown)
            basis = (record, one.changes, found, state.trouble, state.recovery.waits(task))  # all that a row tells of
            before = known.get(task)
            if before is None or before[0] != basis:
                before = basis, Encoded(_row(state, task, record, found))
            self._known[task] = before
        return [row for _, row in self._known.values()]


def _row(state: State, task: TaskId, record: Task, found: Outlook) -> dict[str, Any]:
    one = state.ledger[task]
    start = end = None
    if one.status == "running":
        start, end = one.spans[-1].start_seconds, found.end_seconds
    elif one.status == "pending":
        start, end = found.start_seconds, found.end_seconds
    elif one.status in ENDED and one.spans:
        start, end = one.spans[-1].start_seconds, one.spans[-1].end_seconds
    return {
        "task": record.name,
        "id": task,
        "status": one.status,
        "step": one.step,
        "steps": _last_step(record, one),
        "priority": one.priority,
        "entity": one.entity,
        "deadline_seconds": one.deadline_seconds if math.isfinite(one.deadline_seconds) else None,
        "start_seconds": start,
        "end_seconds": end,
        "why": _why(state, one, found) + _late(one, end),
        "metrics": dict(one.metrics),
        "parameters": thaw(record.parameters),
    }


def _why(state: State, one: Progress, found: Outlook) -> str:
    if one.status == "running":
        where = f"on {', '.join(one.spans[-1].devices)}"
        if one.cancelling:
            return f"{where}, to be saved and {'pruned' if one.prune_reason else 'cancelled'}"
        if one.paused:
            return f"{where}, to be saved and paused"
        return f"{where}: {found.why}" if found.why else where
    if one.status == "paused":
        return f"paused by a user at step {one.step}"
    if one.status == "resting":
        return f"at a rung, step {one.step}, until the others have reached it"
    if one.status != "pending":
        return one.reason
    if one.fingerprint is None:
        return "new: its program is to be built and measured first"
    if state.recovery.waits(one.task):
        return f"lost {one.losses} times in a row ({one.reason}); tried again in a moment"
    if one.held:
        return one.held
    if state.trouble:
        return f"no decision can be made: {state.trouble}"
    return found.why or "not in a plan yet; the next one is about to be made"


def _late(one: Progress, end: float | None) -> str:
    if end is None or end <= one.deadline_seconds or one.status in ENDED:
        return ""
    return f"; it will miss its deadline by about {show_seconds(end - one.deadline_seconds)}"


def _last_step(record: Task, one: Progress) -> int | None:
    if one.fingerprint is None or record.stop.steps is not None:
        return record.stop.steps
    return record.stop.last_step(one.fingerprint.steps_per_epoch)
