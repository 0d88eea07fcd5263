"""`dt.Monitor`: a stream of events, each scored, counted and summarised as it comes, in memory that does not grow."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.columns import numbers, seconds
from dovetail.watch.streams.heavy_hitters import FrequentCombination, HeavyHitters
from dovetail.watch.streams.reservoir import DecayedReservoir
from dovetail.watch.streams.robust_scores import RobustScorer, fit_scorer
from dovetail.watch.streams.saved_state import read_state, write_state
from dovetail.watch.streams.time_windows import TimeWindows, WindowSummary
from dovetail.watch.streams.unusual import UnusualCombination, find_unusual
from dovetail.watch.tables import TableReader

_SAVED = "a monitor"
# So many events are handled at a time: their codes and counts stay in a core's cache, and a batch may be any size.
CHUNK_EVENTS = 1 << 18
SAMPLE_ROWS = 5_000


class Monitor:
    """A stream of events: how unusual each is, which combinations of attributes are frequent and which are behind the
    unusual ones, and what the latest windows of time were like.

    `metrics` are numbers by which an event is scored: by its distance from the median for one, from a robust centre
    for several, in standard deviations. The `outlier_share` of a sample with the highest scores are outliers. Of
    `attributes`, the frequent values and combinations of up to `order` are counted, `capacity` for each set of
    attributes. All of that forgets: what came `half_life` events ago counts half. With a column of `time`, windows of
    `window_seconds` are summarised, the latest `windows` of them.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> version = draws.integers(1, 4, 10_000)
    >>> latency = draws.normal(size=10_000) + 9 * ((version == 3) & (draws.random(10_000) < 0.02))
    >>> monitor = Monitor(metrics=["latency"], attributes=["version"])
    >>> scores = monitor.update({"latency": latency, "version": version})
    >>> print(monitor.unusual()[0])
    version = 3: 81 of 98 outliers, 9.5 × as likely (5.7 to 15.9), 33% of events
    """

    def __init__(
        self,
        *,
        metrics: Sequence[str],
        attributes: Sequence[str] = (),
        time: str | None = None,
        window_seconds: float = 60.0,
        windows: int = 60,
        order: int = 3,
        capacity: int = 1_000,
        half_life: float = 1e6,
        outlier_share: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._settings = {name: value for name, value in locals().items() if name != "self"}
        self._settings |= {"metrics": list(metrics), "attributes": list(attributes)}
        _check(**self._settings)
        self._metrics, self._attributes, self._time = list(metrics), list(attributes), time
        self._half_life, self._outlier_share = half_life, outlier_share
        self._sample = DecayedReservoir(capacity=SAMPLE_ROWS, width=len(metrics), half_life=half_life, seed=seed)
        self._hitters = HeavyHitters(
            attributes, capacity=capacity, order=order, half_life=half_life, outlier_share=outlier_share
        )
        self._windows = TimeWindows(metrics=list(metrics), seconds=window_seconds, kept=windows)
        self._scorer: RobustScorer | None = None
        self._fit_at = 1.0
        self.threshold = math.inf
        self.events = 0
        self.missing = 0
        self.infinite = 0

    def update(self, batch: Any) -> np.ndarray:
        """Take events on, in the order in which they came: a mapping of columns, or a frame of pandas, Polars, Arrow or
        DuckDB. Gives their scores: infinite where a metric is, NaN where one is missing; above `threshold`, an outlier.
        """
        named = [*self._metrics, *self._attributes, *([self._time] if self._time else [])]
        columns = TableReader(batch).columns(named)
        values = np.stack([numbers(columns[name], name) for name in self._metrics], axis=1)
        times = seconds(columns[self._time], self._time) if self._time else None
        attributes = [columns[name] for name in self._attributes]
        scores = [
            self._update(
                values[start : start + CHUNK_EVENTS],
                [each[start : start + CHUNK_EVENTS] for each in attributes],
                None if times is None else times[start : start + CHUNK_EVENTS],
            )
            for start in range(0, len(values), CHUNK_EVENTS)
        ]
        return np.concatenate(scores) if scores else np.empty(0)

    def _update(self, values: np.ndarray, attributes: list[Any], times: np.ndarray | None) -> np.ndarray:
        factorized = self._hitters.factorize(attributes)  # refuses what cannot be before anything changes
        finite = values
        if not np.isfinite(values).all():
            finite = values[np.isfinite(values).all(axis=1)]
            self.missing += int(np.isnan(values).any(axis=1).sum())
            self.infinite += int(np.isinf(values).any(axis=1).sum())
        if self._scorer is None:  # there is nothing to go by yet but these themselves
            self._learn(finite)
        scores = np.full(len(values), np.nan) if self._scorer is None else self._scorer.score(values)
        outliers = scores > self.threshold
        if attributes:
            self._hitters.count(factorized, outliers)
        if times is not None:
            self._windows.add(times, values, outliers)
        if self.events:
            self._learn(finite)
        self.events += len(values)
        return scores

    def _learn(self, finite: np.ndarray) -> None:
        """Add to the sample; score by it anew once it is half as old again, and at first whenever it has doubled."""
        self._sample.add(finite)
        self._fit_at -= len(finite)
        if self._fit_at > 0 or not len(self._sample.rows()):
            return
        self._scorer = fit_scorer(self._sample.rows())
        self.threshold = float(np.quantile(self._scorer.score(self._sample.rows()), 1.0 - self._outlier_share))
        self._fit_at = min(self.events + len(finite), self._half_life / 2)

    def unusual(self, *, least_support: float = 0.01, least_ratio: float = 1.5) -> list[UnusualCombination]:
        """The combinations behind the outliers, the most telling first: each has `least_support` of them or more, and
        is at least `least_ratio` times as likely to be one as other events."""
        self._check_begun()
        return find_unusual(
            self._hitters.combinations(),
            events=self._hitters.events,
            outliers=self._hitters.outliers,
            least_support=least_support,
            least_ratio=least_ratio,
        )

    def frequent(self, *attributes: str) -> list[FrequentCombination]:
        """The frequent values or combinations of these attributes, or all, the most frequent first."""
        self._check_begun()
        found = self._hitters.combinations()
        return [each for each in found if not attributes or set(each.values) == set(attributes)]

    def windows(self) -> list[WindowSummary]:
        """The latest windows of time that had events, the oldest first."""
        if self._time is None:
            raise DovetailError("windows need to know when events were; name the column: dt.Monitor(time='at', ...).")
        self._check_begun()
        return self._windows.summaries()

    def notes(self) -> list[str]:
        """What of the stream could not be used, in words."""
        late = self._windows.late
        said = [f"{late} events came after their window of time was closed and are in none"] if late else []
        said += [f"{self.missing} events lack a metric; they have no score"] if self.missing else []
        said += [f"{self.infinite} events have an infinite metric; they are outliers"] if self.infinite else []
        said += [
            f"{count} events have no {name!r}; they are in no combination of it"
            for name, count in self._hitters.nulls().items()
        ]
        return said + [
            f"{name!r} has more values than are counted ({self._settings['capacity']}), none of them frequent; it "
            f"explains nothing"
            for name in self._hitters.without_frequent_values()
        ]

    def save(self, path: str | Path) -> Path:
        """Write all of it to a file, whole or not at all; `Monitor.load` goes on as if nothing had been."""
        state = {
            "settings": self._settings,
            "counts": [self.events, self.missing, self.infinite, self._fit_at, self.threshold],
            "scorer": None if self._scorer is None else [self._scorer.center, self._scorer.whitening],
            "parts": [part.state() for part in self._parts()],
        }
        return write_state(Path(path), state, what=_SAVED)

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """The monitor that `save` wrote."""
        state = read_state(Path(path), what=_SAVED)
        found = cls(**state["settings"])
        found.events, found.missing, found.infinite, found._fit_at, found.threshold = state["counts"]
        if state["scorer"] is not None:
            found._scorer = RobustScorer(center=state["scorer"][0], whitening=state["scorer"][1])
        for part, saved in zip(found._parts(), state["parts"], strict=True):
            part.restore(saved)
        return found

    def _parts(self) -> tuple[Any, ...]:
        return self._sample, self._hitters, self._windows

    def _check_begun(self) -> None:
        if not self.events:
            raise DovetailError("a monitor must have seen events before it is asked; this one has seen none.")


def _check(*, metrics: list[str], attributes: list[str], **settings: Any) -> None:
    if not metrics:
        raise DovetailError("a monitor must have a metric to score events by; metrics is empty.")
    if twice := sorted({name for name in [*metrics, *attributes] if [*metrics, *attributes].count(name) > 1}):
        raise DovetailError(f"metrics and attributes must be different columns; {twice} are named twice.")
    for name in ("window_seconds", "windows", "order", "capacity", "half_life"):
        if not settings[name] > 0:
            raise DovetailError(f"{name} must be greater than 0, got {settings[name]!r}.")
    if not 0 < settings["outlier_share"] < 0.5:
        raise DovetailError(f"outlier_share must be between 0 and 0.5, got {settings['outlier_share']!r}.")
