"""What a list of tasks says: where each stands, why it waits, and when it should start and end."""

import math
from collections.abc import Mapping
from typing import Any

from dovetail.control.deciding.outlook import Outlook
from dovetail.control.state import State
from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import Task, TaskId
from dovetail.vocabulary.records import thaw
from dovetail.vocabulary.units import show_seconds


_MOST_THAWED = 100_000


def rows(state: State, outlook: Mapping[TaskId, Outlook]) -> list[dict[str, Any]]:
    """Every task as plain data; times are on the engine's clock."""
    unknown = Outlook()
    return [_row(state, task, record, outlook.get(task, unknown)) for task, record in state.tasks.items()]


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
        "parameters": _parameters(task, record),
    }


_thawed: dict[TaskId, dict[str, Any]] = {}


def _parameters(task: TaskId, record: Task) -> dict[str, Any]:
    """A task's parameters as plain data. They are a part of its identity, so they are made plain once: who lists
    thousands of tasks does so again and again."""
    found = _thawed.get(task)
    if found is None:
        if len(_thawed) >= _MOST_THAWED:
            _thawed.clear()
        found = _thawed[task] = thaw(record.parameters)
    return found


def _why(state: State, one: Progress, found: Outlook) -> str:
    if one.status == "running":
        where = f"on {', '.join(one.spans[-1].devices)}"
        if one.cancelling:
            return f"{where}, to be saved and cancelled"
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
