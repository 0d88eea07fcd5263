"""How far predicted qualities are to be believed: what was predicted for queries held out, against what came.

A model is judged by its advantage over the best single model, because that is what a decision needs. The advantage
that came is regressed on the one predicted, out of fold; the line's value is the calibrated advantage, and its
standard error, with whole domains as the units that vary, is how unsure it is. Predictions that tell nothing get a line
without a slope, and so lose their say.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dovetail.serve.routing.outcome_table import Numbers

# Fewer pairs than this say nothing about a line.
_LEAST = 20


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AdvantageLine:
    """advantage = `middle` + `slope`·(predicted − `centre`), with the covariance of the two."""

    middle: float
    slope: float
    centre: float
    covariance: Numbers

    @classmethod
    def fit(cls, predicted: Numbers, came: Numbers, groups: NDArray[np.int64]) -> "AdvantageLine":
        """By least squares; the covariance is the sandwich over groups (Liang and Zeger, 1986).

        >>> line = AdvantageLine.fit(np.arange(40.0), np.arange(40.0) / 2, np.arange(40))
        >>> round(line.slope, 6), bool(line.error(np.array([20.0]))[0] < 1e-6)
        (0.5, True)
        """
        known = ~np.isnan(came)
        x, y, groups = predicted[known], came[known], groups[known]
        if len(x) < _LEAST:
            return cls(middle=0.0, slope=0.0, centre=0.0, covariance=np.eye(2))
        centre, middle = float(x.mean()), float(y.mean())
        spread = float(((x - centre) ** 2).sum())
        # Never negative: that a model is better where it was predicted to be worse is chance.
        slope = max(0.0, float((x - centre) @ y) / spread) if spread > 0 else 0.0
        residual = y - middle - slope * (x - centre)
        scores = np.zeros((groups.max() + 1, 2))
        np.add.at(scores, groups, residual[:, None] * np.stack([np.ones_like(x), x - centre], axis=1))
        bread = np.diag([1 / len(x), 1 / spread if spread > 0 else 0.0])
        used = len(np.unique(groups))
        covariance = bread @ (scores.T @ scores) @ bread * used / max(1, used - 1)
        return cls(middle=middle, slope=slope, centre=centre, covariance=covariance)

    def value(self, predicted: Numbers) -> Numbers:
        """The calibrated advantage for each predicted one."""
        return np.asarray(self.middle + self.slope * (predicted - self.centre))

    def error(self, predicted: Numbers) -> Numbers:
        """The standard error of each calibrated advantage."""
        design = np.stack([np.ones_like(predicted), predicted - self.centre], axis=1)
        return np.asarray(np.sqrt(np.einsum("ni,ij,nj->n", design, self.covariance, design)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QualityEstimate:
    """For each query and model its quality and the standard error of its advantage over the best single model."""

    quality: Numbers
    error: Numbers


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QualityCalibration:
    """A line for each model, against the model with number `best`."""

    best: int
    level: AdvantageLine
    lines: tuple[AdvantageLine, ...]

    @classmethod
    def fit(cls, predicted: Numbers, came: Numbers, groups: NDArray[np.int64], *, best: int) -> "QualityCalibration":
        """Of predictions out of fold and what came."""
        level = AdvantageLine.fit(predicted[:, best], came[:, best], groups)
        pairs = zip(predicted.T, came.T, strict=True)
        lines = [AdvantageLine.fit(p - predicted[:, best], c - came[:, best], groups) for p, c in pairs]
        return cls(best=best, level=level, lines=tuple(lines))

    def apply(self, predicted: Numbers) -> QualityEstimate:
        """Qualities as they are to be believed."""
        base = predicted[:, self.best]
        gaps = [(line, column - base) for line, column in zip(self.lines, predicted.T, strict=True)]
        quality = self.level.value(base)[:, None] + np.stack([line.value(gap) for line, gap in gaps], axis=1)
        error = np.stack([line.error(gap) for line, gap in gaps], axis=1)
        quality[:, self.best], error[:, self.best] = self.level.value(base), 0.0
        return QualityEstimate(quality=quality, error=error)
