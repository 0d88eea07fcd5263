"""Rows of tasks as they are asked for: in which order, with which metrics, as CSV. Prints nothing."""

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.records import thaw

Row = Mapping[str, Any]

# Of so many metrics a table shows the last values unless it is told which; JSON and CSV have them all.
_METRICS = 5


def sort_rows(rows: Iterable[Row], by: str | None) -> list[Row]:
    """The rows in the order of a column, parameter or metric; largest first with a minus. Rows without it, and NaN,
    come last.

    >>> rows = [{"task": name, "metrics": {"loss": loss}} for name, loss in (("a", 2.0), ("b", math.nan), ("c", 3.0))]
    >>> [row["task"] for row in sort_rows(rows, "-loss")]
    ['c', 'a', 'b']
    """
    found = list(rows)
    if by is None or not found:
        return found
    name = by.removeprefix("-")
    _check_names("--sort", [name], {key for row in found for key in flatten(row)})
    values = [(flatten(row).get(name), row) for row in found]
    there = [(value, row) for value, row in values if _is_there(value)]
    # Numbers before words, where a parameter has both; what else there is, as it is written.
    there.sort(
        key=lambda pair: (0, pair[0], "") if isinstance(pair[0], int | float) else (1, 0, str(pair[0])),
        reverse=by.startswith("-"),
    )
    return [row for _, row in there] + [row for value, row in values if not _is_there(value)]


def choose_metrics(rows: Iterable[Row], wanted: Sequence[str] | None) -> list[str]:
    """The metrics to show: those that are wanted, or the first few that there are.

    >>> choose_metrics([{"metrics": {"loss": 1.0, "accuracy": 0.5}}], ["accuracy"])
    ['accuracy']
    """
    known = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    names = [name.strip() for each in wanted or () for name in each.split(",") if name.strip()]
    if names == ["all"]:
        return known
    if known:  # before anything is reported, nobody knows what there will be
        _check_names("--metrics", names, known)
    return names or known[:_METRICS]


def flatten(row: Row) -> dict[str, Any]:
    """One level of columns: a row's own, then its parameters, then its metrics. A metric with the name of another
    column is called `metric/...`.

    >>> flatten({"task": "a", "parameters": {"rate": 0.1}, "metrics": {"rate": 2.0}})
    {'task': 'a', 'rate': 0.1, 'metric/rate': 2.0}
    """
    found = {key: value for key, value in row.items() if key not in ("parameters", "metrics")}
    for key, value in row.get("parameters", {}).items():
        found[f"parameter/{key}" if key in found else key] = thaw(value)
    for key, value in row.get("metrics", {}).items():
        found[f"metric/{key}" if key in found else key] = value
    return found


def to_csv(rows: Iterable[Row]) -> str:
    """The rows as CSV, a line for the names first.

    >>> to_csv([{"task": "a", "metrics": {"loss": 0.5}}, {"task": "b, c", "metrics": {}}]).splitlines()
    ['task,loss', 'a,0.5', '"b, c",']
    """
    flat = [flatten(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _is_there(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _check_names(option: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise DovetailError(f"{option} must name one of {', '.join(sorted(known))}, got {name!r}{hint}")
