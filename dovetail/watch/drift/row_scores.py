"""What is compared of each row beside its attributes, as numbers between 0 and 1 that no wild value can move: where its
metrics rank in the reference, whether its prediction was wrong, and by how much its probability was off."""

import dataclasses
from typing import Any

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.columns import kinds, numbers

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

    @property
    def of_model(self) -> tuple[str, ...]:
        """Those of a model."""
        return tuple(name for name in (self.label, self.prediction, self.probability) if name)


class RowScorer:
    """Scores of rows, by what the reference's metrics are.

    >>> scorer = RowScorer(ScoredColumns(metrics=("latency",)), {"latency": np.arange(100.0)})
    >>> scorer.names, scorer.score({"latency": np.array([-5.0, 49.5, 1e9])}).round(2).tolist()
    (['latency', 'spread of latency'], [[0.0, 1.0], [0.5, 0.0], [1.0, 1.0]])
    """

    def __init__(self, columns: ScoredColumns, reference: dict[str, Any]) -> None:
        self.columns = columns
        self.names = _score_names(columns)
        self.quantiles = []
        for name, values in metric_columns(columns, reference).items():
            finite = values[~np.isnan(values)]
            if not len(finite):
                raise DovetailError(f"{name!r} must have numbers in the reference; it has none.")
            steps = np.linspace(0.0, 1.0, QUANTILES)
            self.quantiles.append(np.quantile(finite, steps, method="nearest"))

    @classmethod
    def restored(cls, columns: ScoredColumns, quantiles: list[np.ndarray]) -> "RowScorer":
        """The scorer with these `quantiles` of a reference, which it needs no more."""
        found = cls.__new__(cls)
        found.columns, found.names, found.quantiles = columns, _score_names(columns), quantiles
        return found

    def score(self, table: dict[str, Any]) -> np.ndarray:
        """A row of scores for each row of a table, NaN where there is none."""
        found = []
        for values, quantiles in zip(metric_columns(self.columns, table).values(), self.quantiles, strict=True):
            rank = _rank(values, quantiles)
            found += [rank, np.abs(2.0 * rank - 1.0)]
        found += [errors(self.columns, table)] if self.columns.prediction else []
        if self.columns.probability:
            wrong, expected = labels_and_probabilities(self.columns, table)
            found.append((wrong - expected + 1.0) / 2.0)
        rows = len(next(iter(table.values())))
        return np.stack(found, axis=1) if found else np.empty((rows, 0))


def _score_names(columns: ScoredColumns) -> list[str]:
    names = [word for name in columns.metrics for word in (name, f"spread of {name}")]
    names += ["error"] if columns.prediction else []
    return names + (["calibration"] if columns.probability else [])


def metric_columns(columns: ScoredColumns, table: dict[str, Any]) -> dict[str, np.ndarray]:
    """The metrics of a table as numbers."""
    return {name: numbers(table[name], name) for name in columns.metrics}


def _rank(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """The part of the reference below each value, half of what equals it counted: equal values share a rank."""
    below, upto = np.searchsorted(quantiles, values, side="left"), np.searchsorted(quantiles, values, side="right")
    ranks = (below + upto) / (2.0 * len(quantiles))
    ranks[np.isnan(values)] = np.nan
    return np.asarray(ranks)


def errors(columns: ScoredColumns, table: dict[str, Any]) -> np.ndarray:
    """1 where the prediction is not the label, 0 where it is, NaN where one of them is missing."""
    import pandas

    assert columns.label
    assert columns.prediction
    label, prediction = (np.asarray(table[name]) for name in (columns.label, columns.prediction))
    _check_alike(columns.label, label, columns.prediction, prediction)
    there = ~(pandas.isna(label) | pandas.isna(prediction))
    found = np.full(len(label), np.nan)
    found[there] = label[there] != prediction[there]
    return found


def _check_alike(label: str, labels: np.ndarray, prediction: str, predictions: np.ndarray) -> None:
    """Text never equals a number, so that a model would be wrong everywhere."""
    found = kinds(labels), kinds(predictions)
    if len(found[0] | found[1]) > 1:
        of_label, of_prediction = (" and ".join(sorted(each)) or "nothing" for each in found)
        raise DovetailError(
            f"a prediction must be of its label's type; {label!r} has {of_label}, {prediction!r} has {of_prediction}. "
            f"Turn both into text, or both into numbers."
        )


def labels_and_probabilities(columns: ScoredColumns, table: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 0 and 1, and the probability that each was given; NaN where one is missing."""
    assert columns.label
    assert columns.probability
    label, probability = (numbers(table[name], name) for name in (columns.label, columns.probability))
    if not np.isin(label[~np.isnan(label)], (0.0, 1.0)).all():
        raise DovetailError(f"labels with a probability must be 0 or 1; {columns.label!r} has others.")
    if ((probability < 0) | (probability > 1)).any():
        raise DovetailError(f"probabilities must be between 0 and 1; {columns.probability!r} has others.")
    return label, probability
