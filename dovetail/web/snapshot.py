"""The page's data: from where everything stands to plain data that JSON can spell. The live page is sent this once, and
afterwards the rows that changed; the written report holds it whole. Pure: the clock is an argument."""

import math
import platform
from collections.abc import Iterable
from typing import Any

from dovetail.metrics.account import CAUSES, account
from dovetail.metrics.comparison import compare
from dovetail.metrics.progress import STATUSES, Progress, Span
from dovetail.vocabulary import Event, TaskId
from dovetail.vocabulary.events import AttemptLost, CheckpointDamaged, TaskFailed, Warned
from dovetail.vocabulary.units import show_bytes
from dovetail.web.alerts import alerts
from dovetail.web.plain_data import plain_number, plain_seconds
from dovetail.web.reading import StoreReading, incidents
from dovetail.web.time_left import time_left

# Of a task that was tried more often, these last ones stand in its row; its own page has more.
MOST_SPANS = 24
_LOG_LINES = 40
_NO_TASK = TaskId("")


def snapshot(reading: StoreReading, *, now: float) -> dict[str, Any]:
    """What every view of the page shows, as JSON data: the tasks and the summary of the run."""
    return {
        "statuses": STATUSES,
        "tasks": [row(reading, task) for task in reading.tasks],
        **summary(reading, now=now),
    }


def summary(reading: StoreReading, *, now: float) -> dict[str, Any]:
    """What is said of the whole, which is sent anew whenever something has changed."""
    since = last_restart_seconds(reading)
    return {
        "now": plain_seconds(now),
        "as_of": plain_seconds(reading.as_of_seconds),
        "origin": plain_seconds(_origin(reading, since)),
        "anew": plain_seconds(since),
        "workloads": list(dict.fromkeys(known.workload for known in reading.tasks.values())),
        "machine": _machine(reading),
        "devices": _devices(reading),
        "plans": [
            [
                plan.number,
                plain_seconds(plan.at_seconds),
                plain_number(plan.makespan_seconds),
                plain_number(plan.bound_seconds),
                plan.because,
            ]
            for plan in reading.plans
        ],
        "plans_made": reading.plans_made,
        "left": time_left(reading, now=now),
        "comparison": _comparison(reading, since),
        "account": _account(reading, since),
        "alerts": alerts(reading, now=now),
        "incidents": [_incident(reading, event) for event in incidents(reading)],
        "incidents_total": reading.incidents_total,
        "requests": [_request(reading, event) for event in reading.requests],
        "summarised": reading.is_summarised,
    }


def row(reading: StoreReading, task: TaskId) -> dict[str, Any]:
    """One task. What is as usual is left out: thousands of rows are sent."""
    known, one = reading.tasks[task], reading.progress.get(task) or Progress(task=task)
    found: dict[str, Any] = {
        "id": task,
        "name": known.name,
        "workload": known.workload,
        "program": known.program,
        "status": one.status,
        "step": one.step,
        "last_step": last_step(reading, task),
        "given": known.parameters,
        "metrics": _metrics(reading, task, one),
        "spans": [_span(reading, one, span) for span in one.spans[-MOST_SPANS:]],
    }
    extras: dict[str, Any] = {
        "attempts": one.attempt - one.anew_since_attempt,
        "former_attempts": one.anew_since_attempt,
        "reason": one.reason,
        "former": one.vanished,
        "family": one.fingerprint.family[:12] if one.fingerprint else "",
        "priority": 0 if one.priority == 1.0 else one.priority,
        "deadline": plain_seconds(one.deadline_seconds),
        "entity": one.entity,
        "saved": one.saved_step,
        "stopping": "cancel" if one.cancelling else "pause" if one.paused and one.status == "running" else "",
        "target": reading.redact(known.stop.target),
        "earlier": [_span(reading, one, span) for span in one.former_spans[-MOST_SPANS:]],
    }
    return found | {name: value for name, value in extras.items() if value}


def last_step(reading: StoreReading, task: TaskId) -> int | None:
    """The step after which a task ends; None as long as nobody knows how long an epoch is."""
    known, one = reading.tasks[task], reading.progress.get(task)
    if one is not None and one.last_step:
        return one.last_step
    steps_per_epoch = one.fingerprint.steps_per_epoch if one is not None and one.fingerprint else None
    if known.stop.steps is None and not steps_per_epoch:
        return None
    return known.stop.last_step(steps_per_epoch)


def last_restart_seconds(reading: StoreReading) -> float:
    """When tasks were last begun anew, unless others began before, which count from their own start: then long ago."""
    present = [one for one in reading.progress.values() if not one.vanished]
    anew = [one.anew_since_seconds for one in present if one.anew_since_seconds is not None]
    others = [one for one in present if one.anew_since_seconds is None and one.spans]
    since = min(anew, default=-math.inf)
    return since if all(one.spans[0].start_seconds >= since for one in others) else -math.inf


def _metrics(reading: StoreReading, task: TaskId, one: Progress) -> dict[str, list[Any]]:
    """Of each metric its last value and its best."""
    found = {
        name: [plain_number(each.last), plain_number(reading.best(task, each))]
        for name, each in reading.metrics.get(task, {}).items()
    }
    # Until its points have been looked at, a task that has ended is known by what it came to.
    rest = {reading.redact.name(name): value for name, value in one.metrics.items()}
    return {name: [plain_number(value), None] for name, value in rest.items() if name not in found} | found


