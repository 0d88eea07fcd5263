"""What a view asks for beyond what all views share: curves, plans, pipelines, one task. Each answer is plain data made
of what was read and of the store; the written report holds the same answers."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.metrics.curves import Curve, curves, thin
from dovetail.metrics.progress import Progress
from dovetail.metrics.spans import trained_seconds
from dovetail.metrics.targets import TargetReached, time_to_target
from dovetail.planning.pipeline.timetables import Simulated
from dovetail.store import Store
from dovetail.verbs.why import why_store
from dovetail.vocabulary import DovetailError, TaskId
from dovetail.vocabulary.work import name_tasks
from dovetail.web.plain_data import plain_number, plain_seconds
from dovetail.web.reading import StoreReading
from dovetail.web.timetable_charts import PipelineDrawing, read_timetables

MOST_POINTS = 1000
MOST_CURVES = 200
SPARK_POINTS = 48
MOST_LINES = 400
MOST_REJECTIONS = 200
MOST_TIMETABLES = 8
MOST_TARGETS = 1000
MOST_EXPLAINED = 2000


def curves_of(
    reading: StoreReading,
    store: Store,
    tasks: Sequence[str],
    *,
    metrics: Sequence[str] = (),
    most: int = MOST_POINTS,
) -> dict[str, Any]:
    """The curves of these tasks, of these metrics or of all, by task and metric: each with its steps, its values, and
    when each was seen, in seconds of training and on the wall clock. A value that is not finite is none."""
    found: dict[str, Any] = {}
    for task in [TaskId(each) for each in tasks if each in reading.tasks][:MOST_CURVES]:
        named = {reading.redact.name(name): curve for name, curve in _curves(reading, store, task, metrics).items()}
        one = reading.progress.get(task) or Progress(task=task)
        found[task] = {name: _curve(thin(curve, most=most), one) for name, curve in named.items()}
    return found


def sparks_of(reading: StoreReading, store: Store, tasks: Sequence[str], *, metric: str) -> dict[str, Any]:
    """A small curve of one metric for each of these tasks: its values only."""
    found: dict[str, Any] = {}
    for task in [TaskId(each) for each in tasks if each in reading.tasks][:MOST_CURVES]:
        curve = _curves(reading, store, task, [metric]).get(_own_name(reading, task, metric))
        if curve is not None:
            found[task] = [_finite(value) for value in thin(curve, most=SPARK_POINTS).values]
    return found


def plan_of(reading: StoreReading, store: Store, number: int) -> dict[str, Any]:
    """One plan: its placements, or its shares; what it rejected, and why it is as it is, with tasks by their names.
    Of plans between the first and the last ones only that they were made is kept."""
    rows = [row for row in store.rows("plans", after=number - 1, most=1) if row[0] == number]
    if not rows:
        raise DovetailError(f"a plan must be one of those in the store; there is no plan {number}.")
    _, _, at_seconds, record = rows[0]
    data, names, redact = json.loads(record), reading.names(), reading.redact
    explanation = [name_tasks(redact(line), names) for line in data.get("explanation", ())[:MOST_LINES]]
    placements = (data.get("schedule") or {}).get("placements", ())
    return {
        "number": number,
        "at": plain_seconds(at_seconds),
        "kept": bool(placements or data.get("allocation") or explanation),
        "objective": str(data.get("objective", "makespan")),
        "bound": plain_number(data.get("bound_seconds", 0.0)),
        "value": plain_number(_number(data.get("value", 0.0))),
        "placements": [_placement(each, at_seconds) for each in placements],
        "shares": _shares(data.get("allocation") or {}),
        "explanation": explanation,
        "more_lines": max(0, len(data.get("explanation", ())) - MOST_LINES),
        "rejections": _rejections(reading, data.get("rejections", ())),
    }


def targets_of(reading: StoreReading, store: Store) -> list[dict[str, Any]]:
    """Time to target of the tasks that have one: with which value, at which step, after how long; the soonest first."""
    found = []
    for task in [task for task, known in reading.tasks.items() if known.stop.has_target][:MOST_TARGETS]:
        stop, one = reading.tasks[task].stop, reading.progress.get(task) or Progress(task=task)
        own = curves(store.points(task, name=stop.metric))
        reached = time_to_target(stop, curves=own, spans=one.spans)
        found.append({"task": task, "target": reading.redact(stop.target), "reached": reached and _target_row(reached)})
    return sorted(found, key=lambda each: each["reached"]["trained"] if each["reached"] else math.inf)


def explain_outcomes(reading: StoreReading, store: Store, *, workload: str | None = None) -> list[dict[str, Any]]:
    """What is behind failures, divergence, halving and slowness, a question each with its answers in words. Of more
    than so many tasks it says where to ask instead, since all events are read for it."""
    if not reading.tasks:
        return []
    if len(reading.tasks) > MOST_EXPLAINED:
        line = f"left out here for {len(reading.tasks):,} tasks, more than {MOST_EXPLAINED:,}: 'dovetail why' answers"
        return [{"question": "why did tasks fail, diverge or run slower?", "lines": [line]}]
    found = why_store(store, workload=workload)
    return [{"question": each.question, "lines": [reading.redact(line) for line in each.lines()]} for each in found]


def _target_row(reached: TargetReached) -> dict[str, Any]:
    return {
        "value": plain_number(reached.value),
        "step": reached.step,
        "trained": plain_number(reached.trained_seconds),
        "wall": plain_number(reached.wall_seconds),
    }


def pipelines_of(reading: StoreReading, store: Store) -> list[dict[str, Any]]:
    """The timetables of tasks that ran or are to run as pipelines, planned and measured."""
    if not _has_pipelines(reading, store):  # to look closer takes seconds where there are thousands of tasks
        return []
    drawn = read_timetables(store, workload=reading.workload, most=MOST_TIMETABLES)
    return [_pipeline(each) for each in drawn]


def _has_pipelines(reading: StoreReading, store: Store) -> bool:
    if any(option.technique == "pipeline" for option in reading.options.values()):
        return True
    last = reading.plans[-1].number if reading.plans else 0
    return any('"technique":"pipeline"' in record for *_, record in store.rows("plans", after=last - 1, most=1))


def _pipeline(drawn: PipelineDrawing) -> dict[str, Any]:
    return {
        "task": drawn.task,
        "timetable": drawn.timetable,
        "devices": list(drawn.devices),
        "step": drawn.step,
        "seconds": plain_number(drawn.seconds),
        "planned": _timetable(drawn.planned),
        "measured": _timetable(drawn.measured),
    }


def _timetable(found: Simulated | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "seconds": plain_number(found.seconds),
        "idle": plain_number(found.bubble_share),
        "ranks": [
            [
                [each.action.operation, each.action.stage, each.action.microbatch, _round(each.start), _round(each.end)]
                for each in rank
            ]
            for rank in found.ranks
        ],
    }


def _round(seconds: float) -> float:
    return round(seconds, 6)


def _curves(reading: StoreReading, store: Store, task: TaskId, metrics: Sequence[str]) -> Mapping[str, Curve]:
    wanted = {_own_name(reading, task, name) for name in metrics}
    if len(wanted) == 1:
        return curves(store.points(task, name=next(iter(wanted))))
    return {name: curve for name, curve in curves(store.points(task)).items() if not wanted or name in wanted}


def _own_name(reading: StoreReading, task: TaskId, shown: str) -> str:
    """What a metric is called in the store, where secrets in its name are masked on the page."""
    summary = reading.metrics.get(task, {}).get(shown)
    return summary.name if summary is not None else shown


def _curve(curve: Curve, one: Progress) -> dict[str, Any]:
    spans = one.spans
    begin = spans[0].start_seconds if spans else curve.at_seconds[0]
    return {
        "steps": list(curve.steps),
        "values": [_finite(value) for value in curve.values],
        "trained": [plain_number(trained_seconds(spans, until_seconds=at)) for at in curve.at_seconds],
        "wall": [plain_number(max(at - begin, 0.0)) for at in curve.at_seconds],
        "at": [plain_seconds(at) for at in curve.at_seconds],
    }


def _finite(value: float) -> float | None:
    found = plain_number(value)
    return None if isinstance(found, str) else found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf


def _placement(each: Mapping[str, Any], at_seconds: float) -> list[Any]:
    option = each["option"]
    return [
        each["tasks"],
        each["steps"],
        each["devices"],
        plain_seconds(at_seconds + each["start_seconds"]),
        plain_seconds(at_seconds + each["start_seconds"] + each["duration_seconds"]),
        option["technique"],
        bool(option.get("measured", True)),
    ]


def _shares(allocation: Mapping[str, Any]) -> list[list[Any]]:
    groups = allocation.get("groups", ())
    return [
        [
            [task for group in share["groups"] for task in groups[group]][:50],
            share["option"]["technique"],
            share["option"]["kind"],
            share["option"]["count"],
            plain_number(share["share"]),
        ]
        for share in allocation.get("shares", ())
    ]


def _rejections(reading: StoreReading, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    members: dict[str, list[str]] = {}
    for task in reading.tasks:
        one = reading.progress.get(task)
        if one is not None and one.fingerprint is not None:
            members.setdefault(one.fingerprint.family, []).append(task)
    return [
        {
            "tasks": [task for family in each["families"] for task in members.get(family, ())][:50],
            "technique": each["technique"],
            "kind": each["kind"],
            "count": each["count"],
            "reason": reading.redact(each["reason"]),
            "needed": each.get("needed_bytes", 0),
            "free": each.get("free_bytes", 0),
        }
        for each in list(given)[:MOST_REJECTIONS]
    ]
