"""A store's tasks as a table: what each was given and how it ran, and what came of it. Explains nothing."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.metrics.comparison import compare
from dovetail.metrics.curves import goal_of
from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.store import Store
from dovetail.vocabulary import Event, Task, TaskId
from dovetail.vocabulary.events import AttemptStarted, TaskFailed
from dovetail.vocabulary.records import thaw
from dovetail.vocabulary.redact import Redactor

# Measured over predicted: from here on a task was slower than was said.
SLOWER = 1.5
_NOT_FINITE = "the loss must be a finite number"
RUN_COLUMNS = ("program", "technique", "kind", "node", "attempts", "neighbours", "workload")
"""How a task ran, beside its parameters."""


class SweepTable:
    """Columns by name, a row for each task: `attributes` to explain by, `metrics`, and `outcomes` by name: which tasks
    have it, and of which tasks it can be said at all."""

    def __init__(self, workloads: Sequence[str], tasks: Sequence[Task], events: Iterable[Event]) -> None:
        events = list(events)
        self.tasks = tasks
        self._progress = fold(events)
        self.attributes = _parameters(tasks) | _runs(tasks, events, self._progress)
        self.attributes["workload"] = list(workloads)
        self.metrics: dict[str, list[float | None]] = {}
        self._failures: dict[TaskId, TaskFailed] = {
            event.task: event for event in events if isinstance(event, TaskFailed)
        }

    def add_metrics(self, store: Store) -> None:
        """Read the last value of every metric."""
        for number, task in enumerate(self.tasks):
            for summary in store.summarise_points(task.identity):
                self.metrics.setdefault(summary.name, [None] * len(self.tasks))[number] = summary.last

    def goal(self, metric: str) -> str:
        """Whether a metric is to be `max` or `min`."""
        return goal_of(metric, self.tasks[0].stop if self.tasks else None)

    def columns(self) -> dict[str, list[Any]]:
        """Everything that a condition may name; a metric with the name of an attribute is called `metric/...`."""
        named = {f"metric/{name}" if name in self.attributes else name: each for name, each in self.metrics.items()}
        return {**self.attributes, **named, "status": [self._one(task).status for task in self.tasks]}

    def outcomes(self) -> dict[str, tuple[list[bool], list[bool]]]:
        """By name: which tasks have it, and of which it can be said. Failures stand by cause, and together where these
        differ."""
        ones = [self._one(task) for task in self.tasks]
        begun = [one.attempt > 0 or one.status in ENDED for one in ones]
        causes = [cause_of(one, self._failures.get(one.task)) for one in ones]
        failed = [one.status == "failed" for one in ones]
        diverged = [cause == "diverged" or self._has_lost_count(number) for number, cause in enumerate(causes)]
        ratios = [self._ratio(one) for one in ones]
        kinds = sorted({cause for cause in causes if cause and cause != "diverged"})
        found = {
            "failed": (failed, begun),
            **{f"failed: {kind}": ([cause == kind for cause in causes], begun) for kind in kinds},
            "diverged": (diverged, begun),
            "halved early": ([one.status in ("halved", "pruned") for one in ones], begun),
            "slower than predicted": ([r is not None and r >= SLOWER for r in ratios], [r is not None for r in ratios]),
        }
        if any(marked == failed for name, (marked, _) in found.items() if name.startswith(("failed: ", "diverged"))):
            del found["failed"]  # the same question twice
        return found

    def _one(self, task: Task) -> Progress:
        return self._progress.get(task.identity) or Progress(task=task.identity)

    def _has_lost_count(self, number: int) -> bool:
        values = [each[number] for each in self.metrics.values()]
        return any(value is not None and not math.isfinite(value) for value in values)

    def _ratio(self, one: Progress) -> float | None:
        return compare([one], as_of_seconds=math.inf).median_ratio if one.spans else None


def read_sweep(store: Store, *, workload: str | None = None) -> SweepTable:
    """The tasks of a store that are still in their files, of one workload or of all."""
    events = [event for _, event in store.events()]
    progress = fold(events)
    described = [
        (name, task)
        for name, task in store.described(workload)
        if task.identity not in progress or not progress[task.identity].vanished
    ]
    found = SweepTable([name for name, _ in described], [task for _, task in described], events)
    found.add_metrics(store)
    return found


def cause_of(one: Progress, last: TaskFailed | None) -> str:
    """Why a task failed, in a few words: errors by their type, and by what was under way; empty where it did not.

    >>> event = TaskFailed(task="a", at_seconds=0.0, reason="the loss must be a finite number; it was nan at step 3.")
    >>> cause_of(Progress(task="a", status="failed"), event)
    'diverged'
    >>> event = TaskFailed(task="a", at_seconds=0.0, reason="task 'a' raised KeyError: 'x'", phase="building")
    >>> cause_of(Progress(task="a", status="failed"), event)
    'KeyError in building'
    """
    if one.status != "failed":
        return ""
    if _NOT_FINITE in (last.reason if last else one.reason):
        return "diverged"
    if last is None or not (last.cause or last.phase):
        return "lost"
    raised = re.search(r" raised (\w+)", last.reason)
    error = f"{raised[1] if raised else 'an error'} in {last.phase or 'its program'}"
    return {"memory": "out of memory", "refused": "refused"}.get(last.cause, error)


def _parameters(tasks: Sequence[Task]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for task in tasks for name in task.parameters)
    redact = Redactor(task.parameters for task in tasks)

    def shown(value: Any) -> Any:
        return redact(value) if isinstance(value, str) else thaw(value)

    return {
        f"parameter/{name}" if name in RUN_COLUMNS else name: [shown(task.parameters.get(name)) for task in tasks]
        for name in names
    }


def _runs(tasks: Sequence[Task], events: Iterable[Event], progress: Mapping[TaskId, Progress]) -> dict[str, list[Any]]:
    """Of each task its program, and how its last attempt ran; None where it had none."""
    starts = {event.task: event for event in events if isinstance(event, AttemptStarted)}
    last = [starts.get(task.identity) for task in tasks]
    return {
        "program": [task.program.reference for task in tasks],
        "technique": [each and each.option and each.option.technique for each in last],
        "kind": [each and each.option and each.option.kind for each in last],
        "node": [each.devices[0].rpartition(":")[0] if each and each.devices else None for each in last],
        "attempts": [progress[task.identity].attempt if task.identity in progress else 0 for task in tasks],
        "neighbours": [len(each.option.families) - 1 if each and each.option else None for each in last],
    }
