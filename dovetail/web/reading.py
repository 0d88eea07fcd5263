"""What the page knows of a store: folded from its rows as they come, and never from the beginning again.

Of ten thousand tasks a page wants to see all at once, within a second. So each row is read once, and of it only what
is shown: no record is built of what JSON says already, plans and profiles are read when somebody asks for them, and
points are summarised by the database. Secrets are masked here and nowhere later. Knows nothing of pages or sockets.
"""

import dataclasses
import functools
import json
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.metrics.account import PAUSE_SECONDS
from dovetail.metrics.curves import goal_of
from dovetail.metrics.progress import Progress, fold
from dovetail.store import PointSummary, Store, event_of_row
from dovetail.vocabulary import Cluster, Event, Fingerprint, Stop, TaskId, from_json
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStarted,
    CheckpointDamaged,
    DevicesReleased,
    PlanMade,
    TaskFailed,
    TaskFingerprinted,
    Warned,
)
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.request_events import TaskRestarted
from dovetail.web.plain_data import plain_value

# Of each of these the last so many are kept: what lasts for months is not shown whole.
MOST_INCIDENTS, MOST_RELEASED, MOST_REQUESTS, MOST_PLANS = 200, 20_000, 200, 400
# Events that are large and change nothing that the page shows at once: they are looked up when asked for.
_PASSED_OVER = {"described", "measured", "timed", "progress", "rejected", "divided"}
_ASKED = {"paused", "resumed", "cancelling", "cancelled", "prioritized", "submitted", "retried", "dated"}


@dataclasses.dataclass(slots=True, kw_only=True)
class KnownTask:
    """A task as the page shows it: its name and parameters with secrets masked, `stop` as it is on record. `former`
    tasks have left their workload or were replaced."""

    identity: TaskId
    workload: str
    name: str
    program: str
    parameters: dict[str, Any]
    stop: Stop
    place: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsedOption:
    """How an attempt ran: what of its option the page shows of every attempt."""

    technique: str = ""
    kind: str = ""
    count: int = 1
    device_bytes: int = 0
    host_bytes: int = 0
    measured: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlan:
    """That a plan was made; whether all of it is kept is only known once somebody asks for it."""

    number: int
    workload: str
    at_seconds: float
    makespan_seconds: float = 0.0
    bound_seconds: float = 0.0
    because: str = ""


