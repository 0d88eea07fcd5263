"""How far an event is from the usual, by statistics that a few wild values cannot move.

One metric: the distance from the median in MADs, 1.4826 of which are a standard deviation of a normal metric. Several:
the Mahalanobis distance by the location and scatter of minimum covariance determinant (Rousseeuw), on robustly scaled
metrics. Both are taken from a sample of the stream; an event's own score takes one pass over its values.
"""

import dataclasses

import numpy as np

from dovetail.vocabulary import DovetailError

# A normal metric's standard deviation in MADs.
SIGMA_PER_MAD = 1.4826
# What MCD is taken from: its search grows with the rows by jumps, 0.08 s for 500 and 0.8 s for 1,000.
DETERMINANT_ROWS = 500
TRIMMED_SHARE = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustScorer:
    """Distances from `center` through `whitening`: the Euclidean length of (values - center) @ whitening.

    >>> scorer = fit_scorer(np.array([[1.0], [2.0], [3.0], [4.0], [100.0]]))
    >>> scorer.score(np.array([[3.0], [3.0 + 1.4826]])).round(3).tolist()
    [0.0, 1.0]
    """

    center: np.ndarray
    whitening: np.ndarray

    def score(self, values: np.ndarray) -> np.ndarray:
        """The distance of each row: infinite where a metric is, NaN where one is missing."""
        if values.shape[1] == 1:
            return np.asarray(np.abs(values[:, 0] - self.center[0]) * self.whitening[0, 0])
        with np.errstate(invalid="ignore"):
            scores = np.sqrt(np.square((values - self.center) @ self.whitening).sum(axis=1))
        scores[np.isinf(values).any(axis=1) & ~np.isnan(values).any(axis=1)] = np.inf
        return np.asarray(scores)


def fit_scorer(sample: np.ndarray) -> RobustScorer:
    """The scorer that a sample of finite rows gives."""
    center, scale = median_and_scale(sample)
    if sample.shape[1] == 1 or len(sample) <= 2 * sample.shape[1]:
        return RobustScorer(center=center, whitening=np.diag(1.0 / scale))
    scaled = (sample[np.random.default_rng(0).permutation(len(sample))[:DETERMINANT_ROWS]] - center) / scale
    location, covariance = _least_determinant(scaled)
    # Two metrics of which one follows from the other have no inverse; what is left of the scatter decides then.
    vectors = np.linalg.cholesky(np.linalg.pinv(covariance + 1e-9 * np.eye(len(covariance))))
    return RobustScorer(center=center + location * scale, whitening=vectors / scale[:, None])


def median_and_scale(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median of each column, and what stands for its standard deviation.

    >>> median_and_scale(np.array([[1.0], [1.0], [1.0], [1.0], [3.0]]))[1].tolist()  # the MAD is 0
    [0.4]
    """
    center = np.median(sample, axis=0)
    deviations = np.abs(sample - center)
    scale = SIGMA_PER_MAD * np.median(deviations, axis=0)
    for column in np.flatnonzero(scale == 0):  # more than half of the values are one and the same
        scale[column] = _trimmed_mean(deviations[:, column]) or deviations[:, column].mean() or 1.0
    return center, scale


def _trimmed_mean(values: np.ndarray) -> float:
    kept = np.sort(values)[: max(1, int(len(values) * (1 - TRIMMED_SHARE)))]
    return float(kept.mean())


def _least_determinant(scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import warnings

    try:
        from sklearn.covariance import MinCovDet
    except ImportError as error:
        raise DovetailError(
            "several metrics must have scikit-learn to be scored together; it is not installed. Install it: pip "
            "install 'dovetail[watch]'."
        ) from error
    with warnings.catch_warnings():  # it warns where metrics depend on each other, which pinv takes care of
        warnings.simplefilter("ignore")
        found = MinCovDet(random_state=0).fit(scaled)
    return found.location_, found.covariance_
