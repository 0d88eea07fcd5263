"""What came of a race: every contestant's figures, who won, how each compares with the reference, what to know."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.metrics.curves import Measured
from dovetail.metrics.progress import Progress
from dovetail.metrics.race.contestants import Contestant, RaceRun, find_equal_curves
from dovetail.metrics.race.crossing import find_crossing
from dovetail.metrics.race.race_statistics import LEAST_OLYMPIC, Estimate
from dovetail.metrics.race.run_clock import CLOCKS, PHASES, ClockReading, RunClock
from dovetail.metrics.race.speed_up import SpeedUp, compare_contestants
from dovetail.vocabulary import Stop, Task, TaskId
from dovetail.vocabulary.notebook_html import html_lines, html_table
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import show_some
from dovetail.vocabulary.user_text import escape_controls

# From this part of the time on, that a target is only seen when it is evaluated is worth telling.
_SPARSE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaceResult:
    """What came of a race. `print(race)` shows it all; `race.winner` is the contestant with the least time.

    `contestants` are in the order of their times by `clock`, `reference` is the one that others are compared with in
    `speed_ups`, and `notes` say what to know before one believes it.

    >>> stop = Stop(steps=99, metric="accuracy", at_least=0.94)
    >>> race = RaceResult(name="digits race", stop=stop, clock="mlperf", contestants=(), reference="", speed_ups=())
    >>> print(race)
    digits race: accuracy ≥ 0.94, by the clock mlperf
    nobody has run yet
    """

    name: str
    stop: Stop
    clock: str
    contestants: tuple[Contestant, ...]
    reference: str
    speed_ups: tuple[SpeedUp, ...]
    notes: tuple[str, ...] = ()

    @property
    def winner(self) -> Contestant | None:
        """The contestant with the least time to the target; None where nobody arrived."""
        arrived = [each for each in self.contestants if math.isfinite(each.time(self.clock).value)]
        return arrived[0] if arrived else None

    def __getitem__(self, name: str) -> Contestant:
        for contestant in self.contestants:
            if contestant.name == name:
                return contestant
        raise KeyError(f"a contestant must be one of {[each.name for each in self.contestants]}, got {name!r}.")

    def __str__(self) -> str:
        return escape_controls(self._redact("\n".join([self._title(), *self._table(), *self._sentences()])))

    def _repr_html_(self) -> str:
        """What a notebook shows: the same, as a table and lines."""
        redact = self._redact
        heads, rows = table_of(self)
        shown = html_table(heads, [[redact(cell) for cell in row] for row in rows])
        return html_lines([redact(self._title())]) + shown + html_lines(map(redact, self._sentences()))

    @property
    def _redact(self) -> Redactor:
        return Redactor(run.task.parameters for contestant in self.contestants for run in contestant.runs)

    def _title(self) -> str:
        return f"{self.name}: {self.stop.target}, by the clock {self.clock}"

    def _sentences(self) -> list[str]:
        compared = [line for each in self.speed_ups for line in (each.sentence(), f"  {each.verdict}.")]
        return [*compared, *self.notes]

    def _table(self) -> list[str]:
        if not self.contestants:
            return ["nobody has run yet"]
        heads, rows = table_of(self)
        cells = [heads, *rows]
        widths = [max(len(row[place]) for row in cells) for place in range(len(heads))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]

    def record(self) -> dict[str, Any]:
        """All of it as plain data, for `--json` and the page."""
        return {
            "race": self.name,
            "target": self.stop.target,
            "metric": self.stop.metric,
            "value": self.stop.at_least if self.stop.at_least is not None else self.stop.at_most,
            "clock": self.clock,
            "reference": self.reference,
            "contestants": [_contestant_record(each) for each in self.contestants],
            "speed_ups": [_speed_up_record(each) for each in self.speed_ups],
            "notes": list(self.notes),
        }


def judge_race(
    name: str,
    contestants: Mapping[str, Sequence[Task]],
    *,
    stop: Stop,
    clocks: Mapping[TaskId, RunClock],
    progress: Mapping[TaskId, Progress],
    points: Mapping[TaskId, Iterable[Measured]],
    prices: Mapping[str, float],
    reference: str = "",
    clock: str = "mlperf",
) -> RaceResult:
    """Judge a race from what was folded from its events. `prices` are of an hour, by device; without a name, the first
    contestant is the reference."""
    found = {
        each: Contestant(name=each, runs=tuple(_run(task, stop, clocks, progress, prices) for task in tasks))
        for each, tasks in contestants.items()
    }
    chosen = reference or next(iter(found), "")
    ordered = sorted(found.values(), key=lambda each: each.time(clock).value)
    speed_ups = [
        compare_contestants(found[chosen], each, clock=clock) for each in found.values() if each.name != chosen
    ]
    notes = [note for each in ordered for note in _notes(each, clock, points)]
    return RaceResult(
        name=name,
        stop=stop,
        clock=clock,
        contestants=tuple(ordered),
        reference=chosen,
        speed_ups=tuple(speed_ups),
        notes=(*notes, *_notes_on_reference(found, chosen)),
    )


def table_of(race: RaceResult) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a race's table, as text."""
    priced = any(each.spend is not None for each in race.contestants)
    other = next(name for name in CLOCKS if name != race.clock)
    heads = ["contestant", "arrived", "seconds to target", "interpolated", f"by {other}", "steps", "seconds a step"]
    rows = [
        [
            each.name,
            f"{each.arrived_count}/{len(each.runs)}",
            str(each.time(race.clock)),
            _show_interpolated(each, race.clock),
            str(each.time(other)),
            str(each.steps),
            str(each.step_seconds),
            *([str(each.spend) if each.spend is not None else ""] if priced else []),
        ]
        for each in race.contestants
    ]
    return [*heads, *(["spend"] if priced else [])], rows


