"""Predictions against measurements (law 5): for each span that did the work it was predicted for, and for the whole.

A ratio is measured over predicted: above one, it took longer than was said.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from dovetail.metrics.progress import Progress, Span
from dovetail.metrics.spans import active_seconds, intervals
from dovetail.vocabulary import Plan, TaskId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSpan:
    """One span whose prediction can be judged.

    >>> ComparedSpan(task="a", placement="0", devices=("n0:0",), steps=9, predicted_seconds=4, measured_seconds=6).ratio
    1.5
    """

    task: TaskId
    placement: str
    devices: tuple[str, ...]
    steps: int
    predicted_seconds: float
    measured_seconds: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_seconds / self.predicted_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All predictions that can be judged, how many cannot, and the makespan of the first plan beside the real one.

    Of tasks that were trained anew the predictions of earlier attempts are judged too; their times do not count.
    `measured_seconds` is from the first start to the last end (so far), `active_seconds` the part of it in which
    anything ran: they differ where the whole was stopped for a while.

    >>> Comparison().median_ratio is None
    True
    """

    spans: tuple[ComparedSpan, ...] = ()
    interrupted: int = 0
    running: int = 0
    unpredicted: int = 0
    planned_seconds: float | None = None
    measured_seconds: float | None = None
    active_seconds: float = 0.0

    @property
    def median_ratio(self) -> float | None:
        """The middle ratio of the spans; None without any."""
        return statistics.median(span.ratio for span in self.spans) if self.spans else None


def compare(
    progress: Iterable[Progress],
    *,
    plans: Sequence[tuple[int, float, Plan]] = (),
    since_seconds: float = -math.inf,
    as_of_seconds: float,
) -> Comparison:
    """Judge every span; times count of those that began at `since_seconds` or later. `plans` are (number, when, plan),
    oldest first, as the store gives them.

    >>> span = Span(placement="0", devices=("n0:0",), start_seconds=0, from_step=0, until_step=9, predicted_seconds=4)
    >>> span.end_seconds, span.to_step = 6, 9
    >>> compare([Progress(task="a", spans=[span])], as_of_seconds=6).median_ratio
    1.5
    """
    progress = list(progress)
    every = [(one, span) for one in progress for span in [*one.former_spans, *one.spans]]
    verdicts = [_verdict(one, span) for one, span in every]
    pairs = [pair for one in progress for pair in intervals(one.spans, as_of_seconds=as_of_seconds)]
    pairs = [pair for pair in pairs if pair[0] >= since_seconds]
    return Comparison(
        spans=tuple(
            _compare_span(one.task, span)
            for (one, span), verdict in zip(every, verdicts, strict=True)
            if verdict == "compared"
        ),
        interrupted=verdicts.count("interrupted"),
        running=verdicts.count("running"),
        unpredicted=verdicts.count("unpredicted"),
        planned_seconds=_planned_seconds(plans),
        measured_seconds=max(end for _, end in pairs) - min(start for start, _ in pairs) if pairs else None,
        active_seconds=active_seconds(pairs),
    )


def _verdict(one: Progress, span: Span) -> str:
    if span.end_seconds is None:
        return "running" if one.spans and span is one.spans[-1] else "interrupted"
    # Whatever ended early (lost, stopped, failed, its target met) was predicted for steps it did not do.
    if span.to_step < span.until_step:
        return "interrupted"
    return "compared" if math.isfinite(span.predicted_seconds) and span.predicted_seconds > 0 else "unpredicted"


def _compare_span(task: TaskId, span: Span) -> ComparedSpan:
    assert span.end_seconds is not None
    return ComparedSpan(
        task=task,
        placement=span.placement,
        devices=span.devices,
        steps=span.to_step - span.from_step,
        predicted_seconds=span.predicted_seconds,
        measured_seconds=max(span.end_seconds - span.start_seconds, 0.0),
    )


def _planned_seconds(plans: Sequence[tuple[int, float, Plan]]) -> float | None:
    schedules = [plan.schedule for _, _, plan in plans if plan.schedule is not None]
    return schedules[0].makespan_seconds if schedules else None
