"""A store as trackers are told of it: a run for each task and one for each workload, read as rows come, never written.

Secrets are masked here and nowhere later.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.store import Point, PointSummary, Store, event_of_row
from dovetail.trackers.base import RunFacts
from dovetail.vocabulary import Plan, Task, TaskId, Workload, loads
from dovetail.vocabulary.events import AttemptStarted
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.user_text import shorten

# Large events that say nothing of where a task stands.
_PASSED_OVER = {"described", "measured", "timed", "rejected", "divided", "fingerprinted", "fed", "resized", "released"}
# As much of a reason as is told.
_MOST_REASON = 1000


@dataclasses.dataclass(slots=True)
class TrackedPlan:
    """The newest plan of a workload, and what it says once somebody asked."""

    number: int
    record: str
    text: str = ""


class StoreRuns:
    """What the store at `home` has to tell, of one workload or of all. Use it from one thread.

    >>> with Store(None, write=True) as store:
    ...     StoreRuns(store, owner="s").look()
    []
    """

    def __init__(self, store: Store, *, owner: str, workload: str | None = None) -> None:
        self._store, self._owner, self._workload = store, owner, workload
        self._redact = Redactor(variables=os.environ)
        self.tasks: dict[TaskId, Task] = {}
        self.progress: dict[TaskId, Progress] = {}
        self._workloads: dict[TaskId, str] = {}
        self._started: dict[TaskId, AttemptStarted] = {}
        self._plans: dict[str, TrackedPlan] = {}
        self._numbers = {"tasks": 0, "events": 0, "plans": 0}
        self._version = -1

    def look(self) -> list[TaskId]:
        """Take in what is new; the tasks of which there may be something to tell."""
        version = self._store.changes
        if version == self._version:
            return []
        self._version = version
        changed = self._read_tasks() | self._read_events()
        self._read_plans()
        changed |= {task for task, one in self.progress.items() if one.status == "running"}
        return [task for task in self.tasks if task in changed]

    def workloads(self) -> list[str]:
        """The workloads that tasks are part of."""
        return list(dict.fromkeys(self._workloads.values()))

    def task_run(self, task: TaskId) -> RunFacts:
        """What a tracker is to be told of a task."""
        record, one = self.tasks[task], self.progress.get(task) or Progress(task=task)
        spans, workload = one.spans, self._workloads[task]
        subject = f"{self._owner}-{task}"
        return RunFacts(
            key=f"{subject}-{one.anew_since_attempt}",
            subject=subject,
            name=self._redact.name(record.name),
            workload=self._redact.name(workload),
            parent=self._workload_key(workload),
            parameters=self._redact.parameters(record.parameters),
            tags=self._tags(record, one),
            status=one.status,
            has_ended=one.status in ENDED,
            started_seconds=spans[0].start_seconds if spans else None,
            ended_seconds=spans[-1].end_seconds if spans else None,
        )

    def workload_run(self, workload: str) -> RunFacts:
        """What is to be told of a workload as a whole: its plan, and how far it is."""
        known = [self.progress.get(task) for task, name in self._workloads.items() if name == workload]
        standing = [one.status if one else "pending" for one in known if not (one and one.vanished)]
        spans = [span for one in known if one for span in one.spans]
        status = _whole_status(standing)
        ends = [span.end_seconds for span in spans if span.end_seconds is not None]
        return RunFacts(
            key=self._workload_key(workload),
            subject=self._workload_key(workload),
            name=self._redact.name(workload),
            workload=self._redact.name(workload),
            parameters={"tasks": len(known)},
            tags={"dovetail.status": status},
            texts={"plan.txt": text} if (text := self._plan_text(workload)) else {},
            status=status,
            has_ended=status in ENDED,
            started_seconds=min((span.start_seconds for span in spans), default=None),
            ended_seconds=max(ends, default=None),
        )

    def metrics(self, task: TaskId) -> list[str]:
        """The names of a task's metrics as they are told."""
        return [self._redact.name(name) for name in self._store.metric_names(task)]

    def count_points(self, task: TaskId, since: Mapping[str, int]) -> int:
        """How many points there are after the steps that `since` has for each metric, by its name as it is told."""
        return sum(each.count for each in self._summarise(task, since))

    def new_points(self, task: TaskId, since: Mapping[str, int], *, most: int) -> tuple[list[Point], bool]:
        """Those points, about so many at most, in the order of their steps; and whether there are more. Those of one
        step come all together: of a task that runs the newest step is left out, since more metrics of it may be on
        the way."""
        behind = self._summarise(task, since)
        cut = max((each.last_step for each in behind), default=-1)
        cut -= self._status(task) == "running"
        most_of_each = max(1, most // max(1, len(behind)))
        found, more = [], False
        for each in behind:
            shown = self._redact.name(each.name)
            points = self._store.points(task, name=each.name, after=since.get(shown, -1), most=most_of_each)
            found += [dataclasses.replace(point, name=shown) for point in points]
            if len(points) == most_of_each and points[-1].step < cut:
                cut, more = points[-1].step, True
        return sorted((point for point in found if point.step <= cut), key=lambda p: (p.step, p.name)), more

    def _summarise(self, task: TaskId, since: Mapping[str, int]) -> list[PointSummary]:
        names = self._store.metric_names(task)
        return self._store.summarise_points(
            task, since={name: since.get(self._redact.name(name), -1) for name in names}
        )

    def _status(self, task: TaskId) -> str:
        one = self.progress.get(task)
        return one.status if one is not None else "pending"

    def _workload_key(self, workload: str) -> str:
        return f"{self._owner}-{hashlib.sha256(workload.encode()).hexdigest()[:16]}-workload"

    def _tags(self, task: Task, one: Progress) -> dict[str, str]:
        started = self._started.get(task.identity)
        found = {
            "dovetail.task": task.identity,
            "dovetail.status": one.status,
            "dovetail.program": self._redact.name(task.program.function),
            "dovetail.devices": ", ".join(started.devices) if started else "",
            "dovetail.technique": started.option.technique if started and started.option else "",
            "dovetail.reason": shorten(self._redact(one.reason), most=_MOST_REASON),
        }
        return {name: value for name, value in found.items() if value}

    def _plan_text(self, workload: str) -> str:
        plan = self._plans.get(workload)
        if plan is None:
            return ""
        plan.text = plan.text or self._redact(_show_plan(loads(Plan, plan.record), self.tasks))
        return plan.text

    def _new_rows(self, table: str) -> list[tuple[Any, ...]]:
        rows = self._store.rows(table, after=self._numbers[table])
        self._numbers[table] = max([self._numbers[table], *(row[0] for row in rows)])
        return rows

    def _read_tasks(self) -> set[TaskId]:
        changed = set()
        for _, identity, workload, _, _ in self._new_rows("tasks"):
            if self._workload in (None, workload):
                for _, task in self._store.tasks(identity=identity):
                    self._redact.learn([task.parameters])
                    self.tasks[task.identity] = task
                    self._workloads[task.identity] = workload
                    changed.add(task.identity)
        return changed

    def _read_events(self) -> set[TaskId]:
        changed = set()
        for _, kind, *row in self._new_rows("events"):
            if kind not in _PASSED_OVER:
                event = event_of_row(kind, *row)
                fold((event,), self.progress)
                changed.add(event.task)
                if isinstance(event, AttemptStarted):
                    self._started[event.task] = event
        return changed

    def _read_plans(self) -> None:
        for number, workload, _, record in self._new_rows("plans"):
            if workload in self._workloads.values():
                self._plans[workload] = TrackedPlan(number, record)


def _whole_status(standing: list[str]) -> str:
    """What the statuses of a workload's tasks come to."""
    if all(status in ENDED for status in standing):
        return "failed" if "failed" in standing else "finished"
    return "running" if "running" in standing else "pending"


def _show_plan(plan: Plan, tasks: Mapping[TaskId, Task]) -> str:
    """A plan as `print(plan)` shows it, with the names of its tasks."""
    placed = {task for each in (plan.schedule.placements if plan.schedule else ()) for task in each.tasks}
    known = {tasks[task].name: tasks[task] for task in placed if task in tasks}
    return str(dataclasses.replace(plan, workload=Workload(name="", tasks=tuple(known.values()), open=True)))