class StoreReading:
    """Where everything in a store stands, of one workload or of all. Use it from one thread.

    >>> with Store(None, write=True) as store:
    ...     reading = StoreReading()
    ...     reading.read(store)
    set()
    """

    def __init__(self, *, workload: str | None = None) -> None:
        self.workload = workload
        self.redact = Redactor(variables=os.environ)
        self.tasks: dict[TaskId, KnownTask] = {}
        self.progress: dict[TaskId, Progress] = {}
        self.options: dict[tuple[TaskId, str], UsedOption] = {}
        self.metrics: dict[TaskId, dict[str, PointSummary]] = {}
        self.plans: deque[KnownPlan] = deque(maxlen=MOST_PLANS)
        self.plans_made = 0
        self.cluster: Cluster | None = None
        self.away: dict[str, str] = {}
        self.failures: deque[Event] = deque(maxlen=MOST_INCIDENTS)
        self.warnings: deque[Event] = deque(maxlen=MOST_INCIDENTS // 4)
        self.incidents_total = 0
        self.requests: deque[Event] = deque(maxlen=MOST_REQUESTS)
        self.released: deque[DevicesReleased] = deque(maxlen=MOST_RELEASED)
        self.stretches: list[tuple[float, float]] = []
        self.as_of_seconds = 0.0
        self._number = {"tasks": 0, "events": 0, "hardware": 0}
        self._unsummarised: dict[TaskId, None] = {}

    def read(self, store: Store, *, most: int = -1) -> set[TaskId]:
        """Take in what is new, so many events at most; gives the tasks that may have changed."""
        changed = self._read_tasks(store)
        for number, name, _ in store.rows("hardware", after=self._number["hardware"]):
            self._number["hardware"] = max(self._number["hardware"], number)
            if name == "cluster":
                self.cluster = store.hardware("cluster", Cluster)
        for number, *row in store.rows("events", after=self._number["events"], most=most):
            self._number["events"] = number
            if (task := self._take(*row)) is not None:
                changed.add(task)
        return changed & self.tasks.keys()

    @property
    def event_number(self) -> int:
        """The number of the last event that was read."""
        return self._number["events"]

    def look_at_running(self, store: Store) -> set[TaskId]:
        """Look at the new points of tasks that run; gives those that have some."""
        running = [task for task, one in self.progress.items() if one.status == "running" and task in self.tasks]
        return {task for task in running if self._summarise(store, task)}

    def summarise(self, store: Store, *, most: int) -> set[TaskId]:
        """Look at the points of so many other tasks that may have some that were not looked at; gives those that do."""
        behind = [task for task in self._unsummarised if self._status(task) != "running"][:most]
        return {task for task in behind if self._summarise(store, task)}

    @property
    def is_summarised(self) -> bool:
        """Whether the points of every task that does not run have been looked at."""
        return all(self._status(task) == "running" for task in self._unsummarised)

    def _status(self, task: TaskId) -> str:
        one = self.progress.get(task)
        return one.status if one is not None else "pending"

    def goal(self, task: TaskId, metric: str) -> str:
        """Whether a metric of a task is to be `max` or `min`."""
        return goal_of(metric, self.tasks[task].stop)

    def best(self, task: TaskId, summary: PointSummary) -> float | None:
        """The best value that a metric of a task has had."""
        return summary.high if self.goal(task, summary.name) == "max" else summary.low

    def names(self) -> Mapping[TaskId, str]:
        """The name that users know each task by."""
        return {task: known.name for task, known in self.tasks.items()}

    @property
    def devices(self) -> list[str]:
        """The cluster's devices where it is known, and others that were used, by their numbers."""
        own = [device.name for device in self.cluster.devices] if self.cluster is not None else []
        used = {device for one in self.progress.values() for span in one.spans for device in span.devices}
        return [*own, *sorted(used.difference(own), key=_natural)]

    def _read_tasks(self, store: Store) -> set[TaskId]:
        rows = [
            (number, TaskId(identity), workload, name, record)
            for number, identity, workload, name, record in store.rows("tasks", after=self._number["tasks"])
        ]
        self._number["tasks"] = max([self._number["tasks"], *(row[0] for row in rows)])
        wanted = [row for row in rows if self.workload in (None, row[2])]
        read = [(*row[1:4], _parse_record(row[4])) for row in wanted]
        self.redact.learn(_parameters(record) for *_, record in read)
        for identity, workload, name, record in read:
            self.tasks[identity] = self._make_task(identity, workload, name, record)
            self._unsummarised.setdefault(identity)
        return {identity for identity, *_ in read}

    def _make_task(self, identity: TaskId, workload: str, name: str, record: Mapping[str, Any]) -> KnownTask:
        reference = str(record.get("program", {}).get("reference", ""))
        before = self.tasks.get(identity)
        given = self.redact.parameters(_parameters(record))
        return KnownTask(
            identity=identity,
            workload=self.redact.name(workload),
            name=self.redact.name(name),
            program=self.redact.name(reference.rpartition(":")[2]),
            parameters={key: plain_value(value) for key, value in given.items()},
            stop=_stop(tuple(_read_mapping(record, "stop").items())),
            place=before.place if before else len(self.tasks),
        )

    def _take(self, kind: str, task: str, attempt: int, at_seconds: float, data: str) -> TaskId | None:
        """Take one event in; gives its task, if it is of one that is shown."""
        if task and self.workload is not None and task not in self.tasks:
            return None
        self._extend(at_seconds)
        if task:  # what happens to other workloads does not move this one's clock
            self.as_of_seconds = max(self.as_of_seconds, at_seconds)
        if kind in _PASSED_OVER:
            return TaskId(task) if kind == "described" else None
        option = ""
        if kind == "started":
            data, option = _without_option(data)
        event = _event(kind, task, attempt, at_seconds, data)
        fold((event,), self.progress)
        if isinstance(event, AttemptStarted):
            self.options[event.task, event.placement] = _read_option(option)
        self._note(event)
        return event.task or None

    def _note(self, event: Event) -> None:
        """Keep what is shown of an event beside where its task stands."""
        match event:
            case DevicesReleased():
                self.released.append(event)
            case TaskFailed() | AttemptLost():
                self._mask_reason(event.task)
                self.failures.append(event)
                self.incidents_total += 1
            case Warned() | CheckpointDamaged():
                self.warnings.append(event)
                self.incidents_total += 1
            case PlanMade():
                self._note_plan(event)
            case TaskRestarted():
                self.metrics.pop(event.task, None)
        if event.kind in ("departed", "joined"):
            self._note_devices(event)
        if event.kind in _ASKED:
            self.requests.append(event)
        if event.task in self.tasks:  # its points may be others
            self._unsummarised[event.task] = None

    def _mask_reason(self, task: TaskId) -> None:
        self.progress[task].reason = self.redact(self.progress[task].reason)

    def _note_plan(self, event: PlanMade) -> None:
        if self.workload in (None, event.workload):
            self.plans_made += 1
            self.plans.append(
                KnownPlan(
                    number=event.plan,
                    workload=self.redact.name(event.workload),
                    at_seconds=event.at_seconds,
                    makespan_seconds=event.makespan_seconds,
                    bound_seconds=event.bound_seconds,
                    because=self.redact(event.because),
                )
            )

    def _note_devices(self, event: Any) -> None:
        for device in event.devices:
            if event.kind == "joined":
                self.away.pop(device, None)
            else:
                self.away[device] = self.redact(event.reason)

    def _extend(self, at_seconds: float) -> None:
        """Keep when anything happened, as the stretches between which there was a pause."""
        if self.stretches:
            start, end = self.stretches[-1]
            if start - PAUSE_SECONDS <= at_seconds <= end + PAUSE_SECONDS:
                self.stretches[-1] = min(start, at_seconds), max(end, at_seconds)
                return
        self.stretches.append((at_seconds, at_seconds))

    def _summarise(self, store: Store, task: TaskId) -> bool:
        one = self.progress.get(task)
        known = self.metrics.setdefault(task, {})
        since = {each.name: each.last_step for each in known.values()}
        new = store.summarise_points(task, since=since)
        for each in new:
            name = self.redact.name(each.name)
            known[name] = _join_summaries(known[name], each) if name in known else each
        if one is None or one.status != "running":
            self._unsummarised.pop(task, None)
        else:
            one.step = max([one.step, *(each.last_step for each in new)])
        return bool(new)


def read_whole(store: Store, *, workload: str | None = None) -> StoreReading:
    """All that a store has to say of one workload, or of everything, at once."""
    reading = StoreReading(workload=workload)
    reading.read(store)
    if not reading.plans:  # of a plan that nobody has run there is no event
        for number, name, at_seconds, record in store.rows("plans"):
            if workload in (None, name):
                reading.plans.append(_unrun(number, reading.redact.name(name), at_seconds, record))
                reading.plans_made += 1
    reading.look_at_running(store)
    reading.summarise(store, most=len(reading.tasks))
    return reading


def _unrun(number: int, workload: str, at_seconds: float, record: str) -> KnownPlan:
    data = json.loads(record)
    placements = (data.get("schedule") or {}).get("placements", ())
    makespan = max((each["start_seconds"] + each["duration_seconds"] for each in placements), default=0.0)
    return KnownPlan(
        number=number,
        workload=workload,
        at_seconds=at_seconds,
        makespan_seconds=makespan,
        bound_seconds=data.get("bound_seconds", 0.0),
    )


def _parse_record(record: str) -> Mapping[str, Any]:
    """A task's record as plain data; nothing where it cannot be read, so that nobody else is in trouble for it."""
    try:
        found = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _read_mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name, {})
    return found if isinstance(found, dict) else {}


