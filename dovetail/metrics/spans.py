"""Spans as intervals of time, and as the bars of a chart: what ran where, beside what was planned."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from dovetail.metrics.progress import Progress, Span
from dovetail.vocabulary import Plan, TaskId


def intervals(spans: Sequence[Span], *, as_of_seconds: float) -> list[tuple[float, float]]:
    """(start, end) of each of one task's spans. An open one reaches to the next, or to `as_of_seconds`.

    A span that was never closed but has a successor is the mark of a controller that was killed.

    >>> span = Span(placement="0", devices=("n0:0",), start_seconds=5, from_step=0, until_step=9, predicted_seconds=1)
    >>> intervals([span], as_of_seconds=8)
    [(5, 8)]
    """
    following = [span.start_seconds for span in spans[1:]] + [as_of_seconds]
    ends = [
        span.end_seconds if span.end_seconds is not None else after
        for span, after in zip(spans, following, strict=False)
    ]
    return [(span.start_seconds, max(end, span.start_seconds)) for span, end in zip(spans, ends, strict=True)]


def trained_seconds(spans: Sequence[Span], *, until_seconds: float) -> float:
    """Seconds this task was being trained before `until_seconds`, work that was lost and repeated included.

    >>> span = Span(placement="0", devices=("n0:0",), start_seconds=5, from_step=0, until_step=9, predicted_seconds=1)
    >>> trained_seconds([span], until_seconds=8)
    3.0
    """
    pairs = intervals(spans, as_of_seconds=until_seconds)
    return float(sum(max(min(end, until_seconds) - start, 0.0) for start, end in pairs))


def active_seconds(pairs: Iterable[tuple[float, float]]) -> float:
    """Seconds during which at least one of these intervals was under way: pauses do not count.

    >>> active_seconds([(0, 2), (1, 3), (10, 11)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(pairs):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One placement on its devices, planned or as it ran, with the steps each of its tasks does or did.

    >>> Bar(tasks=("a",), steps=(9,), devices=("n0:0",), start_seconds=1.0, end_seconds=3.0).seconds
    2.0
    """

    tasks: tuple[TaskId, ...]
    steps: tuple[int, ...]
    devices: tuple[str, ...]
    start_seconds: float
    end_seconds: float
    predicted_seconds: float = 0.0
    technique: str = ""
    outcome: str = "planned"

    @property
    def seconds(self) -> float:
        """How long it takes or took."""
        return self.end_seconds - self.start_seconds


def planned_bars(plan: Plan, *, at_seconds: float) -> list[Bar]:
    """A plan's placements on the wall clock, given when it was made.

    >>> planned_bars(Plan(), at_seconds=0.0)
    []
    """
    return [
        Bar(
            tasks=placement.tasks,
            steps=placement.steps,
            devices=placement.devices,
            start_seconds=at_seconds + placement.start_seconds,
            end_seconds=at_seconds + placement.end_seconds,
            predicted_seconds=placement.duration_seconds,
            technique=placement.option.technique,
        )
        for placement in (plan.schedule.placements if plan.schedule else ())
    ]


def measured_bars(
    progress: Iterable[Progress],
    *,
    as_of_seconds: float,
    techniques: Mapping[tuple[str, str], str] | None = None,
) -> list[Bar]:
    """Placements as they ran, by start. The spans of a gang's tasks make one bar; `outcome` is `running`, `completed`,
    `interrupted`, or `discarded` where its tasks were trained anew since. `techniques` are by (task, placement).

    >>> span = Span(placement="0", devices=("n0:0",), start_seconds=5, from_step=0, until_step=9, predicted_seconds=1)
    >>> measured_bars([Progress(task="a", spans=[span])], as_of_seconds=8)[0].outcome
    'running'
    """
    single: dict[tuple[str, tuple[str, ...]], list[Bar]] = {}
    for one in progress:
        spans = [*one.former_spans, *one.spans]
        pairs = intervals(spans, as_of_seconds=as_of_seconds)
        for place, (span, (_, end)) in enumerate(zip(spans, pairs, strict=True)):
            technique = (techniques or {}).get((one.task, span.placement), "")
            bar = _measured_bar(one.task, span, end, technique, is_last=span is spans[-1])
            if place < len(one.former_spans):
                bar = dataclasses.replace(bar, outcome="discarded")
            single.setdefault((span.placement, span.devices), []).append(bar)
    return sorted((bar for bars in single.values() for bar in _merged(bars)), key=lambda bar: bar.start_seconds)


def busy_share(bars: Iterable[Bar], *, devices: int, seconds: float) -> float | None:
    """The share of the devices' time, over `seconds`, in which something was placed on them that was not discarded.

    >>> bar = Bar(tasks=("a",), steps=(9,), devices=("n0:0",), start_seconds=0, end_seconds=5)
    >>> busy_share([bar], devices=2, seconds=5)
    0.5
    """
    if devices < 1 or seconds <= 0:
        return None
    by_device: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        for device in bar.devices if bar.outcome != "discarded" else ():
            by_device.setdefault(device, []).append((bar.start_seconds, bar.end_seconds))
    return min(sum(map(active_seconds, by_device.values())) / (devices * seconds), 1.0)


def _measured_bar(task: TaskId, span: Span, end: float, technique: str, *, is_last: bool) -> Bar:
    if span.end_seconds is None and is_last:
        outcome = "running"
    else:
        outcome = "completed" if span.end_seconds is not None and span.to_step >= span.until_step else "interrupted"
    return Bar(
        tasks=(task,),
        steps=(max(span.to_step - span.from_step, 0),),
        devices=span.devices,
        start_seconds=span.start_seconds,
        end_seconds=end,
        predicted_seconds=span.predicted_seconds,
        technique=technique,
        outcome=outcome,
    )


def _merged(bars: list[Bar]) -> list[Bar]:
    """One bar for those that overlap: a gang. Those that do not are a placement's repeated attempts."""
    merged: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: bar.start_seconds):
        if merged and bar.start_seconds < merged[-1].end_seconds and bar.tasks[0] not in merged[-1].tasks:
            merged[-1] = _joined(merged[-1], bar)
        else:
            merged.append(bar)
    return merged


def _joined(gang: Bar, bar: Bar) -> Bar:
    outcomes = {gang.outcome, bar.outcome}
    return dataclasses.replace(
        gang,
        tasks=gang.tasks + bar.tasks,
        steps=gang.steps + bar.steps,
        end_seconds=max(gang.end_seconds, bar.end_seconds),
        predicted_seconds=max(gang.predicted_seconds, bar.predicted_seconds),
        outcome=next(each for each in ("running", "interrupted", "completed", "discarded") if each in outcomes),
    )