def _span(reading: StoreReading, one: Progress, span: Span) -> list[Any]:
    option = reading.options.get((one.task, span.placement))
    return [
        span.placement,
        plain_seconds(span.start_seconds),
        plain_seconds(span.end_seconds),
        plain_number(span.predicted_seconds) if math.isfinite(span.predicted_seconds) else 0.0,
        span.from_step,
        max(span.to_step, one.step if span.end_seconds is None else 0),
        span.until_step,
        list(span.devices),
        option.technique if option else "",
        (option.device_bytes or option.host_bytes) if option else 0,
    ]


def _origin(reading: StoreReading, since: float) -> float:
    """Time zero of the charts: the first plan, or the first start where that came before, of what counts."""
    starts = [one.spans[0].start_seconds for one in reading.progress.values() if one.spans]
    plans = [plan.at_seconds for plan in reading.plans]
    return min((moment for moment in [*starts, *plans] if moment >= since), default=reading.as_of_seconds)


def _machine(reading: StoreReading) -> str:
    cluster = reading.cluster
    if cluster is None:
        return f"{platform.node()} ({platform.system()}, {platform.machine()})"
    kinds = " + ".join(f"{count} × {kind.name}" for kind, count in cluster.counts())
    cores, memory = sum(node.cores for node in cluster.nodes), sum(node.memory_bytes for node in cluster.nodes)
    nodes = cluster.nodes[0].name if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} nodes"
    return f"{nodes}: {kinds}, {cores} cores, {show_bytes(memory)}"


def _devices(reading: StoreReading) -> list[dict[str, Any]]:
    own = {device.name: device for device in reading.cluster.devices} if reading.cluster is not None else {}
    kinds = {kind.name: kind for kind in reading.cluster.kinds} if reading.cluster is not None else {}
    found = []
    for name in reading.devices:
        kind = kinds.get(own[name].kind) if name in own else None
        said: dict[str, Any] = {"name": name, "away": reading.away.get(name, "")}
        if kind is not None:
            said |= {"kind": kind.name, "memory": kind.memory_bytes, "price": kind.price_per_hour}
        found.append({key: value for key, value in said.items() if value})
    return found


def _comparison(reading: StoreReading, since: float) -> dict[str, Any]:
    """What all predictions came to, as far as they can be judged; each stands in its task's row."""
    found = compare(reading.progress.values(), since_seconds=since, as_of_seconds=reading.as_of_seconds)
    first = next((plan for plan in reading.plans if plan.at_seconds >= since and plan.makespan_seconds), None)
    return {
        "ratio": plain_number(found.median_ratio),
        "compared": len(found.spans),
        "interrupted": found.interrupted,
        "running": found.running,
        "unpredicted": found.unpredicted,
        "planned": plain_number(first.makespan_seconds) if first else None,
        "measured": plain_number(found.measured_seconds),
        "active": plain_number(found.active_seconds),
    }


def _account(reading: StoreReading, since: float) -> dict[str, Any] | None:
    released = [each for each in reading.released if each.at_seconds - each.duration_seconds >= since]
    used = {device for each in released for device in each.devices}
    count = len(reading.cluster.devices) if reading.cluster is not None else len(used)
    stretches = [(max(start, since), end) for start, end in reading.stretches if end >= since]
    found = account(released, devices=count, stretches=stretches)
    if not found.seconds:
        return None
    causes = [
        [cause, plain_number(found.seconds[cause]), plain_number(found.share(cause)), meaning]
        for cause, meaning in CAUSES.items()
        if found.seconds.get(cause)
    ]
    return {
        "causes": causes,
        "whole": plain_number(found.whole_seconds),
        "devices": found.devices,
        "utilisation": plain_number(found.utilisation),
    }


def _incident(reading: StoreReading, event: Event) -> dict[str, Any]:
    match event:
        case Warned(message=said):
            reason, log = said, ""
        case CheckpointDamaged():
            reason, log = event.reason or event.path, ""
        case TaskFailed() | AttemptLost():
            reason, log = event.reason, event.log
        case _:
            raise AssertionError(f"{event.kind} is no incident")
    redact = reading.redact
    return {
        "kind": event.kind,
        "at": plain_seconds(event.at_seconds),
        "task": event.task,
        "attempt": event.attempt,
        "reason": redact(reason or "no reason was given"),
        "log": "\n".join(redact(log).rstrip().splitlines()[-_LOG_LINES:]),  # masked while secrets are whole
    }


_ASKED_FIELDS = ("priority", "deadline_seconds", "of")


def _request(reading: StoreReading, event: Event) -> list[Any]:
    """What a user asked for: when, what, of which task, who, and the rest of it in words."""
    values = {name: getattr(event, name) for name in _ASKED_FIELDS if getattr(event, name, None)}
    words = _words({name: value for name, value in values.items() if value not in (1.0, math.inf)})
    who = reading.redact(str(getattr(event, "asked_by", "")))
    return [plain_seconds(event.at_seconds), event.kind, event.task, who, reading.redact(words)]


def _words(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name.removesuffix('_seconds')} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def rows(reading: StoreReading, tasks: Iterable[TaskId]) -> list[dict[str, Any]]:
    """The rows of some tasks, in the order in which tasks came."""
    return [row(reading, task) for task in sorted(tasks, key=lambda task: reading.tasks[task].place)]
