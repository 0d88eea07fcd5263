"""A race as one HTML page, offline: the curves against time with the crossings marked, the figures, what to know."""

import math
from pathlib import Path
from typing import Any

from dovetail.metrics.race.race_statistics import Estimate
from dovetail.metrics.race.run_clock import CLOCKS, PHASES
from dovetail.web.frozen_page import write_page
from dovetail.web.plain_data import plain_number


def write_race(record: dict[str, Any], path: Path) -> Path:
    """Write a race, given as its `record`, as one HTML page; gives its path.

    >>> import tempfile
    >>> record = {"race": "nets race", "target": "accuracy ≥ 0.9", "metric": "accuracy", "value": 0.9}
    >>> record |= {"clock": "mlperf", "contestants": [], "speed_ups": [], "notes": []}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_race(record, Path(folder) / "race.html").name
    'race.html'
    """
    frozen = {
        "title": record["race"],
        "race": {
            "target": record["target"],
            "metric": record["metric"],
            "level": record["value"],
            "clock": record["clock"],
            "clocks": {name: f"{name}: {', '.join(phases)}" for name, phases in CLOCKS.items()},
            "phases": [{"name": name, "means": words} for name, words in PHASES.items()],
            "contestants": [_contestant(each) for each in record["contestants"]],
            "sentences": [[each["sentence"], f"{each['verdict']}."] for each in record["speed_ups"]],
            "notes": record["notes"],
        },
    }
    return write_page(path, frozen, title=record["race"])


def _contestant(each: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": each["contestant"],
        "arrived": f"{each['arrived']} of {len(each['runs'])}",
        "time": {clock: _show(found) for clock, found in each["time"].items()},
        "interpolated": {clock: _show(found) for clock, found in each["interpolated_time"].items()},
        "error": {clock: plain_number(seconds) for clock, seconds in each["error_seconds"].items()},
        "steps": _show(each["steps"]),
        "step": _show(each["step_seconds"]),
        "spend": _show(each["spend"]) if each["spend"] is not None else None,
        "phases": {name: plain_number(seconds) for name, seconds in each["phase_seconds"].items()},
        "runs": [_run(run) for run in each["runs"]],
    }


def _run(run: dict[str, Any]) -> dict[str, Any]:
    curve, arrived = run["curve"], math.isfinite(run["steps"])
    return {
        "name": run["task"],
        "seed": run["seed"],
        "steps": [each["step"] for each in curve],
        "values": [plain_number(each["value"]) if math.isfinite(each["value"]) else None for each in curve],
        "seconds": {clock: [plain_number(each[clock]) for each in curve] for clock in CLOCKS},
        "crossing": {clock: plain_number(run["interpolated_seconds"][clock]) for clock in CLOCKS} if arrived else None,
        "crossing_step": plain_number(run["interpolated_steps"]) if arrived else None,
        "time": {clock: plain_number(run["seconds"][clock]) for clock in CLOCKS} if arrived else None,
        "ended": plain_number(run["steps"]) if arrived else None,
        "step": plain_number(run["step_seconds"]) if math.isfinite(run["step_seconds"]) else None,
        "ways": ", ".join(run["ways"]),
        "reason": run["reason"],
    }


def _show(found: dict[str, Any]) -> str:
    return str(Estimate(**found))
