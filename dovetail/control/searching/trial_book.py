"""Which trial of a study is which task: a trial is described as a task, and told what becomes of it, once.

A controller may be killed at any moment. What is asked of the study, submitted and told is therefore found out from the
study and the store, not remembered: a trial under way whose task is on no record is to be submitted, one whose task has
ended is to be told, and one whose parameters are not all there is asked for the others.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dovetail.control.daemon.submissions import Submission
from dovetail.control.searching.suggesting import suggest_parameters
from dovetail.control.state import State
from dovetail.control.task_source import Prune
from dovetail.describe import Search
from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import InvalidWorkload, Stop, Task, TaskId
from dovetail.vocabulary.events import StepsDone, TrialMeasured

if TYPE_CHECKING:
    import optuna

# What a trial of the study says of its task: its name, and why it has no value where it has none.
TASK, REASON = "task", "reason"


class TrialBook:
    """The trials of a study and the tasks of a state, kept together. Called from the loop's thread."""

    def __init__(self, state: State, *, search: Search, study: "optuna.Study", anew: bool = False) -> None:
        self.study, self.search = study, search
        self.open: dict[TaskId, optuna.Trial] = {}
        """The trials under way, by their tasks."""
        self._state, self._ledger, self._store, self._anew = state, state.ledger, state.ledger.store, anew
        self._reported: dict[TaskId, int] = {}
        self._names: dict[TaskId, str] = {}
        self._best: tuple[float, str] | None = None
        self.told = self.failed = 0
        for trial in study.get_trials(deepcopy=False):
            if trial.state.is_finished() and TASK in trial.user_attrs:
                self._count(trial.state, trial.value, trial.user_attrs[TASK])
        state.ledger.hide((), judged_by=search.metric)  # its name is no secret, whatever it looks like

    def take_up(self, trial: "optuna.Trial", *, stop: Stop | None = None, begins_with: str = "") -> Task:
        """The task of a trial, which is under way from here on."""
        parameters = suggest_parameters(self.search, trial)
        task = self.search.task(trial.number, parameters, begins_with=begins_with, stop=stop)
        if TASK not in trial.user_attrs:
            trial.set_user_attr(TASK, task.name)
        self.open[task.identity], self._names[task.identity] = trial, task.name
        return task

    def submission(self, task: Task, *, of: str = "", step: int = 0) -> Iterator[Submission]:
        """What has a task trained, unless that is on record, or done."""
        if task.identity in self._state.tasks:
            return
        if not self._anew and self._ledger[task.identity].status == "finished":
            return
        workload = self._state.workload.name
        yield Submission(workload=workload, tasks=(task,), of=of, step=step, anew=self._anew)

    def catch_up(self, task: Task, reported: Iterable[int]) -> None:
        """Report what the store knows of a task and the study, whose trial has these steps `reported`, does not."""
        self._reported[task.identity] = max(reported, default=-1)
        for point in self._store.points(task.identity, name=self.search.metric):
            self._report(task.identity, point.step, point.value)

    def hear(self, event: StepsDone | TrialMeasured) -> Iterator[Prune]:
        """Report what a task has evaluated to, and ask the pruner."""
        if isinstance(event, TrialMeasured):
            self._check_metric(event.profile.metrics)
            return
        found = {step: value for name, step, value in event.points if name == self.search.metric}
        if not found and self._reported.get(event.task, -1) < 0:
            self._check_metric([name for name, _, _ in event.points if not name.startswith("train/")])
        new = [self._report(event.task, step, value) for step, value in sorted(found.items())]
        one, trial = self._ledger[event.task], self.open[event.task]
        if not any(new) or one.status != "running" or max(found) >= one.spans[-1].until_step:
            return
        if trial.should_prune():
            step, pruner = max(found), type(self.study.pruner).__name__
            reason = f"{pruner} pruned it: {self.search.metric} {found[step]:.4g} at step {step}"
            yield Prune(task=event.task, reason=reason)

    def tell(self) -> list[str]:
        """Tell the study of all that has ended; the names of the tasks that have met the search's target."""
        ended = [task for task in self.open if self._ledger[task].status in ENDED]
        return [self._names[task] for task in ended if self._conclude(task, self._ledger[task])]

    def active(self) -> int:
        """How many tasks are to run, or do."""
        return sum(self._ledger[task].status in ("pending", "running") for task in self.open)

    def summary(self, count: int) -> str:
        """How far the search is."""
        words = [f"{self.told} of {count} trials"]
        words += [f"{self.failed} without a value"] if self.failed else []
        if self._best is not None:
            value, name = self._best
            words.append(f"best {self.search.metric} {value:.4g}: {self._ledger.redact.name(name)}")
        return ", ".join(words)

    def _report(self, task: TaskId, step: int, value: float) -> bool:
        """Report a value, if it is new; steps that are repeated after a loss are not."""
        if step <= self._reported.get(task, -1):
            return False
        self._reported[task] = step
        self.open[task].report(value, step)
        return True

    def _conclude(self, task: TaskId, one: Progress) -> bool:
        """Tell the study what came of a trial; whether it has met the target."""
        from optuna.trial import TrialState

        trial = self.open[task]
        value = self._value(task, one) if one.status == "finished" else math.nan
        state = TrialState.PRUNED if one.status in ("pruned", "halved") else TrialState.COMPLETE
        if state == TrialState.COMPLETE and math.isnan(value):
            state = TrialState.FAIL
            trial.set_user_attr(REASON, one.reason or f"{one.status}, {self.search.metric} {value}")
        self.study.tell(trial.number, value if state == TrialState.COMPLETE else None, state)
        self._count(state, value, self._names[task])
        del self.open[task]
        return self.search.stop.reached({self.search.metric: value})

    def _count(self, state: "optuna.trial.TrialState", value: float | None, name: str) -> None:
        self.told += 1
        self.failed += state.name == "FAIL"
        if state.name != "COMPLETE" or value is None:
            return
        sign = 1.0 if self.search.goal == "max" else -1.0
        if self._best is None or sign * value > sign * self._best[0]:
            self._best = value, name

    def _value(self, task: TaskId, one: Progress) -> float:
        """What a finished task came to: at its best checkpoint where one is kept, else at its end."""
        until = math.inf if one.best_step is None else one.best_step
        points = [point.value for point in self._store.points(task, name=self.search.metric) if point.step <= until]
        if points:
            return points[-1]
        found: Any = one.metrics.get(self.search.metric)
        if found is None:
            self._check_metric(sorted(one.metrics) or ["nothing"])
            return math.nan
        return float(found)

    def _check_metric(self, reported: Iterable[str]) -> None:
        reported, metric = sorted(set(reported)), self.search.metric
        if reported and metric not in reported and not metric.startswith("train/"):
            raise InvalidWorkload(
                f"evaluation must report the metric {metric!r} that the search is for; it reports {reported}. Add it "
                f"to what evaluate gives, or search for another. What ran is saved: run the same again to go on."
            )
