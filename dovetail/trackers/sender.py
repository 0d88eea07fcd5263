"""Sends a tracker what a store has and it has not: everything once, in order, whatever was killed in between."""

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from dovetail.store import checkpoints_of
from dovetail.trackers.base import RunFacts, Tracker
from dovetail.trackers.cursor import SentRun, TrackerCursor
from dovetail.trackers.store_runs import StoreRuns
from dovetail.vocabulary import DovetailError, TaskId, dumps

# So many points of a run at a time: MLflow takes no more at once.
MOST_POINTS = 1000
# After so many runs that could not be sent, one after another, the tracker counts as out of reach for now.
MOST_FAILURES = 3


def count_unsent(runs: StoreRuns, sent: Mapping[str, SentRun]) -> int:
    """How many points a store has beyond what was sent, by the runs' keys."""
    runs.look()
    known = {task: sent.get(runs.task_run(task).key, SentRun()) for task in runs.tasks}
    return sum(runs.count_points(task, one.steps) for task, one in known.items())


class TrackerSender:
    """Between a store and a tracker. `send_new` may be called again and again; what fails is tried at the next call.
    With `models`, the model of each task that has finished goes along."""

    def __init__(
        self, runs: StoreRuns, tracker: Tracker, cursor: TrackerCursor, *, home: Path, models: bool = False
    ) -> None:
        self._runs, self._tracker, self._cursor, self._home = runs, tracker, cursor, home
        self._models = models and tracker.takes_models
        self._left: dict[TaskId, None] = {}
        self._opened: set[str] = set()
        self._modelless: dict[TaskId, str] = {}
        self.sent_points = 0
        """How many points were sent so far."""

    def send_new(self, *, progress: Callable[[int], object] = lambda sent: None) -> list[Exception]:
        """Send what there is; gives what went wrong on the way. `progress` is told how many points were sent so far."""
        self._left |= dict.fromkeys(self._runs.look())
        errors: list[Exception] = []
        if self._left:  # nothing of a workload changes but by its tasks
            for workload in self._runs.workloads():
                self._try(errors, self._runs.workload_run(workload), None, progress)
        for task in list(self._left):
            if len(errors) >= MOST_FAILURES:
                break
            if self._try(errors, self._runs.task_run(task), task, progress):
                del self._left[task]
        return errors

    @property
    def modelless(self) -> list[str]:
        """Why models that should have been sent were not."""
        return list(self._modelless.values())

    def _try(
        self, errors: list[Exception], run: RunFacts, task: TaskId | None, progress: Callable[[int], object]
    ) -> bool:
        try:
            self._send(run, task, progress)
            return True
        except Exception as error:  # a tracker is somebody else's, and may raise anything
            errors.append(error)
            return False

    def _send(self, run: RunFacts, task: TaskId | None, progress: Callable[[int], object]) -> None:
        """Send all that is new of a run."""
        sent = self._cursor.runs.get(run.key, SentRun())
        told = hashlib.sha256(dumps(run).encode()).hexdigest()
        has_points = task is not None and self._runs.count_points(task, sent.steps) > 0
        if not has_points and told == sent.told and not self._owes_model(run, sent, task):
            return
        try:
            sent = self._open(run, sent, self._runs.metrics(task) if task is not None else [])
            if task is not None:
                sent = self._send_points(run, sent, task, progress)
                if self._owes_model(run, sent, task):
                    sent = self._send_model(run, sent, task)
            if told != sent.told:  # that a run has ended is told last
                state = self._tracker.send(run, sent.state, (), facts=True)
                self._cursor.note(run.key, dataclasses.replace(sent, state=state, told=told))
        except Exception:
            self._forget(run)
            raise
        if run.has_ended:
            self._forget(run)

    def _forget(self, run: RunFacts) -> None:
        self._opened.discard(run.key)
        self._tracker.forget(run)

    def _open(self, run: RunFacts, sent: SentRun, metrics: list[str]) -> SentRun:
        """Open a run the first time in this process, and again after a failure: what it holds counts, not what was
        noted, since there may have been no time for that, or for the tracker to keep it."""
        if run.key in self._opened:
            return sent
        opened = self._tracker.open(run, sent.state, metrics=metrics)
        found = dataclasses.replace(sent, state=opened.state, steps={**sent.steps, **opened.held})
        self._cursor.note(run.key, found)
        self._opened.add(run.key)
        return found

    def _send_points(self, run: RunFacts, sent: SentRun, task: TaskId, progress: Callable[[int], object]) -> SentRun:
        more = True
        while more:
            points, more = self._runs.new_points(task, sent.steps, most=MOST_POINTS)
            if points:
                state = self._tracker.send(run, sent.state, points, facts=False)
                steps = {**sent.steps, **{point.name: point.step for point in points}}
                sent = dataclasses.replace(sent, state=state, steps=steps)
                self._cursor.note(run.key, sent)
                self.sent_points += len(points)
                progress(self.sent_points)
        return sent

    def _owes_model(self, run: RunFacts, sent: SentRun, task: TaskId | None) -> bool:
        if not self._models or task is None or task in self._modelless or run.status != "finished":
            return False
        return sent.model != self._model_of(task)

    def _model_of(self, task: TaskId) -> str:
        """Which model a task has: that of the step that it finished at."""
        return str(self._runs.progress[task].step)

    def _send_model(self, run: RunFacts, sent: SentRun, task: TaskId) -> SentRun:
        from dovetail.train.export import export

        with tempfile.TemporaryDirectory(prefix="dovetail-model-") as folder:
            path = Path(folder) / "model"
            try:
                export(self._runs.tasks[task], checkpoints_of(self._home) / task, path, home=self._home)
            except DovetailError as error:  # it would not come about at the next try either
                self._modelless[task] = f"the model of {run.name!r} was not sent: {error}"
                return sent
            self._tracker.send_model(run, sent.state, path)
        sent = dataclasses.replace(sent, model=self._model_of(task))
        self._cursor.note(run.key, sent)
        return sent
