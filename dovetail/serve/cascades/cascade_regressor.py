"""A scikit-learn regressor that answers from few features where these are enough."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.serve.cascades.feature_cascade import FeatureCascade, GroupStage, LabelledRows
from dovetail.serve.cascades.thresholds import Verdicts
from dovetail.vocabulary import DovetailError

try:
    from scipy import sparse  # type: ignore[import-untyped]
    from sklearn.base import RegressorMixin, clone
    from sklearn.ensemble import HistGradientBoostingRegressor
except ImportError as error:
    raise DovetailError(
        f"a CascadeRegressor must have scikit-learn; found: {error}. Run: pip install 'dovetail[serve]'"
    ) from error


@dataclasses.dataclass(frozen=True, slots=True)
class _RegressionStage:
    """A model over some groups, and one that says how far it may be from the whole."""

    model: Any
    width: Any


class CascadeRegressor(RegressorMixin, FeatureCascade):  # type: ignore[misc]
    """A pipeline's regressor with cheaper ones before it, as `CascadeClassifier` has them: each answers where it
    expects to be within `within` of what the whole pipeline would say. Fewer than the share `lose` of all rows are
    farther off than that, with probability `confidence` over the rows that it is calibrated with.

    How far a stage may be off is predicted from its own features (the 90th of a hundred distances, by boosted trees),
    and from which width on it answers is tested on rows that nothing else has seen. Where no cascade pays, it is the
    plain pipeline, and `why_plain_` says why.

    >>> import numpy
    >>> from sklearn.compose import ColumnTransformer
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import Pipeline
    >>> from sklearn.preprocessing import PolynomialFeatures
    >>> X = numpy.random.default_rng(0).normal(size=(500, 3))
    >>> features = ColumnTransformer([("plain", "passthrough", [0]), ("products", PolynomialFeatures(3), [0, 1, 2])])
    >>> pipeline = Pipeline([("features", features), ("model", Ridge())])
    >>> cascade = CascadeRegressor(pipeline, within=0.5, lose=0.05).fit(X, X[:, 0] + 0.1 * X[:, 1] ** 2)
    >>> cascade.predict(X[:3]).shape
    (3,)
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        within: float,
        lose: float = 0.01,
        confidence: float = 0.95,
        calibrate_share: float = 0.4,
        batch_rows: int = 1000,
        seed: int = 0,
    ) -> None:
        self.pipeline, self.within, self.lose, self.confidence = pipeline, within, lose, confidence
        self.calibrate_share, self.batch_rows, self.seed = calibrate_share, batch_rows, seed

    def predict(self, X: Any) -> numpy.ndarray:
        """The value of each row."""
        return self._answer(X, lambda model, values: values, "predict")

    def _check(self, X: Any, y: numpy.ndarray) -> None:
        super()._check(X, y)
        if not self.within > 0:
            raise DovetailError(f"within must be a distance above 0 from what the whole says; got {self.within:g}.")

    def _fit_stage(self, groups: tuple[int, ...], learned: LabelledRows) -> Any:
        features = learned.of(groups)
        model = clone(self._whole).fit(features, learned.labels)
        distance = numpy.abs(model.predict(features) - self._whole.predict(learned.of(self._all)))
        width = HistGradientBoostingRegressor(loss="quantile", quantile=0.9, max_iter=50, random_state=self.seed)
        return _RegressionStage(model, width.fit(_dense(features), distance))

    def _judge(self, model: Any, features: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
        return -model.width.predict(_dense(features)), numpy.asarray(model.model.predict(features))

    def _merit(self, model: Any, groups: tuple[int, ...], rows: LabelledRows) -> float:
        off = numpy.abs(model.model.predict(rows.of(groups)) - rows.labels).mean()
        alone = numpy.abs(rows.labels - numpy.median(rows.labels)).mean()
        return float(1 - off / max(alone, 1e-12))

    def _verdicts(self, stages: Sequence[GroupStage], rows: LabelledRows) -> list[Verdicts]:
        whole = self._whole.predict(rows.of(self._all))
        judged = [self._judge(stage.model, rows.of(stage.groups)) for stage in stages]
        return [Verdicts(sureness, numpy.abs(values - whole) > self.within) for sureness, values in judged]


def _dense(features: Any) -> Any:
    return features.toarray() if sparse.issparse(features) else features