def _show_interpolated(each: Contestant, clock: str) -> str:
    value = each.interpolated_time(clock).value
    return f"{value:.4g}, at most {each.error_seconds(clock):.3g} off" if math.isfinite(value) else "never"


def _run(
    task: Task,
    stop: Stop,
    clocks: Mapping[TaskId, RunClock],
    progress: Mapping[TaskId, Progress],
    prices: Mapping[str, float],
) -> RaceRun:
    clock, one = clocks.get(task.identity), progress.get(task.identity) or Progress(task=task.identity)
    epoch = one.fingerprint.steps_per_epoch if one.fingerprint is not None else None
    if clock is None:
        return RaceRun(task=task, status=one.status, reason=one.reason, steps_per_epoch=epoch or 0)
    crossing = find_crossing(clock.readings, stop)
    last = crossing.hit if crossing is not None else next(iter(clock.readings[-1:]), None)
    return RaceRun(
        task=task,
        status=one.status,
        reason=one.reason,
        crossing=crossing,
        readings=tuple(clock.readings),
        ways=tuple(sorted(clock.ways)),
        started_seconds=clock.started_seconds,
        interruptions=clock.interruptions,
        stopped_seconds=clock.stopped_seconds,
        spend=_spend(last, prices),
        steps_per_epoch=epoch or 0,
    )


def _spend(reading: ClockReading | None, prices: Mapping[str, float]) -> float | None:
    if reading is None or not any(prices.get(device) for device in reading.device_seconds):
        return None
    return sum(seconds * prices.get(device, 0.0) / 3600 for device, seconds in reading.device_seconds.items())


