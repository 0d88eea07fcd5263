"""`dt.explain`: which combinations of attributes are behind the rows that stand out."""

import ast
import difflib
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.vocabulary import DovetailError
from dovetail.watch.codes import Attribute
from dovetail.watch.combinations import search_combinations, usable_attributes
from dovetail.watch.criteria import Criteria, Explanations, usual_least_ratio
from dovetail.watch.expressions import match_rows
from dovetail.watch.ratios import SHIFTS
from dovetail.watch.tables import TableReader

if TYPE_CHECKING:
    import numpy as np

    from dovetail.watch.measure_shifts import ShiftExplanations


def explain(
    table: Any,
    *,
    outliers: Any,
    on: Sequence[str] | str | None = None,
    ranges: Iterable[str] | None = None,
    measure: str | None = None,
    ratio: str = "risk",
    least_support: float = 0.05,
    least_ratio: float | None = None,
    order: int | None = None,
    show: str = "short",
    false_discoveries: float = 0.05,
    confidence: float = 0.95,
) -> Any:
    """Which combinations of attributes are behind the rows that stand out, as a table of the kind that came in.

    `table` is a DataFrame of pandas or Polars, an Arrow table, a DuckDB relation, or columns by name. `outliers` are
    the rows to explain: a condition such as `"power_drain > 0.9"`, or true or false for each row. `on` are the
    attributes to explain by, all other columns where none are named. Floats, and columns named in `ranges`, are cut
    into ranges, of which any number of neighbours may come out as one.

    A combination is given where at least `least_support` of the outliers have it, where they are at least `least_ratio`
    (1.5) times as likely with it as without it (`ratio="risk"`; `"global"`, as anywhere; `"prevalence"`, how much more
    common it is among outliers), and where both that and what it adds to each of its parts are beyond chance: of what
    is given on average at most `false_discoveries` is chance, over everything that could have been found. `low` and
    `high` are between what the ratio lies with `confidence`. Combinations are of any number of attributes, as far as
    the work allows, or of at most `order`.

    `show="short"` gives the few combinations that explain each outlier once, the strongest first, and `explains` is
    how many each adds; `"growing"` every one; `"minimal"` those of MacroBase and DIFF, where a combination that passes
    is not extended, and nothing is tested. A blank attribute is any value. What is left out is said in a warning.

    With a `measure`, the outliers are one window of rows, the others another, and what is explained is how the measure
    changed between them: `ratio="mean_shift"`, its mean, or `"sum_shift"`, its sum (the windows as long as each other).
    Given are the combinations behind it, each apart from those before it: `before` and `after`, their ratio, and by how
    much the mean or sum of all rows changed through it (`change`).

    >>> grid = [(rate, norm) for rate in (0.001, 0.01, 0.1, 1.0) for norm in ("none", "layer")] * 25
    >>> table = {"rate": [rate for rate, _ in grid], "norm": [norm for _, norm in grid]}
    >>> failed = [rate >= 0.1 and norm == "none" for rate, norm in grid]
    >>> found = explain(table, outliers=failed)
    >>> found["combination"], found["outlier_count"], found["total_count"], found["risk_ratio"]
    (['rate ≥ 0.1 and norm = none'], [50], [50], [inf])
    >>> week = [1 + number // 100 for number in range(200)]
    >>> seconds = [9 + n % 3 * (1 + (week[n] == 2 and norm == "none")) for n, (_, norm) in enumerate(grid)]
    >>> shifted = table | {"week": week, "seconds": seconds}
    >>> found = explain(shifted, outliers="week == 2", measure="seconds", ratio="mean_shift")
    >>> found["combination"], found["mean_shift_ratio"]
    (['norm = none'], [1.096])
    """
    criteria = Criteria(
        ratio=ratio,
        least_support=least_support,
        least_ratio=usual_least_ratio(ratio) if least_ratio is None else least_ratio,
        order=order,
        show=show,
        false_discoveries=false_discoveries,
        confidence=confidence,
    )
    reader = TableReader(table)
    found = explain_table(reader, outliers=outliers, on=on, ranges=ranges, measure=measure, criteria=criteria)
    for note in found.notes:
        warnings.warn(f"{note}.", stacklevel=2)
    return reader.build(to_columns(found, ratio=criteria.ratio))


