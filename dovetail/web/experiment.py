"""The tasks as an experiment: what each was given and what it came to, ranked, and ready to be drawn."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.metrics.summary import Row
from dovetail.vocabulary import TaskId
from dovetail.vocabulary.records import thaw
from dovetail.web.report_data import MetricChart, ReportData
from dovetail.web.tables import cell, note, table

MOST_RANKED = 50
MOST_TASKS = 2000
# The parameter in which repetitions of one task differ.
SEED = "seed"
# What stands for the program where tasks are of several.
PROGRAM = "program"
# Beyond so many times the width of the middle half, a curve's end is no longer worth the scale (Tukey's outer fence).
_FENCE = 3.0


def distinct_words(names: Sequence[str]) -> list[str]:
    """The names without the words that all of them have in common, as long as they still differ as much as before.

    >>> distinct_words(["net depth=2 rate=0.1 seed=0", "net depth=2 rate=0.2 seed=0"])
    ['rate=0.1', 'rate=0.2']
    """
    words = [name.split(" ") for name in names]
    shared = set(words[0]).intersection(*words) if len(set(names)) > 1 else set()
    short = [" ".join(word for word in each if word not in shared) for each in words]
    return short if all(short) and len(set(short)) == len(set(names)) else list(names)


def labels_of(reading: ReportData) -> dict[TaskId, str]:
    """What to call each task in charts: what tells it from the others."""
    tasks = list(reading.names)
    return dict(zip(tasks, distinct_words([reading.names[task] for task in tasks]), strict=True)) if tasks else {}


def seed_groups(reading: ReportData) -> dict[TaskId, str]:
    """For each task the name of its group: the tasks that differ in nothing but their seed. Former tasks have none."""
    members: dict[str, list[Row]] = {}
    for row in reading.summary.rows:
        given = {name: thaw(value) for name, value in row.parameters.items() if name != SEED}
        if not row.vanished:
            members.setdefault(json.dumps([_without_seed(row.name), given], sort_keys=True, default=str), []).append(
                row
            )
    names = [_without_seed(rows[0].name) for rows in members.values()]
    labels = distinct_words(names) if len(names) == len(set(names)) else names
    return {row.task: name for name, rows in zip(labels, members.values(), strict=True) for row in rows}


def robust_range(metric: MetricChart) -> tuple[float, float] | None:
    """The values to show of a metric where some curves run away so far that the others would be a flat line; None where
    none does."""
    ends = [_finite(curve.values) for curve in metric.curves.values()]
    kept = [(min(values), max(values)) for values in ends if values]
    if len(kept) < 4:
        return None
    lows, highs = [low for low, _ in kept], [high for _, high in kept]
    low, high = _fence(lows)[0], _fence(highs)[1]
    inside = [(a, b) for a, b in kept if a >= low and b <= high]
    if len(inside) == len(kept) or not inside:
        return None
    low, high = min(a for a, _ in inside), max(b for _, b in inside)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def outcomes(reading: ReportData) -> dict[str, Any] | None:
    """Tasks with the parameters in which they differ and their best metrics, as plain data for the charts; None where
    nothing differs or was measured."""
    rows = _measured(reading)
    varied = varied_parameters(rows)
    if not varied or len(rows) < 2:
        return None
    labels, groups = labels_of(reading), seed_groups(reading)
    goals = {metric.name: metric.goal for metric in reading.metrics}
    return {
        "parameters": varied,
        "metrics": [{"name": name, "goal": goals.get(name, "min")} for name in metrics_of(rows)],
        "tasks": [
            {
                "name": labels.get(row.task, row.name),
                "group": groups.get(row.task, row.name),
                "given": [_plain(_given(row, name)) for name in varied],
                "came": [_best(row, name) for name in metrics_of(rows)],
            }
            for row in rows[:MOST_TASKS]
        ],
    }


def ranking(reading: ReportData) -> str:
    """The best tasks by the first metric, with a column for each parameter in which tasks differ."""
    rows = _measured(reading)
    names = metrics_of(rows)
    if not names or len(rows) < 2:
        return ""
    goals = {metric.name: metric.goal for metric in reading.metrics}
    sign = -1.0 if goals.get(names[0], "min") == "max" else 1.0
    scored = [(value, row) for row in rows if (value := _best(row, names[0])) is not None]
    scored.sort(key=lambda pair: sign * pair[0])
    varied, labels = varied_parameters(rows), labels_of(reading)
    words = {name for name in varied if any(isinstance(_plain(_given(row, name)), bool | str) for row in rows)}
    heads = [("Rank", "number"), ("Task", "")]
    heads += [(name, "" if name in words else "number") for name in [*names[:3], *varied]]
    lines = [
        [
            cell(place, sort=place, kind="number"),
            cell(labels.get(row.task, row.name), kind="name"),
            *(_number(_best(row, name)) for name in names[:3]),
            *(_number(_plain(_given(row, name))) for name in varied),
        ]
        for place, (_, row) in enumerate(scored[:MOST_RANKED], 1)
    ]
    cut = f" The best {MOST_RANKED} of {len(scored):,} are listed." if len(scored) > MOST_RANKED else ""
    word = "largest" if sign < 0 else "smallest"
    return table(heads, lines) + note(f"By the best value that {names[0]} had, {word} first.{cut}")


def metrics_of(rows: Iterable[Row]) -> list[str]:
    """The metrics by name: those of evaluations before those of training steps."""
    found = dict.fromkeys(name for row in rows for name in row.metrics)
    return sorted(found, key=lambda name: name.startswith("train/"))


def varied_parameters(rows: Sequence[Row]) -> list[str]:
    """What tasks differ in: their program, and parameters, one that some of them lack included. What most tasks have
    comes first, and seeds last of what as many have."""
    names = dict.fromkeys([PROGRAM, *(name for row in rows for name in row.parameters)])
    varied = [name for name in names if len({repr(thaw(_given(row, name, ...))) for row in rows}) > 1]
    lacking = {name: sum(_given(row, name, ...) is ... for row in rows) for name in varied}
    return sorted(varied, key=lambda name: (lacking[name], name == SEED))


def _given(row: Row, name: str, default: Any = None) -> Any:
    return row.parameters.get(name, row.program if name == PROGRAM else default)


def _measured(reading: ReportData) -> list[Row]:
    return [row for row in reading.summary.rows if row.metrics and not row.vanished]


def _best(row: Row, name: str) -> float | None:
    found = row.metrics.get(name)
    return found.best if found is not None else None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return json.dumps(thaw(value), default=str)


def _number(value: Any) -> str:
    if value is None:
        return cell("", kind="number")
    if isinstance(value, bool | str):
        return cell(value, kind="short")
    return cell(f"{value:.6g}", sort=value, kind="number")


def _without_seed(name: str) -> str:
    return " ".join(word for word in name.split(" ") if not word.startswith((f"{SEED}=", "#"))) or name


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _fence(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    reach = _FENCE * max(high - low, 1e-9 * max(map(abs, values)))
    return low - reach, high + reach