def _notes(each: Contestant, clock: str, points: Mapping[TaskId, Iterable[Measured]]) -> list[str]:
    """What readers should know of a contestant: equal curves, runs that never arrived, sparse evaluations."""
    found = []
    curves = {
        run.seed: [(point.name, point.step, point.value) for point in points.get(run.task.identity, ())]
        for run in each.runs
    }
    for seeds in find_equal_curves(curves):
        said = show_some([str(seed) for seed in seeds], most=10)
        found.append(
            f"{each.name}: seeds {said} gave equal curves, so they are one run and not {len(seeds)}, and the interval "
            f"is too narrow. Let the program draw weights and order from its parameter seed or torch's generators."
        )
    if failed := [run for run in each.runs if run.status == "failed"]:
        found.append(f"{each.name}: {len(failed)} of {len(each.runs)} runs failed and never arrive: {failed[0].reason}")
    late = len(each.runs) - each.arrived_count - len(failed)
    if late:
        found.append(f"{each.name}: {late} of {len(each.runs)} runs never reached the target, and count as infinite.")
    if len(each.runs) < LEAST_OLYMPIC:
        found.append(f"{each.name}: an interval must have at least {LEAST_OLYMPIC} runs. Give more seeds.")
    time, error = each.time(clock).value, each.error_seconds(clock)
    if math.isfinite(time) and error > _SPARSE * time:
        found.append(
            f"{each.name}: evaluations are so far apart that a run may have arrived {error:.3g} s before it was seen "
            f"to. Evaluate more often: Training(evaluate_every=...)."
        )
    if len(ways := sorted({way for run in each.runs for way in run.ways})) > 1:
        found.append(f"{each.name}: runs differ in how they ran, and so do their times: {', '.join(ways)}.")
    if stopped := [run for run in each.runs if run.stopped_seconds]:
        seconds = sum(run.stopped_seconds for run in stopped)
        found.append(
            f"{each.name}: the race was stopped for {seconds:.3g} s while {len(stopped)} of its runs were under way; "
            f"their clocks stood still, which MLPerf's rules do not allow."
        )
    return found


def _notes_on_reference(found: Mapping[str, Contestant], chosen: str) -> list[str]:
    others = [len(each.runs) for name, each in found.items() if name != chosen]
    if not others or len(found[chosen].runs) >= 2 * max(others):
        return []
    return [
        f"MLPerf's rules ask for twice as many runs of the reference ({chosen}) as of others; here it has "
        f"{len(found[chosen].runs)}."
    ]


def _estimate_record(found: Estimate | None) -> dict[str, float | None] | None:
    return None if found is None else dataclasses.asdict(found)


def _contestant_record(each: Contestant) -> dict[str, Any]:
    return {
        "contestant": each.name,
        "arrived": each.arrived_count,
        "time": {clock: _estimate_record(each.time(clock)) for clock in CLOCKS},
        "interpolated_time": {clock: _estimate_record(each.interpolated_time(clock)) for clock in CLOCKS},
        "error_seconds": {clock: each.error_seconds(clock) for clock in CLOCKS},
        "steps": _estimate_record(each.steps),
        "step_seconds": _estimate_record(each.step_seconds),
        "spend": _estimate_record(each.spend),
        "phase_seconds": {name: each.phase_seconds().get(name, 0.0) for name in PHASES},
        "runs": [_run_record(run) for run in each.runs],
    }


def _run_record(run: RaceRun) -> dict[str, Any]:
    crossing, last = run.crossing, run.last
    return {
        "task": run.task.name,
        "seed": run.seed,
        "status": run.status,
        "reason": run.reason,
        "seconds": {clock: run.seconds(clock) for clock in CLOCKS},
        "interpolated_seconds": {clock: run.interpolated_seconds(clock) for clock in CLOCKS},
        "steps": run.steps,
        "interpolated_steps": crossing.interpolated_step if crossing is not None else math.inf,
        "missed_step": crossing.miss.step if crossing is not None and crossing.miss is not None else None,
        "step_seconds": run.step_seconds,
        "phase_seconds": dict(last.seconds) if last is not None else {},
        "ways": list(run.ways),
        "interruptions": run.interruptions,
        "stopped_seconds": run.stopped_seconds,
        "spend": run.spend,
        "curve": [
            {"step": each.step, "value": each.value, **{clock: each.seconds_by(clock) for clock in CLOCKS}}
            for each in run.readings
        ],
    }


def _speed_up_record(each: SpeedUp) -> dict[str, Any]:
    found = dataclasses.asdict(each)
    return {**found, "sentence": each.sentence()}