def explain_table(
    reader: TableReader,
    *,
    outliers: Any,
    on: Sequence[str] | str | None = None,
    ranges: Iterable[str] | None = None,
    measure: str | None = None,
    criteria: Criteria,
) -> "Explanations | ShiftExplanations":
    """The same, for those who read the table themselves and want the records."""
    if (measure is not None) != (criteria.ratio in SHIFTS):
        raise DovetailError(
            f"a measure must come with a ratio of {' or '.join(SHIFTS)}, and these with a measure; got the measure "
            f"{measure!r} and the ratio {criteria.ratio!r}."
        )
    if not reader.rows:
        raise DovetailError("a table to explain must have rows; this one has none.")
    mask = read_outliers(reader, outliers)
    besides = [measure] if measure is not None and on is None else []
    attributes = read_attributes(
        reader, on, ranges=ranges, besides=outliers if isinstance(outliers, str) else "", apart_from=besides
    )
    if measure is None:
        return search_combinations(attributes, mask, criteria)
    from dovetail.watch.measure_shifts import search_shifts

    kept, _, notes = usable_attributes(attributes, reader.rows)
    return search_shifts(kept, _read_measure(reader, measure), mask, criteria, measure=measure, notes=notes)


def _read_measure(reader: TableReader, name: str) -> "np.ndarray":
    check_column(reader, name, what="a measure")
    values: np.ndarray = reader.numbers(name)
    if values.dtype.kind != "f":
        strange = next(each for each in values if not isinstance(each, int | float))
        raise DovetailError(f"a measure must be numbers; {name!r} has {strange!r} among them.")
    return values


_FIGURES = ("support", "low", "high", "outlier_count", "total_count", "p_value", "explains")
_SHIFT_FIGURES = ("low", "high", "before", "after", "change", "reference_rows", "current_rows", "p_value")


def to_columns(found: "Explanations | ShiftExplanations", *, ratio: str) -> dict[str, list[Any]]:
    """Explanations as columns: each attribute that occurs in one, then the figures."""
    names = list(dict.fromkeys(name for each in found.found for name, _ in each.values))
    columns: dict[str, list[Any]] = {"combination": [each.combination for each in found.found]}
    others = _SHIFT_FIGURES if ratio in SHIFTS else _FIGURES
    figures = {f"{ratio}_ratio": "ratio"} | {name: name for name in others}
    for name in names:
        own = f"attribute/{name}" if name in figures or name == "combination" else name
        columns[own] = [_cell(dict(each.values).get(name)) for each in found.found]
    return columns | {column: [getattr(each, name) for each in found.found] for column, name in figures.items()}


def _cell(text: str | None) -> str | None:
    return None if text is None else "missing" if text == "is missing" else text.removeprefix("= ")


def read_outliers(reader: TableReader, outliers: Any) -> "np.ndarray":
    """Which rows are outliers, by a condition or by a value for each."""
    import numpy as np

    if isinstance(outliers, str):
        return match_rows(outliers, reader.names, reader.numbers, rows=reader.rows)
    if hasattr(outliers, "fill_null"):  # Polars and Arrow; what is missing is no outlier
        outliers = outliers.fill_null(False)
    elif hasattr(outliers, "fillna"):
        outliers = outliers.fillna(False)
    found = np.asarray(outliers)
    if found.dtype == object and all(value is None or isinstance(value, bool | np.bool_) for value in found.ravel()):
        found = np.array([bool(value) for value in found.ravel()])
    if found.dtype != bool:
        raise DovetailError(
            f"outliers must be a condition, such as 'power_drain > 0.9', or true or false for each row, got "
            f"{type(outliers).__name__} of {found.dtype}."
        )
    if found.shape != (reader.rows,):
        raise DovetailError(
            f"outliers must say true or false for each of {reader.rows:,} rows, got {found.size:,} values."
        )
    return found


def read_attributes(
    reader: TableReader,
    on: Sequence[str] | str | None,
    *,
    ranges: Iterable[str] | None = None,
    besides: str = "",
    apart_from: Sequence[str] = (),
) -> list[Attribute]:
    """The attributes to explain by: those named, or all that the condition `besides` does not name, without those of
    `apart_from`."""
    others = [name for name in _unnamed(reader.names, besides) if name not in apart_from] if on is None else []
    wanted = [on] if isinstance(on, str) else list(on) if on is not None else others
    measures = set(ranges or ())
    for name in [*wanted, *measures]:
        check_column(reader, name, what="an attribute to explain by")
    distinct = dict.fromkeys(wanted)
    return [reader.encode(name, as_range=True if name in measures else None) for name in distinct]


def check_column(reader: TableReader, name: str, *, what: str) -> None:
    """Refuse what is no column of a table."""
    if name not in reader.names:
        near = difflib.get_close_matches(str(name), reader.names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f". There are {', '.join(reader.names)}."
        raise DovetailError(f"{what} must be a column of the table, got {name!r}{hint}")


def _unnamed(names: Sequence[str], condition: str) -> list[str]:
    """The columns that a condition does not name: what is explained is no explanation."""
    try:
        words = {node.id for node in ast.walk(ast.parse(condition or "0")) if isinstance(node, ast.Name)}
    except SyntaxError:
        words = set()
    return [name for name in names if name not in words and not (not name.isidentifier() and name in condition)]
