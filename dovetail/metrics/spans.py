"""Spans as intervals of time."""

from collections.abc import Iterable, Sequence

from dovetail.metrics.progress import Span


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
