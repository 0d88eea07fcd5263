"""An estimator fitted to outcomes, with what held-out queries say about it.

Folds are drawn twice: at random, for queries like those in the table; and by whole domains, for queries of domains that
it has not seen. Each has its calibration. Where there are no domains, a query that shares fewer words with the table
than nearly all of the table's own do is a stranger, about whom nothing is claimed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing.calibration import QualityCalibration, QualityEstimate
from dovetail.serve.routing.estimators import Predict, QualityEstimator
from dovetail.serve.routing.outcome_table import Numbers

FOLDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FittedQuality:
    """What predicts, and the calibrations for familiar queries and for others, None where nothing can be said;
    `held_out` is what familiar rows were estimated at, by folds that had not seen them."""

    predict: Predict
    familiar: QualityCalibration
    unfamiliar: QualityCalibration | None
    held_out: QualityEstimate

    @classmethod
    def fit(
        cls, fit: Callable[[Any, Numbers], Predict], rows: Any, quality: Numbers, domains: Sequence[str] | None,
        *, best: int, seed: int = 0, rows_of_strangers: Any = None,
    ) -> "FittedQuality":  # fmt: skip
        """Of rows and outcomes. `rows_of_strangers` are the same rows without what only familiar queries have."""
        every = np.arange(len(quality))
        order = np.random.default_rng(seed).permutation(len(quality))
        folds = np.empty(len(quality), dtype=np.int64)
        folds[order] = every % FOLDS
        predicted = _predict_out_of_fold(fit, rows, rows, quality, folds)
        familiar = QualityCalibration.fit(predicted, quality, every, best=best)
        unfamiliar = None
        if domains is not None and len(codes := np.unique(np.array(domains), return_inverse=True)[1]) and codes.max():
            by_domain = np.random.default_rng(seed).permutation(codes.max() + 1)[codes] % FOLDS
            asked = rows if rows_of_strangers is None else rows_of_strangers
            unfamiliar = QualityCalibration.fit(
                _predict_out_of_fold(fit, rows, asked, quality, by_domain), quality, codes, best=best
            )
        return cls(
            predict=fit(rows, quality),
            familiar=familiar,
            unfamiliar=unfamiliar,
            held_out=familiar.apply(predicted),
        )

    def estimate(self, rows: Any, is_familiar: NDArray[np.bool_]) -> QualityEstimate:
        """Calibrated qualities. Of strangers nothing but the means is said where there is no calibration for them."""
        predicted = self.predict(rows)
        near = self.familiar.apply(predicted)
        if self.unfamiliar is not None:
            far = self.unfamiliar.apply(predicted)
        else:
            level = np.array([line.middle for line in self.familiar.lines]) + self.familiar.level.middle
            level[self.familiar.best] = self.familiar.level.middle
            far = QualityEstimate(quality=np.broadcast_to(level, near.quality.shape), error=np.zeros_like(near.error))
        mask = is_familiar[:, None]
        return QualityEstimate(
            quality=np.where(mask, near.quality, far.quality), error=np.where(mask, near.error, far.error)
        )


def fit_estimator(
    estimator: QualityEstimator, queries: Sequence[str], domains: Sequence[str] | None, quality: Numbers, *, best: int
) -> FittedQuality:
    """Fit an estimator that knows the query alone to the qualities of answers in the table."""
    estimator.prepare(queries, domains)
    rows = estimator.represent(queries, domains)
    strange = None if domains is None else estimator.represent(queries, None)
    return FittedQuality.fit(estimator.fit, rows, quality, domains, best=best, rows_of_strangers=strange)


def _predict_out_of_fold(
    fit: Callable[[Any, Numbers], Predict], rows: Any, asked: Any, quality: Numbers, folds: NDArray[np.int64]
) -> Numbers:
    predicted = np.empty_like(quality)
    for fold in np.unique(folds):
        held = np.flatnonzero(folds == fold)
        learned = np.flatnonzero(folds != fold)
        predicted[held] = fit(rows[learned], quality[learned])(asked[held])
    return predicted
