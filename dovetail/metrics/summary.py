"""One row for each task: the same table in the terminal and in the report."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dovetail.metrics.curves import Curve, best, goal_of
from dovetail.metrics.progress import ENDED, STATUSES, Progress
from dovetail.metrics.spans import trained_seconds
from dovetail.vocabulary import FrozenDict, Task, TaskId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricValues:
    """A metric's last value, which may be NaN, and its best finite one with its step."""

    last: float
    best: float | None
    best_step: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where one task stands. `last_step` is None as long as nobody knows how long an epoch is. `former_attempts` are
    those before it was trained anew; neither `attempts` nor `trained_seconds` has them.

    >>> Row(task="9f2c", name="small", status="running", step=50, last_step=200).done_share
    0.25
    """

    task: TaskId
    name: str
    status: str
    step: int = 0
    last_step: int | None = None
    metrics: Mapping[str, MetricValues] = FrozenDict()
    trained_seconds: float = 0.0
    attempts: int = 0
    former_attempts: int = 0
    reason: str = ""
    vanished: bool = False
    parameters: Mapping[str, Any] = FrozenDict()
    program: str = ""

    @property
    def done_share(self) -> float | None:
        """The share of its steps that is done; a target can end a task before."""
        return min(self.step / self.last_step, 1.0) if self.last_step else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Rows in the order of the tasks. Tasks that are no longer in their workload are rows but do not count.

    >>> Summary(rows=(Row(task="9f2c", name="small", status="failed"),)).counts["failed"]
    1
    """

    rows: tuple[Row, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks have each status, in the order of `STATUSES`, none left out."""
        found = Counter(row.status for row in self.rows if not row.vanished)
        return {status: found[status] for status in STATUSES}

    @property
    def total(self) -> int:
        """How many tasks there are, without those that were dropped."""
        return sum(self.counts.values())

    @property
    def ended(self) -> bool:
        """Whether no task that counts has anything left to do."""
        return all(row.status in ENDED for row in self.rows if not row.vanished)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names: losses first, then those most tasks have."""
        found = Counter(name for row in self.rows for name in row.metrics)
        return tuple(sorted(found, key=lambda name: ("loss" not in name.lower(), -found[name], name)))


def row(task: Task, *, progress: Progress | None, curves: Mapping[str, Curve], as_of_seconds: float) -> Row:
    """One task's row; for those who do not want all curves in memory at once.

    >>> from dovetail.vocabulary import Program, Stop
    >>> task = Task(name="small", program=Program(reference="a.py:f"), stop=Stop(epochs=9))
    >>> row(task, progress=None, curves={}, as_of_seconds=0.0).last_step is None
    True
    """
    one = progress or Progress(task=task.identity)
    return Row(
        task=one.task,
        name=task.name,
        status=one.status,
        step=one.step,
        last_step=_last_step(task, one),
        metrics=FrozenDict({name: _values(task, curve) for name, curve in curves.items() if curve.values}),
        trained_seconds=trained_seconds(one.spans, until_seconds=as_of_seconds),
        attempts=one.attempt - one.anew_since_attempt,
        former_attempts=one.anew_since_attempt,
        reason=one.reason,
        vanished=one.vanished,
        parameters=task.parameters,
        program=task.program.function,
    )


def _values(task: Task, curve: Curve) -> MetricValues:
    found = best(curve, goal=goal_of(curve.name, task.stop))
    step, value = found if found is not None else (None, None)
    return MetricValues(last=curve.values[-1], best=value, best_step=step)


def _last_step(task: Task, one: Progress) -> int | None:
    if one.last_step:
        return one.last_step
    steps_per_epoch = one.fingerprint.steps_per_epoch if one.fingerprint else None
    if task.stop.steps is None and not steps_per_epoch:
        return None
    return task.stop.last_step(steps_per_epoch)
