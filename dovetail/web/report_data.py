"""Everything a report shows, read from the store once, as values. Secrets are masked here and nowhere later."""

import dataclasses
import math
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping

from dovetail.metrics.account import Account, account
from dovetail.metrics.comparison import Comparison, compare
from dovetail.metrics.curves import Curve, best, curves, goal_of, thin
from dovetail.metrics.progress import Progress, fold
from dovetail.metrics.spans import Bar, measured_bars, planned_bars
from dovetail.metrics.summary import Row, Summary, row
from dovetail.metrics.targets import TargetReached, time_to_target
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Event, FrozenDict, Plan, Task, TaskId
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStarted,
    CheckpointDamaged,
    DevicesReleased,
    TaskFailed,
    Warned,
)
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.work import name_tasks
from dovetail.web.timetable_charts import PipelineDrawing, read_timetables

MOST_CURVES = 200
MOST_CURVE_POINTS = 400
MOST_INCIDENTS = 200
MOST_TIMETABLES = 8
_LOG_LINES = 40


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something a person should look at: a warning, a loss, a failure."""

    kind: str
    at_seconds: float
    task: str
    attempt: int
    reason: str
    log: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricChart:
    """The curves of one metric that are drawn, by task, of `total` that there are."""

    name: str
    goal: str
    total: int
    curves: Mapping[TaskId, Curve]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task's target and when it was reached, if it was."""

    task: TaskId
    target: str
    reached: TargetReached | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """What there is to show. Tasks are by identity everywhere; `names` says how to call them. Where all were
    `begun_anew`, times count from there, and of what was before only the `measured` bars are left."""

    workload: str
    names: Mapping[TaskId, str]
    places: Mapping[TaskId, int]
    progress: Mapping[TaskId, Progress]
    summary: Summary
    comparison: Comparison
    account: Account
    plans: tuple[tuple[int, float, Plan], ...]
    planned: Mapping[str, list[Bar]]
    measured: list[Bar]
    metrics: tuple[MetricChart, ...]
    targets: tuple[Target, ...]
    incidents: tuple[Incident, ...]
    incidents_total: int
    techniques: Mapping[tuple[str, str], str]
    timetables: tuple[PipelineDrawing, ...]
    cluster: Cluster | None
    origin_seconds: float
    begun_anew: bool
    as_of_seconds: float

    def name(self, task: TaskId) -> str:
        """How to call a task; one that is not in the store's table by its identity."""
        return self.names.get(task, task)

    @property
    def last_plan(self) -> tuple[int, float, Plan] | None:
        """The plan that was made last, or None."""
        return self.plans[-1] if self.plans else None

    @property
    def devices(self) -> list[str]:
        """The cluster's devices where it is known, else those that were planned or used."""
        if self.cluster is not None:
            return [device.name for device in self.cluster.devices]
        bars = [*self.measured, *(bar for bars in self.planned.values() for bar in bars)]
        return sorted({device for bar in bars for device in bar.devices}, key=_natural)


def read(store: Store, *, workload: str | None = None) -> ReportData:
    """Read what concerns one workload, or everything."""
    described = store.described(workload)
    tasks = {task.identity: task for _, task in described}  # once: an identity is a digest, made anew when asked for
    redact = Redactor((task.parameters for task in tasks.values()), variables=os.environ)
    watched = _Watched(set(tasks) if workload is not None else None)
    watched.watch(event for _, event in store.events())
    for one in watched.progress.values():
        one.reason = redact(one.reason)
        one.metrics = {redact.name(name): value for name, value in one.metrics.items()}
    metrics = _Metrics(store, watched, redact)
    rows = [metrics.add(identity, task) for identity, task in tasks.items()]
    places = {identity: place for place, identity in enumerate(tasks)}
    names = {row.task: row.name + (" (former)" if row.vanished else "") for row in rows}
    progress, as_of = watched.progress.values(), watched.as_of_seconds
    since = _begun_anew(progress)
    made = ((number, at, redact.plan(plan)) for number, at, plan in store.plans(workload=workload) if at >= since)
    plans = tuple((number, at, _with_names(plan, names)) for number, at, plan in made)
    cluster = store.hardware("cluster", Cluster)
    return ReportData(
        workload=redact(workload or ", ".join(dict.fromkeys(name for name, _ in described))),
        names=names,
        places=places,
        progress=watched.progress,
        summary=Summary(rows=tuple(rows)),
        comparison=compare(progress, plans=plans, since_seconds=since, as_of_seconds=as_of),
        account=_account(watched, cluster, since),
        plans=plans,
        planned=_planned(plans),
        measured=measured_bars(progress, as_of_seconds=as_of, techniques=watched.techniques),
        metrics=metrics.charts(places),
        targets=tuple(metrics.targets),
        incidents=tuple(_incident(event, names, redact) for event in watched.incidents()),
        incidents_total=watched.incidents_total,
        techniques=watched.techniques,
        timetables=tuple(read_timetables(store, workload=workload, most=MOST_TIMETABLES)),
        cluster=cluster,
        origin_seconds=_origin(progress, plans, since, as_of),
        begun_anew=since > -math.inf,
        as_of_seconds=as_of,
    )


