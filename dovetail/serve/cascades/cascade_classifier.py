"""A scikit-learn classifier that answers from few features where these are enough."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.serve.cascades.costs import CallCost
from dovetail.serve.cascades.feature_groups import (
    FeatureGroup,
    count_rows,
    groups_of,
    measure_rows,
    side_by_side,
    take,
)
from dovetail.serve.cascades.promise import check_promise, least_rows
from dovetail.serve.cascades.thresholds import (
    LEAST_SAVED,
    Verdicts,
    calibrate,
    find_thresholds,
    grow_chain,
    shares_reached,
)
from dovetail.serve.cascades.top_rows import keep_threshold, least_top_rows
from dovetail.vocabulary import DovetailError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, clone
except ImportError as error:
    raise DovetailError(
        f"a CascadeClassifier must have scikit-learn; found: {error}. Run: pip install 'dovetail[serve]'"
    ) from error


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _GroupStage:
    """A model over some groups of features, and what it takes once they are there."""

    groups: tuple[int, ...]
    model: Any
    cost: CallCost


@dataclasses.dataclass(frozen=True, slots=True)
class _LabelledRows:
    """Features of all groups, and the labels."""

    features: list[Any]
    labels: numpy.ndarray

    def of(self, groups: Sequence[int]) -> Any:
        return side_by_side([self.features[group] for group in groups])


class CascadeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
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

    def fit(self, X: Any, y: Any) -> "CascadeClassifier":
        """Fit the pipeline and the stages before it, choose among them and calibrate them, on parts of these rows that
        have none in common."""
        y = numpy.asarray(y)
        self._check(X, y)
        learn, choose, known = self._split(len(y))
        self._fit_whole(take(X, learn), y[learn])
        self.stages_: list[tuple[str, ...]] = []
        self.why_plain_, self.expected_share_ = "", 1.0
        self._chain: list[tuple[_GroupStage, float]] = []
        self._ranking: tuple[_GroupStage, numpy.ndarray, numpy.ndarray] | None = None
        if len(known) < self._least_rows():
            self.why_plain_ = (
                f"for this promise, {self._least_rows()} rows must be there to calibrate with; there are {len(known)} "
                f"(half of calibrate_share={self.calibrate_share:g} of {len(y)})"
            )
            return self
        learned, chosen, fresh = (
            _LabelledRows([group.compute(take(X, rows)) for group in self._groups], y[rows])
            for rows in (learn, choose, known)
        )
        self._costs = [measure_rows(group.compute, take(X, choose)) for group in self._groups]
        self._whole_cost = measure_rows(self._whole.predict, chosen.of(self._all))
        candidates = self._candidates(learned, chosen)
        if self.top_k is None:
            self._choose_chain(candidates, chosen, fresh)
        else:
            self._choose_ranking(candidates, chosen, fresh)
        return self

    def predict(self, X: Any) -> numpy.ndarray:
        """The class of each row."""
        return self._answer(X, "predict")

    def predict_proba(self, X: Any) -> numpy.ndarray:
        """How likely each class is, by the stage that answers the row."""
        return self._answer(X, "predict_proba")

    def top(self, X: Any) -> numpy.ndarray:
        """The numbers of the `top_k` rows with the highest score, the best first."""
        if self.top_k is None:
            raise DovetailError("top must have a number of rows to find: make the cascade with top_k=.")
        rows = count_rows(X)
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
                computed = {group: values[left] for group, values in computed.items()}
        score = _score(self._whole, self._complete(X, left, computed))
        best = numpy.argsort(-score, kind="stable")[:count]
        return left[best]

    def _answer(self, X: Any, method: str) -> numpy.ndarray:
        rows = count_rows(X)
        left, computed = numpy.arange(rows), dict[int, Any]()
        parts: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        for stage, threshold in self._chain:
            here = X if len(left) == rows else take(X, left)
            computed |= {group: self._groups[group].compute(here) for group in stage.groups if group not in computed}
            scores = _scores(stage.model, side_by_side([computed[group] for group in stage.groups]))
            is_sure = _sureness(scores) >= threshold
            parts.append((left[is_sure], _as_answers(stage.model, scores[is_sure], method)))
            computed = {group: values[~is_sure] for group, values in computed.items()}
            left = left[~is_sure]
            if not len(left):
                break
        if len(left) or not parts:
            parts.append((left, getattr(self._whole, method)(self._complete(X, left, computed))))
        found = numpy.empty((rows, *parts[-1][1].shape[1:]), dtype=parts[-1][1].dtype)
        for where, answers in parts:
            found[where] = answers
        return found

    def _complete(self, X: Any, left: numpy.ndarray, computed: dict[int, Any]) -> Any:
        """All features of some rows, of which some groups are there already."""
        here = X if len(left) == count_rows(X) else take(X, left)
        return side_by_side(
            [computed[group] if group in computed else each.compute(here) for group, each in enumerate(self._groups)]
        )

    def _check(self, X: Any, y: numpy.ndarray) -> None:
        check_promise(self.lose, self.confidence)
        if not (0 < self.calibrate_share < 1 and 0 < self.precision < 1):
            raise DovetailError(
                f"calibrate_share and precision must lie between 0 and 1; got {self.calibrate_share:g} and "
                f"{self.precision:g}."
            )
        if count_rows(X) != len(y):
            raise DovetailError(f"there must be a label for each row; got {count_rows(X)} rows and {len(y)} labels.")
        if len(getattr(self.pipeline, "steps", ())) != 2:
            raise DovetailError(
                "a cascade's pipeline must have two steps, the groups of features and a classifier; put what comes "
                "before the features into each group."
            )
        if self.top_k is not None and (self.top_k < 1 or len(numpy.unique(y)) != 2):
            raise DovetailError(
                f"top_k must be at least 1 and ranks by the second of two classes; got top_k={self.top_k} and "
                f"{len(numpy.unique(y))} classes."
            )

    def _least_rows(self) -> int:
        if self.top_k is None:
            return least_rows(self.lose, self.confidence)
        return 2 * least_top_rows(self.top_k, precision=self.precision, confidence=self.confidence)

    def _split(self, rows: int) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
        """Rows to learn from, to choose by, and to calibrate with."""
        order = numpy.random.default_rng(self.seed).permutation(rows)
        aside = int(rows * self.calibrate_share)
        return order[aside:], order[: aside // 2], order[aside // 2 : aside]

    def _fit_whole(self, X: Any, y: numpy.ndarray) -> None:
        self.plain_ = clone(self.pipeline).fit(X, y)
        self._whole = self.plain_.steps[-1][1]
        self._groups: list[FeatureGroup] = groups_of(self.plain_.steps[0][1])
        self._all = tuple(range(len(self._groups)))
        self.classes_ = self._whole.classes_

    def _candidates(self, learned: _LabelledRows, chosen: _LabelledRows) -> list[_GroupStage]:
        """Models over groups of features: the cheapest ones, and those that add most for what they take, each with one
        more group than the one before."""
        found: dict[tuple[int, ...], _GroupStage] = {}

        def accuracy(groups: tuple[int, ...]) -> float:
            if groups not in found:
                model = clone(self._whole).fit(learned.of(groups), learned.labels)
                found[groups] = _GroupStage(groups, model, measure_rows(model.predict, chosen.of(groups)))
            return float((found[groups].model.predict(chosen.of(groups)) == chosen.labels).mean())

        by_cost = sorted(self._all, key=lambda group: self._group_seconds((group,)))
        for count in range(1, len(by_cost)):
            accuracy(tuple(sorted(by_cost[:count])))
        _, counts = numpy.unique(chosen.labels, return_counts=True)
        base, taken = counts.max() / counts.sum(), tuple[int, ...]()
        while len(taken) < len(self._groups) - 1:
            before = {*taken}
            rest = [tuple(sorted({*taken, group})) for group in self._all if group not in before]
            taken = max(rest, key=lambda each: (accuracy(each) - base) / self._group_seconds({*each} - before))
            base = accuracy(taken)
        return list(found.values())

    def _group_seconds(self, groups: Any) -> float:
        """What a row takes of some groups, in a batch."""
        return sum(self._costs[group].of(1, calls=1 / self.batch_rows) for group in groups) or 1e-12

    def _seconds(self, stages: Sequence[_GroupStage], shares: Sequence[float]) -> float:
        """What a row should take of a chain, where these shares of the rows reach each stage and the whole pipeline."""
        had, total = set[int](), 0.0
        for stage, share in zip(stages, shares[:-1], strict=True):
            costs = [self._costs[group] for group in stage.groups if group not in had]
            total += sum(cost.of(share, calls=1 / self.batch_rows) for cost in [*costs, stage.cost])
            had |= {*stage.groups}
        rest = [self._costs[group] for group in self._all if group not in had]
        calls = 1 / self.batch_rows if shares[-1] else 0.0
        return total + sum(cost.of(shares[-1], calls=calls) for cost in [*rest, self._whole_cost])

    def _verdicts(self, stages: Sequence[_GroupStage], rows: _LabelledRows) -> list[Verdicts]:
        is_right = self._whole.predict(rows.of(self._all)) == rows.labels
        found = []
        for stage in stages:
            scores = _scores(stage.model, rows.of(stage.groups))
            is_wrong = _as_answers(stage.model, scores, "predict") != rows.labels
            found.append(Verdicts(_sureness(scores), is_right & is_wrong))
        return found

    def _choose_chain(self, candidates: Sequence[_GroupStage], chosen: _LabelledRows, fresh: _LabelledRows) -> None:
        """The stages that should save most, each with all groups of the one before it, at thresholds that keep the
        promise."""
        seen = dict(zip(map(id, candidates), self._verdicts(candidates, chosen), strict=True))

        def seconds(stages: Sequence[_GroupStage]) -> float:
            verdicts = [seen[id(stage)] for stage in stages]
            return self._seconds(stages, shares_reached(verdicts, find_thresholds(verdicts, self.lose)))

        stages = grow_chain(candidates, seconds, _nested)
        found = calibrate(
            [seen[id(stage)] for stage in stages],
            self._verdicts(stages, fresh),
            lambda shares: self._seconds(stages if len(shares) > 1 else [], shares),
            lose=self.lose,
            confidence=self.confidence,
        )
        self.why_plain_, self.expected_share_ = found.why_plain, found.share
        if not found.why_plain:
            self._keep(stages)
            self._chain = list(zip(stages, found.thresholds, strict=True))

    def _choose_ranking(self, candidates: Sequence[_GroupStage], chosen: _LabelledRows, fresh: _LabelledRows) -> None:
        """The stage that lets through few enough for what it takes; how few is found on other rows."""
        assert self.top_k is not None

        def share_kept(stage: _GroupStage, rows: _LabelledRows) -> float:
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

    def _keep(self, stages: Sequence[_GroupStage]) -> None:
        self.stages_ = [tuple(self._groups[group].name for group in stage.groups) for stage in stages]


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


def _as_answers(model: Any, scores: numpy.ndarray, method: str) -> numpy.ndarray:
    if method == "predict_proba":
        return scores
    best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
    return numpy.asarray(model.classes_[best])


def _nested(stages: Sequence[_GroupStage]) -> Sequence[_GroupStage] | None:
    """In the order of their groups, where each has all those of the one before it."""
    chain = sorted(stages, key=lambda stage: len(stage.groups))
    return chain if all({*one.groups} < {*other.groups} for one, other in itertools.pairwise(chain)) else None
