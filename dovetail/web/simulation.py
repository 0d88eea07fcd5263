"""A simulation as one HTML page, offline: completion times, utilisation and fairness over time, and the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.control.simulation.outcome import Outcome
from dovetail.web.frozen_page import write_page

_MOST_POINTS = 400


def write_simulation(found: Sequence[tuple[str, Outcome]], path: Path, *, title: str) -> Path:
    """Write these outcomes, each with its name, as one HTML page; gives its path.

    >>> import tempfile
    >>> outcome = Outcome(seconds={"a": 3600.0}, makespan_seconds=7200.0, starts=1, lost=0, busy=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_simulation([("max_min_fairness", outcome)], Path(folder) / "page.html", title="one").name
    'page.html'
    """
    heads, rows = _table(found)
    return write_page(
        path, {"title": title, "simulation": {"charts": _charts(found), "heads": heads, "rows": rows}}, title=title
    )


def _charts(found: Sequence[tuple[str, Outcome]]) -> list[dict[str, Any]]:
    charts: list[tuple[str, str, str, list[Sequence[tuple[float, float]]]]] = [
        (
            "Tasks that ended within so many hours of their arrival",
            "hours from arrival to end",
            "share of tasks",
            [_completions(each) for _, each in found],
        ),
        ("Devices in use", "hours", "share of devices", [each.utilisation for _, each in found]),
        (
            "Fairness: Jain's index of what the tasks that were there got done",
            "hours",
            "index",
            [each.fairness for _, each in found],
        ),
    ]
    return [
        {
            "heading": heading,
            "x": x,
            "y": y,
            "lines": [_line(name, s) for (name, _), s in zip(found, lines, strict=True)],
        }
        for heading, x, y, lines in charts
    ]


def _line(name: str, series: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {"name": name, "x": [seconds / 3600 for seconds, _ in series], "y": [value for _, value in series]}


def _completions(outcome: Outcome) -> list[tuple[float, float]]:
    """The share of tasks that ended within a time, at not too many times."""
    seconds = sorted(outcome.seconds.values())
    every = max(1, len(seconds) // _MOST_POINTS)
    places = [*range(0, len(seconds), every), len(seconds) - 1]
    return [(seconds[place], (place + 1) / len(seconds)) for place in places]


def _table(found: Sequence[tuple[str, Outcome]]) -> tuple[list[str], list[list[str]]]:
    heads = ["policy", "mean", "median", "99%", "makespan", "busy", "starts", "lost", "late"]
    rows = [
        [
            name,
            *(f"{hours:.2f} h" for hours in (each.mean_hours, each.quantile_hours(0.5), each.quantile_hours(0.99))),
            f"{each.makespan_hours:.2f} h",
            f"{each.busy:.0%}",
            f"{each.starts:,}",
            f"{each.lost:,}",
            f"{len(each.missed):,}",
        ]
        for name, each in found
    ]
    return heads, rows
