"""What quality each model's answer to a query will have: three ways to learn it from outcomes.

A way turns queries into rows of numbers once, and fits what predicts every model's quality from such rows; so that
folds share the first and each have the second. Does not know prices, calibration or decisions.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing.outcome_table import Numbers
from dovetail.serve.routing.text_features import TextFeatures
from dovetail.vocabulary import DovetailError

Embedder = Callable[[list[str]], Any]
"""Gives a row of numbers for each text."""
Predict = Callable[[Any], Numbers]
# Of the ridge on words of length one: five-fold, 5 and 20 are worse on both MMLU and GSM8K, by .002 to .004 of APGR.
ALPHA = 10.0


class QualityEstimator(abc.ABC):
    """A way to learn qualities. `prepare` is called once with all queries to learn from, without their outcomes;
    then `represent` for any queries, and `fit` for any part of the rows."""

    @abc.abstractmethod
    def prepare(self, queries: Sequence[str], domains: Sequence[str] | None) -> None:
        """Learn the vocabulary or the domains of these queries, before any is represented."""

    @abc.abstractmethod
    def represent(self, queries: Sequence[str], domains: Sequence[str] | None) -> Any:
        """The features of each query, a row for each."""

    @abc.abstractmethod
    def regressor(self, count: int) -> Any:
        """A regressor of scikit-learn's kind for this many rows."""

    def fit(self, rows: Any, quality: Numbers) -> Predict:
        """What predicts the quality of each model from rows; outcomes that nobody knows (NaN) are passed over."""
        fitted = []
        for column in quality.T:
            known = np.flatnonzero(~np.isnan(column))
            fitted.append(self.regressor(len(known)).fit(rows[known], column[known]) if len(known) else None)
        middle = float(np.nanmean(quality)) if not np.isnan(quality).all() else 0.5
        return lambda asked: np.stack(
            [np.full(asked.shape[0], middle) if each is None else each.predict(asked) for each in fitted], axis=1
        )


class TextRidge(QualityEstimator):
    """A ridge regression on the words, the shape and the domain of a query."""

    def __init__(self) -> None:
        self._features = TextFeatures()

    def prepare(self, queries: Sequence[str], domains: Sequence[str] | None) -> None:
        """Learn the vocabulary of these queries."""
        self._features.fit(queries, domains)

    def represent(self, queries: Sequence[str], domains: Sequence[str] | None) -> Any:
        """Features of each query's words, its shape and its domain."""
        return self._features.transform(queries, domains)

    def regressor(self, count: int) -> Any:
        """By conjugate gradients, because rows are long and sparse."""
        from sklearn.linear_model import Ridge

        return Ridge(ALPHA, solver="sparse_cg", tol=1e-3)


class NearestNeighbours(QualityEstimator):
    """The mean of the nearest queries, by an embedder of the user's."""

    def __init__(self, embed: Embedder) -> None:
        self._embed = embed

    def prepare(self, queries: Sequence[str], domains: Sequence[str] | None) -> None:
        """Nothing is learned: the embedder knows."""

    def represent(self, queries: Sequence[str], domains: Sequence[str] | None) -> NDArray[np.float64]:
        """The embedding of each query, as the user's function gives it."""
        rows = np.asarray(self._embed(list(queries)), dtype=np.float64)
        if rows.ndim != 2 or len(rows) != len(queries) or not np.isfinite(rows).all():
            raise DovetailError(
                f"an embedder must give a row of finite numbers for each text, got {rows.shape} for {len(queries)}."
            )
        return rows

    def regressor(self, count: int) -> Any:
        """As many neighbours as make the error of their mean and their distance about equal: the root of the rows."""
        from sklearn.neighbors import KNeighborsRegressor

        return KNeighborsRegressor(max(1, round(count**0.5)))


class DomainMeans(QualityEstimator):
    """The mean of the query's domain, drawn towards that of all as though each domain had one more query."""

    def __init__(self) -> None:
        self._encoder: Any = None

    def prepare(self, queries: Sequence[str], domains: Sequence[str] | None) -> None:
        """Learn which domains there are."""
        from sklearn.preprocessing import OneHotEncoder

        if domains is None:
            raise DovetailError("means of domains need a column 'domain' in the table of outcomes; it has none.")
        self._encoder = OneHotEncoder(handle_unknown="ignore").fit([[domain] for domain in domains])

    def represent(self, queries: Sequence[str], domains: Sequence[str] | None) -> Any:
        """The domain of each query, as a column of zeros and ones for each domain."""
        return self._encoder.transform([[domain] for domain in domains or [""] * len(queries)]).tocsr()

    def regressor(self, count: int) -> Any:
        """A ridge on indicators is a shrunk mean."""
        from sklearn.linear_model import Ridge

        return Ridge(1.0, solver="sparse_cg")


ESTIMATORS: dict[str, Callable[[Embedder | None], QualityEstimator]] = {
    "text": lambda embed: TextRidge(),
    "neighbours": lambda embed: NearestNeighbours(embed or _no_embedder()),
    "domains": lambda embed: DomainMeans(),
}


def _no_embedder() -> Embedder:
    raise DovetailError("neighbours are found by an embedder: give embed=, a function from texts to rows of numbers.")
