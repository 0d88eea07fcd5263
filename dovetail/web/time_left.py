"""When all should be over, and within which bounds: by what is left, and by how good predictions have been so far."""

import math
import statistics
from collections.abc import Iterable
from typing import Any

from dovetail.metrics.progress import ENDED, Progress
from dovetail.web.plain_data import plain_number
from dovetail.web.reading import StoreReading

# Fewer judged predictions say nothing of how far off the next one is: then half and double are the bounds.
_FEW = 3


def time_left(reading: StoreReading, *, now: float) -> dict[str, Any] | None:
    """The seconds until the last task that counts ends, with the bounds between which four of five predictions have
    lain so far; None where nothing is left, or nothing is known of it.

    What runs ends as its own pace says, or its prediction where it has none; what waits takes what it was predicted
    to, and all devices share it as they have shared the work so far.
    """
    present = [one for task, one in reading.progress.items() if task in reading.tasks and not one.vanished]
    unended = [one for one in present if one.status not in ENDED]
    if not unended:
        return None
    ratios = sorted(_ratios(present))
    middle = statistics.median(ratios) if ratios else 1.0
    running = [seconds_left(one, middle, now) for one in unended if one.status == "running"]
    known = [one for one in present if one.spans and one.spans[-1].until_step > one.spans[-1].from_step]
    waiting = [one for one in unended if one.status != "running"]
    each = _usual_seconds(known)
    if waiting and each is None and not reading.plans:
        return None
    devices = max(1, len(reading.devices) - len(reading.away))
    planned = _planned_seconds_left(reading, now)
    work = (sum(running) + len(waiting) * (each or 0.0) * middle) / devices
    seconds = max([*running, work, planned if each is None else 0.0, 0.0])
    low, high = _bounds(ratios, middle)
    return {"seconds": plain_number(seconds), "low": plain_number(seconds * low), "high": plain_number(seconds * high)}


def _ratios(progress: Iterable[Progress]) -> Iterable[float]:
    """Measured over predicted, of every span that did what was predicted."""
    for one in progress:
        for span in one.spans:
            is_whole = span.end_seconds is not None and span.to_step >= span.until_step
            if is_whole and span.end_seconds is not None and 0 < span.predicted_seconds < math.inf:
                yield max(span.end_seconds - span.start_seconds, 0.0) / span.predicted_seconds


def seconds_left(one: Progress, ratio: float, now: float) -> float:
    """The seconds until an attempt that is under way has done its steps, at its own pace, or as was predicted of it."""
    span = one.spans[-1]
    done, whole = one.step - span.from_step, span.until_step - span.from_step
    ran = max(now - span.start_seconds, 0.0)
    if done > 0 and ran > 0:
        return max(ran * (whole - done) / done, 0.0)
    return max(span.predicted_seconds * ratio - ran, 0.0) if math.isfinite(span.predicted_seconds) else 0.0


def _usual_seconds(known: list[Progress]) -> float | None:
    """What a task was predicted to take, in the middle."""
    predicted = [one.spans[-1].predicted_seconds for one in known if 0 < one.spans[-1].predicted_seconds < math.inf]
    return statistics.median(predicted) if predicted else None


def _planned_seconds_left(reading: StoreReading, now: float) -> float:
    last = reading.plans[-1] if reading.plans else None
    return max(last.at_seconds + last.makespan_seconds - now, 0.0) if last is not None else 0.0


def _bounds(ratios: list[float], middle: float) -> tuple[float, float]:
    if len(ratios) < _FEW or middle <= 0:
        return 0.5, 2.0
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return low / middle, high / middle
