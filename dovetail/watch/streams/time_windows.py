"""Summaries of the latest windows of time, in a ring: events may come out of order as long as their window is kept."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """A metric in a window: of `count` finite values the mean, the standard deviation, the least and the most."""

    count: int
    mean: float
    deviation: float
    least: float
    most: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """Events from `start_seconds` on, for one window's length: how many, how many of them outliers, each metric."""

    start_seconds: float
    events: int
    outliers: int
    metrics: dict[str, MetricSummary]


class TimeWindows:
    """The latest `kept` windows of `seconds` each.

    >>> windows = TimeWindows(metrics=["latency"], seconds=60.0, kept=10)
    >>> windows.add(np.array([0.0, 61.0, 5.0]), np.array([[1.0], [7.0], [3.0]]), np.array([False, True, False]))
    >>> [(each.start_seconds, each.events, each.metrics["latency"].mean) for each in windows.summaries()]
    [(0.0, 2, 2.0), (60.0, 1, 7.0)]
    """

    def __init__(self, *, metrics: list[str], seconds: float, kept: int) -> None:
        self._names, self._seconds = metrics, seconds
        self._numbers = np.full(kept, -1, dtype=np.int64)
        self._events, self._outliers = np.zeros(kept, dtype=np.int64), np.zeros(kept, dtype=np.int64)
        self._counts = np.zeros((kept, len(metrics)), dtype=np.int64)
        self._means, self._squares = np.zeros((kept, len(metrics))), np.zeros((kept, len(metrics)))
        self._least, self._most = np.full((kept, len(metrics)), np.inf), np.full((kept, len(metrics)), -np.inf)
        self._newest: int | None = None
        self.late = 0

    def add(self, times: np.ndarray, values: np.ndarray, outliers: np.ndarray) -> None:
        """Count events; those of windows that are no longer kept are only counted as `late`."""
        numbers = np.floor(times / self._seconds).astype(np.int64)
        if not len(numbers):
            return
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            numbers, values, outliers = numbers[order], values[order], outliers[order]
        newest = int(numbers[-1])
        self._newest = newest if self._newest is None else max(newest, self._newest)
        first = int(np.searchsorted(numbers, self._newest - len(self._numbers), side="right"))
        self.late += first
        if first == len(numbers):
            return
        starts = first + np.flatnonzero(np.diff(numbers[first:], prepend=numbers[first] - 1))
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            self._add_to(int(numbers[start]), values[start:end], outliers[start:end])

    def _add_to(self, number: int, values: np.ndarray, outliers: np.ndarray) -> None:
        place = number % len(self._numbers)
        if self._numbers[place] != number:
            self._clear(place, number)
        self._events[place] += len(values)
        self._outliers[place] += np.count_nonzero(outliers)
        for column in range(values.shape[1]):
            finite = values[:, column]
            if not np.isfinite(finite).all():
                finite = finite[np.isfinite(finite)]
            if len(finite):
                self._merge((place, column), finite)

    def _merge(self, cell: tuple[int, int], finite: np.ndarray) -> None:
        """Join means and squared deviations (Chan, Golub and LeVeque): sums of squares would cancel."""
        before, added, mean = self._counts[cell], len(finite), finite.mean()
        change, total = mean - self._means[cell], before + added
        self._squares[cell] += np.square(finite - mean).sum() + change * change * before * added / total
        self._means[cell] += change * added / total
        self._counts[cell] = total
        self._least[cell], self._most[cell] = min(self._least[cell], finite.min()), max(self._most[cell], finite.max())

    def _clear(self, place: int, number: int) -> None:
        self._numbers[place] = number
        for each, empty in ((self._events, 0), (self._outliers, 0), (self._counts, 0), (self._means, 0.0)):
            each[place] = empty
        self._squares[place], self._least[place], self._most[place] = 0.0, np.inf, -np.inf

    def summaries(self) -> list[WindowSummary]:
        """The windows kept, the oldest first; one without events is left out."""
        if self._newest is None:
            return []
        places = np.flatnonzero((self._events > 0) & (self._numbers > self._newest - len(self._numbers)))
        return [self._summary(int(place)) for place in places[np.argsort(self._numbers[places])]]

    def _summary(self, place: int) -> WindowSummary:
        return WindowSummary(
            start_seconds=float(self._numbers[place] * self._seconds),
            events=int(self._events[place]),
            outliers=int(self._outliers[place]),
            metrics={
                name: MetricSummary(
                    count=int(self._counts[place, column]),
                    mean=float(self._means[place, column]) if self._counts[place, column] else float("nan"),
                    deviation=float(np.sqrt(self._squares[place, column] / max(self._counts[place, column], 1))),
                    least=float(self._least[place, column]),
                    most=float(self._most[place, column]),
                )
                for column, name in enumerate(self._names)
            },
        )

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {name: value for name, value in vars(self).items() if name not in ("_names", "_seconds")}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        vars(self).update(state)
