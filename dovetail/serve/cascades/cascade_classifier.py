"""A scikit-learn classifier that answers from few features where these are enough."""

from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.serve.cascades.feature_cascade import FeatureCascade, GroupStage, LabelledRows
from dovetail.serve.cascades.feature_groups import count_rows, side_by_side, take
from dovetail.serve.cascades.promise import least_rows
from dovetail.serve.cascades.thresholds import LEAST_SAVED, Verdicts
from dovetail.serve.cascades.top_rows import keep_threshold, least_top_rows
from dovetail.vocabulary import DovetailError

try:
    from sklearn.base import ClassifierMixin, clone
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise DovetailError(
        f"a CascadeClassifier must have scikit-learn; found: {error}. Run: pip install 'dovetail[serve]'"
    ) from error


def _plain_has(cascade: Any, method: str) -> bool:
    return hasattr(getattr(cascade, "plain_", cascade.pipeline), method)


class CascadeClassifier(ClassifierMixin, FeatureCascade):  # type: ignore[misc]
    """A pipeline's classifier with cheaper ones before it: each answers from some groups of features, where it is sure
    enough, and only the rest of the rows have the other features computed and go on. Fewer than the share `lose` of all
    rows are answered wrongly that the whole pipeline would have answered rightly; that is true with probability
    `confidence` over the rows that it is calibrated with.

    `pipeline` is a `ColumnTransformer` or a `FeatureUnion` of named groups and a classifier; what each group takes is
    measured as it is fitted, for calls of about `batch_rows` rows. Of the rows for `fit`, `calibrate_share` choose the
    stages and keep the promise, and are not learned from. Where no cascade pays, it is the plain pipeline, and
    `why_plain_` says why. `plain_` is the fitted pipeline, `stages_` names the groups of each stage, and
    `expected_share_` is the share of the plain pipeline's CPU time that it should take.

    With `top_k` it ranks instead: `top(X)` finds that many rows with the highest score of the second class, for which
    the whole pipeline sees only those that a cheap stage lets through; `precision` of them are right, with
    `confidence`.

    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import FeatureUnion, Pipeline
    >>> from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures
    >>> X, y = make_classification(n_samples=400, random_state=0)
    >>> features = FeatureUnion([("plain", FunctionTransformer()), ("products", PolynomialFeatures(2))])
    >>> pipeline = Pipeline([("features", features), ("model", LogisticRegression(max_iter=50))])
    >>> cascade = CascadeClassifier(pipeline, lose=0.05).fit(X, y)
    >>> cascade.predict(X[:3]).shape
    (3,)
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        lose: float = 0.001,
        confidence: float = 0.95,
        top_k: int | None = None,
        precision: float = 0.95,
        calibrate_share: float = 0.4,
        batch_rows: int = 1000,
        seed: int = 0,
    ) -> None:
        self.pipeline, self.lose, self.confidence = pipeline, lose, confidence
        self.top_k, self.precision = top_k, precision
        self.calibrate_share, self.batch_rows, self.seed = calibrate_share, batch_rows, seed

    def predict(self, X: Any) -> numpy.ndarray:
        """The class of each row."""
        return self._answer(X, _as_classes, "predict")

    @available_if(lambda self: _plain_has(self, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> numpy.ndarray:
        """How likely each class is, by the stage that answers the row; where the plain pipeline can say."""
        return self._answer(X, lambda model, scores: scores, "predict_proba")

    @available_if(lambda self: not _plain_has(self, "predict_proba") and _plain_has(self, "decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> numpy.ndarray:
        """The score of each class, by the stage that answers the row; where the plain pipeline gives no chances."""
        return self._answer(X, lambda model, scores: scores, "decision_function")

    def top(self, X: Any) -> numpy.ndarray:
        """The numbers of the `top_k` rows with the highest score, the best first."""
        if self.top_k is None:
            raise DovetailError("top must have a number of rows to find: make the cascade with top_k=.")
        check_is_fitted(self, "plain_")
        rows = count_rows(X)
        if not rows:
            return numpy.arange(0)
        count = min(self.top_k, rows)
        left, computed = numpy.arange(rows), dict[int, Any]()
        if self._ranking is not None:
            stage, cheap, whole = self._ranking
            threshold = keep_threshold(
                cheap, whole, share=count / rows, count=count, precision=self.precision, confidence=self.confidence
            )
            if threshold is not None:
                computed = {group: self._groups[group].compute(X) for group in stage.groups}
                score = _score(stage.model, side_by_side([computed[group] for group in stage.groups]))
                fewest = numpy.partition(score, rows - count)[rows - count]
                left = numpy.flatnonzero(score >= min(threshold, fewest))
                computed = {group: take(values, left) for group, values in computed.items()}
        score = _score(self._whole, self._complete(X, left, computed))
        best = numpy.argsort(-score, kind="stable")[:count]
        return left[best]

    def _check(self, X: Any, y: numpy.ndarray) -> None:
        super()._check(X, y)
        if not 0 < self.precision < 1:
            raise DovetailError(f"precision must lie between 0 and 1; got {self.precision:g}.")
        if self.top_k is not None and (self.top_k < 1 or len(numpy.unique(y)) != 2):
            raise DovetailError(
                f"top_k must be at least 1 and ranks by the second of two classes; got top_k={self.top_k} and "
                f"{len(numpy.unique(y))} classes."
            )

    def _least_rows(self) -> int:
        if self.top_k is None:
            return least_rows(self.lose, self.confidence)
        return 2 * least_top_rows(self.top_k, precision=self.precision, confidence=self.confidence)

    def _fit_whole(self, X: Any, y: numpy.ndarray) -> None:
        if len(classes := set(y.tolist())) < 2:
            raise DovetailError(
                f"the rows to learn from must have two classes or more, for one to be surer than another; of {len(y)} "
                f"rows {f'all are {classes.pop()!r}' if classes else 'none is there'}."
            )
        super()._fit_whole(X, y)
        self.classes_ = self._whole.classes_
        self._ranking: tuple[GroupStage, numpy.ndarray, numpy.ndarray] | None = None

    def _fit_stage(self, groups: tuple[int, ...], learned: LabelledRows) -> Any:
        return clone(self._whole).fit(learned.of(groups), learned.labels)

    def _judge(self, model: Any, features: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
        scores = _scores(model, features)
        return _sureness(scores), scores

    def _merit(self, model: Any, groups: tuple[int, ...], rows: LabelledRows) -> float:
        _, counts = numpy.unique(rows.labels, return_counts=True)
        right = (model.predict(rows.of(groups)) == rows.labels).mean()
        return float(right - counts.max() / counts.sum())

    def _verdicts(self, stages: Sequence[GroupStage], rows: LabelledRows) -> list[Verdicts]:
        is_right = self._whole.predict(rows.of(self._all)) == rows.labels
        found = []
        for stage in stages:
            sureness, scores = self._judge(stage.model, rows.of(stage.groups))
            found.append(Verdicts(sureness, is_right & (_as_classes(stage.model, scores) != rows.labels)))
        return found

    def _choose(self, candidates: Sequence[GroupStage], chosen: LabelledRows, fresh: LabelledRows) -> None:
        if self.top_k is None:
            self._choose_chain(candidates, chosen, fresh)
        else:
            self._choose_ranking(candidates, chosen, fresh)

    def _choose_ranking(self, candidates: Sequence[GroupStage], chosen: LabelledRows, fresh: LabelledRows) -> None:
        """The stage that lets through few enough for what it takes; how few is found on other rows."""
        assert self.top_k is not None

        def share_kept(stage: GroupStage, rows: LabelledRows) -> float:
            cheap = _score(stage.model, rows.of(stage.groups))
            whole = _score(self._whole, rows.of(self._all))
            known = least_top_rows(self.top_k or 1, precision=self.precision, confidence=self.confidence)
            return float((cheap >= cheap[numpy.argsort(-whole)[:known]].min()).mean())

        plain = self._seconds([], [1.0])
        taken = [self._seconds([stage], [1.0, share_kept(stage, chosen)]) for stage in candidates]
        best = candidates[int(numpy.argmin(taken))]
        self.expected_share_ = self._seconds([best], [1.0, share_kept(best, fresh)]) / plain
        if self.expected_share_ > 1 - LEAST_SAVED:
            self.why_plain_ = f"a cheap stage before it would take {self.expected_share_:.0%} of the plain time"
            self.expected_share_ = 1.0
            return
        self._keep([best])
        self._ranking = (best, _score(best.model, fresh.of(best.groups)), _score(self._whole, fresh.of(self._all)))


def _scores(model: Any, features: Any) -> numpy.ndarray:
    has_chances = hasattr(model, "predict_proba")
    found: numpy.ndarray = model.predict_proba(features) if has_chances else model.decision_function(features)
    return found


def _score(model: Any, features: Any) -> numpy.ndarray:
    """Of the second class, as finely as it can be told."""
    if hasattr(model, "decision_function"):
        return numpy.asarray(model.decision_function(features))
    return numpy.asarray(_scores(model, features)[:, 1])


def _sureness(scores: numpy.ndarray) -> numpy.ndarray:
    """How sure a model is of each row: what sets its first class apart from its second."""
    if scores.ndim == 1:
        return numpy.asarray(numpy.abs(scores))
    ranked = numpy.partition(scores, scores.shape[1] - 2, axis=1)
    return numpy.asarray(ranked[:, -1] - ranked[:, -2])


def _as_classes(model: Any, scores: numpy.ndarray) -> numpy.ndarray:
    best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
    return numpy.asarray(model.classes_[best])