def _parameters(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return _read_mapping(record, "parameters")


# What thousands of tasks have in common is read once, by the text that it has in the store.


@functools.lru_cache(maxsize=1000)
def _stop(fields: tuple[tuple[str, Any], ...]) -> Stop:
    try:
        return from_json(Stop, dict(fields))
    except ValueError:
        return Stop(steps=1)


@functools.lru_cache(maxsize=10_000)
def _fingerprint(data: str) -> Fingerprint | None:
    event = event_of_row("fingerprinted", "", 0, 0.0, data)
    return event.fingerprint if isinstance(event, TaskFingerprinted) else None


@functools.lru_cache(maxsize=10_000)
def _read_option(option: str) -> UsedOption:
    """How an attempt ran, of its option's text."""
    try:
        found = json.loads(option) or {}
        return UsedOption(
            technique=str(found.get("technique", "")),
            kind=str(found.get("kind", "")),
            count=int(found.get("count", 1)),
            device_bytes=int(found.get("device_bytes", 0)),
            host_bytes=int(found.get("host_bytes", 0)),
            measured=bool(found.get("measured", True)),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return UsedOption()


def _without_option(data: str) -> tuple[str, str]:
    """The data of a start without its option, which is the last of its fields, and the option's text."""
    head, found, option = data.partition(',"option":{')
    return (f"{head}}}", f"{{{option[:-1]}") if found else (data, "")


def _event(kind: str, task: str, attempt: int, at_seconds: float, data: str) -> Event:
    if kind == "fingerprinted" and (known := _fingerprint(data)) is not None:
        return TaskFingerprinted(task=TaskId(task), attempt=attempt, at_seconds=at_seconds, fingerprint=known)
    return event_of_row(kind, task, attempt, at_seconds, data)


def _join_summaries(before: PointSummary, new: PointSummary) -> PointSummary:
    lows = [each for each in (before.low, new.low) if each is not None]
    highs = [each for each in (before.high, new.high) if each is not None]
    return dataclasses.replace(
        new, count=before.count + new.count, low=min(lows, default=None), high=max(highs, default=None)
    )


def _natural(device: str) -> list[tuple[int, str]]:
    """A key that sorts device names by their numbers: n0:10 comes after n0:9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", device)]


def incidents(reading: StoreReading) -> Iterable[Event]:
    """Failures, losses and warnings in the order in which they came."""
    return sorted([*reading.failures, *reading.warnings], key=lambda event: event.at_seconds)
