"""`dt.drift`: a reference and a current window, compared."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.columns import numbers
from dovetail.watch.drift.column_tests import ColumnDrift, compare_categories, compare_numbers
from dovetail.watch.drift.combination_index import CombinationIndex
from dovetail.watch.drift.findings import DriftFinding, ScoredRows, find_drift
from dovetail.watch.drift.row_scores import RowScorer, ScoredColumns, errors, labels_and_probabilities
from dovetail.watch.drift.shift_tests import LEAST_ROWS
from dovetail.watch.tables import TableReader

CALIBRATION_BINS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuality:
    """How good a model was in a window: its accuracy, and its expected calibration error, where they can be said."""

    accuracy: float | None
    calibration_error: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What `dt.drift` found. `findings` name what moved for which combination, the furthest first; `columns` are all
    that were compared. Without drift, anything is found in at most `false_alarms` of cases, over all `tests`."""

    columns: tuple[ColumnDrift, ...]
    findings: tuple[DriftFinding, ...]
    before: ModelQuality
    after: ModelQuality
    tests: int
    false_alarms: float
    notes: tuple[str, ...] = ()

    @property
    def drifted(self) -> bool:
        """Whether anything moved by more than chance."""
        return bool(self.findings) or any(each.drifted for each in self.columns)

    def reason(self) -> str:
        """What moved most, in one line."""
        if self.findings:
            return str(self.findings[0])
        moved = [each for each in self.columns if each.drifted]
        return f"{moved[0].name}: stability index {moved[0].psi:.2f}" if moved else "no drift"

    def __str__(self) -> str:
        if not self.drifted:
            return f"no drift, at {self.false_alarms:.2g} false alarms over {self.tests} comparisons"
        moved = [f"{each.name} ({each.psi:.2f})" for each in self.columns if each.drifted]
        lines = [str(each) for each in self.findings]
        lines += [f"columns that moved, with their stability index: {', '.join(moved)}"] if moved else []
        if self.before.accuracy is not None and self.after.accuracy is not None:
            lines.append(f"accuracy {self.before.accuracy:.1%} before, {self.after.accuracy:.1%} now")
        if self.before.calibration_error is not None and self.after.calibration_error is not None:
            lines.append(
                f"calibration error {self.before.calibration_error:.3f} before, {self.after.calibration_error:.3f} now"
            )
        return "\n".join(lines)


def drift(
    reference: Any,
    current: Any,
    *,
    attributes: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    label: str | None = None,
    prediction: str | None = None,
    probability: str | None = None,
    order: int = 3,
    least_share: float = 0.005,
    false_alarms: float = 0.05,
) -> Drift:
    """What changed between two tables, and for which combination of attributes.

    `metrics` are compared as numbers, `attributes` by their values and in combinations of up to `order` that at least
    `least_share` of all rows have; where it is not said, columns of floats are metrics and others attributes. With a
    `label` and a model's `prediction`, or the `probability` that it gave the label 1, whether its accuracy or
    calibration fell is among what is compared. Tables are mappings of columns, or frames of pandas, Polars, Arrow or
    DuckDB. Needs `pip install 'dovetail[watch]'`.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> def window(slower):
    ...     region, version = draws.choice(["eu", "us"], 5_000), draws.integers(1, 6, 5_000)
    ...     latency = draws.normal(size=5_000) + slower * ((region == "eu") & (version == 3))
    ...     return {"region": region, "version": version, "latency": latency}
    >>> print(drift(window(0.0), window(2.0)).findings[0])
    region = eu and version = 3: latency at rank 51% of the reference before, 92% now, 520 rows
    >>> print(drift(window(0.0), window(0.0)))
    no drift, at 0.05 false alarms over 63 comparisons
    """
    if not 0 < false_alarms < 1:
        raise DovetailError(f"false_alarms must be between 0 and 1, got {false_alarms!r}.")
    model = {name for name in (label, prediction, probability) if name}
    readers = [TableReader(table) for table in (reference, current)]
    metrics, attributes = choose_columns(readers[0], metrics, attributes, model)
    columns = ScoredColumns(metrics=tuple(metrics), label=label, prediction=prediction, probability=probability)
    before, after = (each.columns([*metrics, *attributes, *model]) for each in readers)
    rows = check_rows("reference", before) + check_rows("current window", after)
    scorer = RowScorer(columns, before)
    index = CombinationIndex(
        {name: _joined(before[name], after[name]) for name in attributes},
        order=order,
        least_rows=max(int(least_share * rows), LEAST_ROWS),
    )
    tests = index.count * (len(scorer.names) + 1) + len(metrics) + len(attributes)
    level = false_alarms / tests
    windows = (ScoredRows(index.numbers(each), scorer.score(each)) for each in (before, after))
    return Drift(
        columns=_compare_columns(before, after, metrics, attributes, level),
        findings=tuple(find_drift(index, scorer.names, *windows, level=level)),
        before=_quality(columns, before),
        after=_quality(columns, after),
        tests=tests,
        false_alarms=false_alarms,
        notes=tuple(_notes(before, after, columns, attributes, index)),
    )


