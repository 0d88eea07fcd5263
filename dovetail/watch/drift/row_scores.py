"""What is compared of each row beside its attributes, as numbers between 0 and 1 that no wild value can move: where its
metrics rank in the reference, whether its prediction was wrong, and by how much its probability was off."""

import dataclasses
from typing import Any

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.columns import columns_of, numbers

# A rank is looked up among so many quantiles of the reference.
QUANTILES = 1_001


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoredColumns:
    """Which columns are what. Of a model: the `label` that came out, its `prediction`, and the `probability` that it
    gave the label 1."""

    metrics: tuple[str, ...] = ()
    label: str | None = None
    prediction: str | None = None
    probability: str | None = None

    def __post_init__(self) -> None:
        if (self.prediction or self.probability) and not self.label:
            raise DovetailError(
                "a prediction or probability must have a label to be compared with; name it: label='y'."
            )
        if self.label and not (self.prediction or self.probability):
            raise DovetailError("a label must have a prediction or a probability to be compared with; none is named.")


class RowScorer:
    """Scores of rows, by what the reference's metrics are.

    >>> scorer = RowScorer(ScoredColumns(metrics=("latency",)), {"latency": np.arange(100.0)})
    >>> scorer.names, scorer.score({"latency": np.array([-5.0, 49.5, 1e9])}).round(2).tolist()
    (['latency', 'spread of latency'], [[0.0, 1.0], [0.5, 0.0], [1.0, 1.0]])
    """

    def __init__(self, columns: ScoredColumns, reference: dict[str, Any]) -> None:
        self._columns = columns
        self.names = [word for name in columns.metrics for word in (name, f"spread of {name}")]
        self._quantiles = []
        for name, values in metric_columns(columns, reference).items():
            finite = values[~np.isnan(values)]
            if not len(finite):
                raise DovetailError(f"{name!r} must have numbers in the reference; it has none.")
            steps = np.linspace(0.0, 1.0, QUANTILES)
            self._quantiles.append(np.quantile(finite, steps, method="nearest"))
        self.names += ["error"] if columns.prediction else []
        self.names += ["calibration"] if columns.probability else []

    def score(self, table: dict[str, Any]) -> np.ndarray:
        """A row of scores for each row of a table, NaN where there is none."""
        found = []
        for values, quantiles in zip(metric_columns(self._columns, table).values(), self._quantiles, strict=True):
            rank = _rank(values, quantiles)
            found += [rank, np.abs(2.0 * rank - 1.0)]
        found += [errors(self._columns, table)] if self._columns.prediction else []
        if self._columns.probability:
            wrong, expected = labels_and_probabilities(self._columns, table)
            found.append((wrong - expected + 1.0) / 2.0)
        rows = len(next(iter(table.values())))
        return np.stack(found, axis=1) if found else np.empty((rows, 0))


def metric_columns(columns: ScoredColumns, table: Any) -> dict[str, np.ndarray]:
    """The metrics of a table as numbers."""
    found = columns_of(table, columns.metrics)
    return {name: numbers(column, name) for name, column in found.items()}


def _rank(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """The part of the reference below each value, half of what equals it counted: equal values share a rank."""
    below, upto = np.searchsorted(quantiles, values, side="left"), np.searchsorted(quantiles, values, side="right")
    ranks = (below + upto) / (2.0 * len(quantiles))
    ranks[np.isnan(values)] = np.nan
    return np.asarray(ranks)


def errors(columns: ScoredColumns, table: Any) -> np.ndarray:
    """1 where the prediction is not the label, else 0."""
    assert columns.label
    assert columns.prediction
    found = columns_of(table, [columns.label, columns.prediction])
    label, prediction = (np.asarray(each) for each in found.values())
    return np.asarray(label != prediction, dtype=float)


def labels_and_probabilities(columns: ScoredColumns, table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 0 and 1, and the probability that each was given."""
    assert columns.label
    assert columns.probability
    found = columns_of(table, [columns.label, columns.probability])
    label, probability = (numbers(column, name) for name, column in found.items())
    if not np.isin(label, (0.0, 1.0)).all():
        raise DovetailError(f"labels with a probability must be 0 or 1; {columns.label!r} has others.")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise DovetailError(f"probabilities must be between 0 and 1; {columns.probability!r} has others.")
    return label, probability
