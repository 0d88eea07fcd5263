"""What a person should look at first: failed, late, slower than predicted, waiting for data. Pure."""

import math
from collections.abc import Iterator
from typing import Any

from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary.units import show_seconds
from dovetail.web.plain_data import plain_seconds
from dovetail.web.reading import StoreReading
from dovetail.web.time_left import seconds_left

MOST_ALERTS = 100
# Predictions are within a few percent; what takes so many times as long as was said is worth a look.
SLOW_RATIO = 1.5
# Below this a start takes most of the time, which no prediction is about.
_SHORT_SECONDS = 10.0
# Devices that wait for batches for more than this part of an order's time are kept waiting by data.
_READING_SHARE = 0.2
_ORDER = ("failed", "late", "data", "slow", "lost", "away")


def alerts(reading: StoreReading, *, now: float) -> list[dict[str, Any]]:
    """What is unusual, by kind and then the newest first: each with its kind, task, moment and words."""
    found = [*_task_alerts(reading, now), *_data_wait_alerts(reading), *_away(reading)]
    found.sort(key=lambda each: (_ORDER.index(each["kind"]), -(each["at"] or 0.0)))
    return found[:MOST_ALERTS]


def _alert(kind: str, task: str, at_seconds: float | None, text: str) -> dict[str, Any]:
    return {"kind": kind, "task": task, "at": plain_seconds(at_seconds), "text": text}


def _task_alerts(reading: StoreReading, now: float) -> Iterator[dict[str, Any]]:
    for task in reading.tasks:
        one = reading.progress.get(task)
        if one is None or one.vanished:
            continue
        at = one.spans[-1].end_seconds if one.spans else None
        if one.status == "failed":
            yield _alert("failed", task, at, one.reason or "it failed; no reason was given")
        elif said := _lateness(one, now):
            yield _alert("late", task, one.deadline_seconds, said)
        if one.losses and one.status not in ENDED:
            times = "once" if one.losses == 1 else f"{one.losses} times in a row"
            yield _alert("lost", task, at, f"lost {times}" + (f": {one.reason}" if one.reason else ""))
        if said := _slowness(one, now):
            yield _alert("slow", task, one.spans[-1].start_seconds, said)


def _lateness(one: Progress, now: float) -> str:
    """That a task has missed its deadline, or will at its pace, if so."""
    if one.status in ENDED or not math.isfinite(one.deadline_seconds):
        return ""
    if one.deadline_seconds < now:
        return f"its deadline passed {show_seconds(now - one.deadline_seconds)} ago"
    end = now + seconds_left(one, 1.0, now) if one.status == "running" else now
    return f"it will miss its deadline by about {show_seconds(end - one.deadline_seconds)}" * (
        end > one.deadline_seconds
    )


def _slowness(one: Progress, now: float) -> str:
    """That the attempt under way is behind what was predicted of it, if it is."""
    if one.status != "running":
        return ""
    span = one.spans[-1]
    ran, whole = now - span.start_seconds, span.until_step - span.from_step
    if ran < _SHORT_SECONDS or whole < 1 or not 0 < span.predicted_seconds < math.inf:
        return ""
    due = span.predicted_seconds * max(one.step - span.from_step, 0) / whole
    if ran <= SLOW_RATIO * max(due, _SHORT_SECONDS):
        return ""
    return f"{show_seconds(ran)} for what was predicted to take {show_seconds(due)}"


def _data_wait_alerts(reading: StoreReading) -> Iterator[dict[str, Any]]:
    """Of the last orders that trained, those whose devices waited for batches."""
    for each in list(reading.released)[-MOST_ALERTS:]:
        waited = each.seconds.get("reading", 0.0)
        if each.purpose == "train" and waited > _READING_SHARE * each.duration_seconds > 0:
            share = waited / each.duration_seconds
            yield _alert("data", each.task, each.at_seconds, f"waited for its batches for {share:.0%} of the time")


def _away(reading: StoreReading) -> Iterator[dict[str, Any]]:
    for device, reason in reading.away.items():
        yield _alert("away", "", None, f"device {device} left the cluster: {reason or 'no reason was given'}")