def choose_columns(
    reader: TableReader, metrics: Sequence[str] | None, attributes: Sequence[str] | None, model: set[str]
) -> tuple[list[str], list[str]]:
    """Which columns are metrics and which attributes: where it is not said, floats are metrics and others attributes.

    >>> choose_columns(TableReader({"latency": np.array([0.5]), "region": np.array(["eu"])}), None, None, set())
    (['latency'], ['region'])
    """
    named = [*(metrics or ()), *(attributes or ()), *model]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise DovetailError(f"metrics, attributes and a model's columns must be different; {twice} are named twice.")
    left = reader.columns(name for name in reader.names if name not in named)
    floats = [name for name, column in left.items() if getattr(column.dtype, "kind", "") == "f"]
    others = [name for name in left if name not in floats]
    return floats if metrics is None else list(metrics), others if attributes is None else list(attributes)


def check_rows(what: str, columns: dict[str, Any]) -> int:
    """How many rows there are, if they are enough to be compared."""
    if not columns:
        raise DovetailError("there must be columns to compare; none are named, and the tables have none.")
    rows = len(next(iter(columns.values())))
    if rows < LEAST_ROWS:
        raise DovetailError(f"the {what} must have at least {LEAST_ROWS} rows to be compared; it has {rows}.")
    return rows


def _joined(before: Any, after: Any) -> Any:
    import pandas

    return pandas.concat([pandas.Series(before), pandas.Series(after)]).array


def _compare_columns(
    before: dict[str, Any], after: dict[str, Any], metrics: Sequence[str], attributes: Sequence[str], level: float
) -> tuple[ColumnDrift, ...]:
    found = {
        name: ("ks", compare_numbers(*(numbers(each[name], name) for each in (before, after)))) for name in metrics
    }
    found |= {name: ("chi-squared", compare_categories(before[name], after[name], name)) for name in attributes}
    rows = [
        ColumnDrift(name=name, test=test, statistic=statistic, p_value=p_value, psi=psi, drifted=p_value <= level)
        for name, (test, (statistic, p_value, psi)) in found.items()
    ]
    return tuple(sorted(rows, key=lambda each: -each.psi))


def _quality(columns: ScoredColumns, table: dict[str, Any]) -> ModelQuality:
    accuracy = None
    if columns.prediction and len(known := _known(errors(columns, table))):
        accuracy = 1.0 - float(known.mean())
    if not columns.probability:
        return ModelQuality(accuracy=accuracy, calibration_error=None)
    label, probability = _known(np.stack(labels_and_probabilities(columns, table), axis=1)).T
    if not len(label):
        return ModelQuality(accuracy=accuracy, calibration_error=None)
    bins = np.minimum((probability * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=label - probability, minlength=CALIBRATION_BINS)
    if accuracy is None:
        accuracy = float(((probability >= 0.5) == (label == 1)).mean())
    return ModelQuality(accuracy=accuracy, calibration_error=float(np.abs(gaps).sum() / len(label)))


def _known(values: np.ndarray) -> np.ndarray:
    """The rows in which nothing is missing."""
    return np.asarray(values[~np.isnan(values.reshape(len(values), -1)).any(axis=1)])


def _notes(
    before: dict[str, Any],
    after: dict[str, Any],
    columns: ScoredColumns,
    attributes: Sequence[str],
    index: CombinationIndex,
) -> Iterator[str]:
    import pandas

    for name in columns.metrics:
        values = np.concatenate([numbers(each[name], name) for each in (before, after)])
        if np.isinf(values).any():
            yield f"{name!r} is infinite in {np.isinf(values).sum()} rows; they count as the least and the most"
        if np.isnan(values).any():
            yield f"{name!r} is missing in {np.isnan(values).sum()} rows; its mean is of the others"
    for name in columns.of_model:
        if missing := sum(int(pandas.isna(each[name]).sum()) for each in (before, after)):
            yield f"{name!r} is missing in {missing} rows; they count neither as right nor as wrong"
    for name in attributes:
        if not index.has_values(name):
            yield f"{name!r} has no value that is frequent enough to be compared; it is in no combination"
