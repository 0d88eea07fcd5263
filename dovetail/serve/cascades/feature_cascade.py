"""What cascades over a scikit-learn pipeline's features have in common: groups, what they take, chains of stages."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

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
from dovetail.serve.cascades.thresholds import Verdicts, calibrate, find_thresholds, grow_chain, shares_reached
from dovetail.vocabulary import DovetailError

try:
    from sklearn.base import BaseEstimator, clone
    from sklearn.utils import column_or_1d
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise DovetailError(
        f"a cascade of features must have scikit-learn; found: {error}. Run: pip install 'dovetail[serve]'"
    ) from error


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class GroupStage:
    """A model over some groups of features, and what it takes once they are there."""

    groups: tuple[int, ...]
    model: Any
    cost: CallCost


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledRows:
    """Features of all groups, and the labels."""

    features: list[Any]
    labels: numpy.ndarray

    def of(self, groups: Sequence[int]) -> Any:
        """Features of some groups, side by side."""
        return side_by_side([self.features[group] for group in groups])


class FeatureCascade(BaseEstimator, abc.ABC):  # type: ignore[misc]
    """An estimator with cheaper ones before it, over groups of a pipeline's features. Subclasses say how a stage is
    fitted and how sure it is, and when its answer does harm."""

    pipeline: Any
    lose: float
    confidence: float
    calibrate_share: float
    batch_rows: int
    seed: int

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the pipeline and the stages before it, choose among them and calibrate them, on parts of these rows that
        have none in common."""
        y = _labels_of(y)
        self._check(X, y)
        learn, choose, known = self._split(len(y))
        self._fit_whole(take(X, learn), y[learn])
        self.stages_: list[tuple[str, ...]] = []
        self.why_plain_, self.expected_share_ = "", 1.0
        self._chain: list[tuple[GroupStage, float]] = []
        if len(known) < self._least_rows():
            self.why_plain_ = (
                f"for this promise, {self._least_rows()} rows must be there to calibrate with; there are {len(known)} "
                f"(half of calibrate_share={self.calibrate_share:g} of {len(y)})"
            )
            return self
        learned, chosen, fresh = (
            LabelledRows([group.compute(take(X, rows)) for group in self._groups], y[rows])
            for rows in (learn, choose, known)
        )
        self._costs = [measure_rows(group.compute, take(X, choose)) for group in self._groups]
        self._whole_cost = measure_rows(self._whole.predict, chosen.of(self._all))
        candidates = self._candidates(learned, chosen)
        self._choose(candidates, chosen, fresh)
        return self

    @property
    def n_features_in_(self) -> int:
        """How many columns the rows had that it was fitted to."""
        return int(self.plain_.n_features_in_)

    def _answer(self, X: Any, answer_all: Callable[[Any, Any], numpy.ndarray], method: str) -> numpy.ndarray:
        """What the stage that is sure of a row says of it, by `answer_all(stage model, judged rows)`, or the whole, by
        its method of this name."""
        check_is_fitted(self, "plain_")
        whole = getattr(self._whole, method)
        rows = count_rows(X)
        left, computed = numpy.arange(rows), dict[int, Any]()
        parts: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        for stage, threshold in self._chain:
            here = X if len(left) == rows else take(X, left)
            computed |= {group: self._groups[group].compute(here) for group in stage.groups if group not in computed}
            sureness, judged = self._judge(stage.model, side_by_side([computed[group] for group in stage.groups]))
            is_sure = sureness >= threshold
            parts.append((left[is_sure], answer_all(stage.model, judged[is_sure])))
            computed = {group: take(values, ~is_sure) for group, values in computed.items()}
            left = left[~is_sure]
            if not len(left):
                break
        if len(left) or not parts:
            parts.append((left, numpy.asarray(whole(self._complete(X, left, computed)))))
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
        if not 0 < self.calibrate_share < 1:
            raise DovetailError(f"calibrate_share must lie between 0 and 1; got {self.calibrate_share:g}.")
        if self.batch_rows < 1:
            raise DovetailError(f"batch_rows must be at least 1, the rows of a usual call; got {self.batch_rows}.")
        if count_rows(X) != len(y):
            raise DovetailError(f"there must be a label for each row; got {count_rows(X)} rows and {len(y)} labels.")
        if len(getattr(self.pipeline, "steps", ())) != 2:
            raise DovetailError(
                "a cascade's pipeline must have two steps, the groups of features and an estimator; put what comes "
                "before the features into each group."
            )

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

    @abc.abstractmethod
    def _fit_stage(self, groups: tuple[int, ...], learned: LabelledRows) -> Any:
        """A model over some of the groups."""

    @abc.abstractmethod
    def _judge(self, model: Any, features: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
        """How sure a stage is of each row, and what it says, in a form of its own."""

    @abc.abstractmethod
    def _merit(self, model: Any, groups: tuple[int, ...], rows: LabelledRows) -> float:
        """How much better than knowing nothing a stage is: 0 is not at all."""

    @abc.abstractmethod
    def _verdicts(self, stages: Sequence[GroupStage], rows: LabelledRows) -> list[Verdicts]:
        """How sure each stage is of rows whose labels are known, and where its answer would do harm."""

    def _choose(self, candidates: Sequence[GroupStage], chosen: LabelledRows, fresh: LabelledRows) -> None:
        self._choose_chain(candidates, chosen, fresh)

    def _least_rows(self) -> int:
        return least_rows(self.lose, self.confidence)

    def _candidates(self, learned: LabelledRows, chosen: LabelledRows) -> list[GroupStage]:
        """Models over groups of features: the cheapest ones, and those that add most for what they take, each with one
        more group than the one before."""
        found: dict[tuple[int, ...], GroupStage] = {}

        def merit(groups: tuple[int, ...]) -> float:
            if groups not in found:
                model = self._fit_stage(groups, learned)
                cost = measure_rows(lambda rows: self._judge(model, rows), chosen.of(groups))
                found[groups] = GroupStage(groups, model, cost)
            return self._merit(found[groups].model, groups, chosen)

        by_cost = sorted(self._all, key=lambda group: self._group_seconds((group,)))
        for count in range(1, len(by_cost)):
            merit(tuple(sorted(by_cost[:count])))
        best, taken = 0.0, tuple[int, ...]()
        while len(taken) < len(self._groups) - 1:
            before = {*taken}
            rest = [tuple(sorted({*taken, group})) for group in self._all if group not in before]
            taken = max(rest, key=lambda each: (merit(each) - best) / self._group_seconds({*each} - before))
            best = merit(taken)
        return list(found.values())

    def _group_seconds(self, groups: Any) -> float:
        """What a row takes of some groups, in a batch."""
        return sum(self._costs[group].of(1, calls=1 / self.batch_rows) for group in groups) or 1e-12

    def _seconds(self, stages: Sequence[GroupStage], shares: Sequence[float]) -> float:
        """What a row should take of a chain, where these shares of the rows reach each stage and the whole pipeline."""
        had, total = set[int](), 0.0
        for stage, share in zip(stages, shares[:-1], strict=True):
            costs = [self._costs[group] for group in stage.groups if group not in had]
            total += sum(cost.of(share, calls=1 / self.batch_rows) for cost in [*costs, stage.cost])
            had |= {*stage.groups}
        rest = [self._costs[group] for group in self._all if group not in had]
        calls = 1 / self.batch_rows if shares[-1] else 0.0
        return total + sum(cost.of(shares[-1], calls=calls) for cost in [*rest, self._whole_cost])

    def _choose_chain(self, candidates: Sequence[GroupStage], chosen: LabelledRows, fresh: LabelledRows) -> None:
        """The stages that should save most, each with all groups of the one before it, at thresholds that keep the
        promise."""
        seen = dict(zip(map(id, candidates), self._verdicts(candidates, chosen), strict=True))

        def seconds(stages: Sequence[GroupStage]) -> float:
            verdicts = [seen[id(stage)] for stage in stages]
            return self._seconds(stages, shares_reached(verdicts, find_thresholds(verdicts, self.lose)))

        stages = grow_chain(candidates, seconds, _order_nested)
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

    def _keep(self, stages: Sequence[GroupStage]) -> None:
        self.stages_ = [tuple(self._groups[group].name for group in stage.groups) for stage in stages]


def _labels_of(y: Any) -> numpy.ndarray:
    """One for each row; of a column, with scikit-learn's own warning."""
    if numpy.ndim(y) == 2 and numpy.shape(y)[1] != 1:
        raise DovetailError(f"there must be one label for each row; got labels of shape {numpy.shape(y)}.")
    return numpy.asarray(column_or_1d(y, warn=True))


def _order_nested(stages: Sequence[GroupStage]) -> Sequence[GroupStage] | None:
    """In the order of their groups, where each has all those of the one before it."""
    chain = sorted(stages, key=lambda stage: len(stage.groups))
    return chain if all({*one.groups} < {*other.groups} for one, other in itertools.pairwise(chain)) else None