class _Watched:
    """One pass over the events: where tasks stand, and what went wrong."""

    def __init__(self, wanted: set[str] | None) -> None:
        self.progress: dict[TaskId, Progress] = {}
        self.techniques: dict[tuple[str, str], str] = {}
        self.as_of_seconds = 0.0
        self.incidents_total = 0
        self.released: list[DevicesReleased] = []
        self.moments: list[float] = []
        self._wanted = wanted
        # Warnings must not push out failures, so each has room of its own.
        self._failures: deque[Event] = deque(maxlen=MOST_INCIDENTS)
        self._warnings: deque[Event] = deque(maxlen=MOST_INCIDENTS // 4)

    def watch(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._wanted is None or not event.task or event.task in self._wanted:
                self._take(event)

    def _take(self, event: Event) -> None:
        fold((event,), self.progress)
        if event.task:  # what happens to other workloads does not move this one's clock
            self.as_of_seconds = max(self.as_of_seconds, event.at_seconds)
        self.moments.append(event.at_seconds)
        match event:
            case DevicesReleased():
                self.released.append(event)
            case AttemptStarted():
                self.techniques[event.task, event.placement] = event.option.technique if event.option else ""
            case TaskFailed() | AttemptLost():
                self._failures.append(event)
                self.incidents_total += 1
            case Warned() | CheckpointDamaged():
                self._warnings.append(event)
                self.incidents_total += 1

    def incidents(self) -> list[Event]:
        return sorted([*self._failures, *self._warnings], key=lambda event: event.at_seconds)


class _Metrics:
    """Goes through the tasks' points one task at a time, since all of them at once may not fit in memory."""

    def __init__(self, store: Store, watched: _Watched, redact: Redactor) -> None:
        self._store, self._watched, self._redact = store, watched, redact
        self._kept: dict[str, list[tuple[float, TaskId, Curve]]] = {}
        self._totals: dict[str, int] = {}
        self._goals: dict[str, str] = {}
        self.targets: list[Target] = []

    def add(self, identity: TaskId, task: Task) -> Row:
        found = curves(self._store.points(identity))
        for curve in found.values():
            self._keep(identity, curve, goal_of(curve.name, task.stop))
        one = self._watched.progress.get(identity) or Progress(task=identity)
        if task.stop.has_target:
            reached = time_to_target(task.stop, curves=found, spans=one.spans)
            self.targets.append(Target(task=identity, target=self._redact(task.stop.target), reached=reached))
        made = row(task, progress=one, curves=found, as_of_seconds=self._watched.as_of_seconds)
        redact = self._redact
        return dataclasses.replace(
            made,
            name=redact(made.name),
            parameters=redact.parameters(made.parameters),
            metrics=FrozenDict({redact.name(name): values for name, values in made.metrics.items()}),
        )

    def _keep(self, identity: TaskId, curve: Curve, goal: str) -> None:
        self._goals.setdefault(curve.name, goal)
        found = best(curve, goal=goal)
        rank = float("inf") if found is None else (-found[1] if goal == "max" else found[1])
        kept = self._kept.setdefault(curve.name, [])
        shown = dataclasses.replace(thin(curve, most=MOST_CURVE_POINTS), name=self._redact.name(curve.name))
        kept.append((rank, identity, shown))
        self._totals[curve.name] = self._totals.get(curve.name, 0) + 1
        if len(kept) > 2 * MOST_CURVES:
            kept[:] = sorted(kept, key=lambda each: each[0])[:MOST_CURVES]

    def charts(self, places: Mapping[TaskId, int]) -> tuple[MetricChart, ...]:
        names = sorted(self._kept, key=lambda name: ("loss" not in name.lower(), -self._totals[name], name))
        return tuple(self._chart(name, places) for name in names)

    def _chart(self, name: str, places: Mapping[TaskId, int]) -> MetricChart:
        chosen = sorted(self._kept[name], key=lambda each: each[0])[:MOST_CURVES]
        return MetricChart(
            name=self._redact.name(name),
            goal=self._goals[name],
            total=self._totals[name],
            curves={task: curve for _, task, curve in sorted(chosen, key=lambda each: places[each[1]])},
        )


def _account(watched: _Watched, cluster: Cluster | None, since: float) -> Account:
    released = [each for each in watched.released if each.at_seconds - each.duration_seconds >= since]
    used = {device for each in released for device in each.devices}
    moments = [moment for moment in watched.moments if moment >= since]
    return account(released, devices=len(cluster.devices) if cluster is not None else len(used), moments=moments)


def _planned(plans: tuple[tuple[int, float, Plan], ...]) -> dict[str, list[Bar]]:
    """The bars of the first plan, which is the promise, and of the latest, which is what is now intended."""
    scheduled = [(at, plan) for _, at, plan in plans if plan.schedule is not None]
    if not scheduled:
        return {}
    chosen = {"first": scheduled[0]} | ({"latest": scheduled[-1]} if len(scheduled) > 1 else {})
    return {label: planned_bars(plan, at_seconds=at) for label, (at, plan) in chosen.items()}


def _incident(event: Event, names: Mapping[TaskId, str], redact: Redactor) -> Incident:
    match event:
        case Warned(message=said):
            reason, log = said, ""
        case CheckpointDamaged():
            reason, log = event.reason or event.path, ""
        case TaskFailed() | AttemptLost():
            reason, log = event.reason, event.log
        case _:
            raise AssertionError(f"{event.kind} is no incident")
    return Incident(
        kind=event.kind,
        at_seconds=event.at_seconds,
        task=names.get(event.task, event.task),
        attempt=event.attempt,
        reason=redact(reason or "no reason was given"),
        log="\n".join(redact(log).rstrip().splitlines()[-_LOG_LINES:]),  # masked while secrets are whole
    )


def _begun_anew(progress: Iterable[Progress]) -> float:
    """When tasks were last begun anew, unless others began before, which count from their own start: then long ago."""
    anew = [one.anew_since_seconds for one in progress if one.anew_since_seconds is not None and not one.vanished]
    others = [one for one in progress if one.anew_since_seconds is None and one.spans and not one.vanished]
    since = min(anew, default=-math.inf)
    return since if all(one.spans[0].start_seconds >= since for one in others) else -math.inf


def _origin(
    progress: Iterable[Progress],
    plans: tuple[tuple[int, float, Plan], ...],
    since_seconds: float,
    as_of_seconds: float,
) -> float:
    """Time zero of the charts: the first plan, or the first start where that came before, of what counts."""
    moments = [one.spans[0].start_seconds for one in progress if one.spans] + [at for _, at, _ in plans[:1]]
    return min((moment for moment in moments if moment >= since_seconds), default=as_of_seconds)


def _natural(device: str) -> list[tuple[int, str]]:
    """A key that sorts device names by their numbers: n0:10 comes after n0:9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", device)]


def _with_names(plan: Plan, names: Mapping[TaskId, str]) -> Plan:
    """A plan whose explanation names tasks: those of runs, which are made anew all the time, stand in the store with
    identities."""
    return dataclasses.replace(plan, explanation=tuple(name_tasks(line, names) for line in plan.explanation))
