"""What the controller knows and what is on disk, kept the same: written first, believed second."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.planning import Trial, trial_of
from dovetail.store import Point, Store
from dovetail.vocabulary import (
    EVENTS,
    Event,
    FrozenDict,
    Option,
    Plan,
    Profile,
    Rejection,
    StageProfile,
    StoreRefused,
    Task,
    TaskId,
)
from dovetail.vocabulary.approximations import Approximate, join_knobs
from dovetail.vocabulary.event_base import E
from dovetail.vocabulary.events import (
    ApproximationJudged,
    BatchDivided,
    OptionRejected,
    PlanMade,
    RungReached,
    StepsDone,
    TaskCancelled,
    TaskFinished,
    TaskPruned,
    TrialMeasured,
)
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.request_events import TaskRestarted, TaskRetried

T = TypeVar("T")

# What people wrote, or what was taken from their programs' words, by the class of an event.
_WORDS = {"reason", "log", "message", "because", "metric", "before", "after"}
_TEXTS = {cls: tuple(each.name for each in dataclasses.fields(cls) if each.name in _WORDS) for cls in EVENTS.values()}


class Ledger:
    """Everything in a store, in memory, and the one way to add to both.

    >>> from dovetail.vocabulary.events import TaskFinished
    >>> ledger = Ledger(Store(None, write=True), now=lambda: 0.0)
    >>> ledger.record([ledger.event(TaskFinished, "a", step=5)])
    >>> ledger["a"].status
    'finished'
    """

    def __init__(self, store: Store, *, now: Callable[[], float]) -> None:
        self.store = store
        self._now = now
        self._progress = fold(event for _, event in store.events())
        self._profiles = {trial_of(profile): profile for profile in store.profiles()}
        self.feeds = _feeds(self._profiles.values())
        """What was last measured of the stages of each family's feed."""
        self._rejections: dict[Trial, Rejection] = {}
        self._unfit: set[Trial] = set()
        self._lost: set[Trial] = set()
        self._divided: dict[Trial, dict[str, Any]] = {}
        self._kept: dict[tuple[str, Approximate], ApproximationJudged] = {}
        self._reject(event for _, event in store.events())
        self.listeners: list[Callable[[list[Event]], None]] = []
        """Called with events once they count."""
        self._touched: dict[TaskId, None] = {}
        self.redact = Redactor(variables=os.environ)
        self._judged: set[str] = set()
        self.measured = len(self._profiles)
        self.on_refusal: Callable[[StoreRefused], None] = _give_up
        """Called where the store takes nothing for now: raises, or returns when it is to be tried again."""

    def __getitem__(self, task: TaskId) -> Progress:
        """Where a task stands; one never heard of is pending."""
        found = self._progress.get(task)
        if found is None:
            found = self._progress[task] = Progress(task=task)
        return found

    def hide(self, tasks: Iterable[Task], *, judged_by: str | None = None) -> None:
        """What looks like a secret among the parameters of these stands in no event from now on; but the metrics that
        they are judged by keep their names."""
        tasks = list(tasks)
        self._judged |= {metric for metric in (judged_by, *(task.stop.metric for task in tasks)) if metric}
        self.redact.learn(task.parameters for task in tasks)

    def has_ended(self, task: TaskId) -> bool:
        """Whether nothing more is to be done for a task."""
        return self[task].status in ENDED

    def touched(self) -> dict[TaskId, None]:
        """The tasks of which something was recorded since this was last asked."""
        found, self._touched = self._touched, {}
        return found

    def rests(self, task: TaskId) -> bool:
        """Whether nothing is to be done for a task now: it has ended, or is to be ended or paused."""
        one = self[task]
        return one.status in ENDED or one.paused or one.cancelling

    def retries(self) -> list[tuple[TaskId, float]]:
        """The tasks that were lost and when each may be tried again."""
        return [(task, one.retry_at_seconds) for task, one in self._progress.items() if one.retry_at_seconds]

    def gone(self) -> set[TaskId]:
        """The tasks that are no longer in their workload files."""
        return {task for task, one in self._progress.items() if one.vanished}

    def profiles(self) -> list[Profile]:
        """Everything measured, but for options that were found not to fit after all."""
        return [profile for key, profile in self._profiles.items() if key not in self._unfit]

    def computing_seconds(self, family: str, option: Option) -> float:
        """What a step by an option takes where it need not wait for batches, as measured of a family; 0 where nobody
        measured that."""
        wanted = family, option.kind, option.technique, option.count, len(option.families)
        for profile in self._profiles.values():
            how = profile.family, profile.kind, profile.technique, profile.count
            if (*how, int(profile.knobs.get("members", 1))) == wanted:
                return profile.computing_seconds
        return 0.0

    def divided(self) -> list[tuple[Profile, dict[str, Any]]]:
        """What ran out of memory as it was measured, and the knobs of the rung on which it is offered now."""
        known = self._profiles
        return [(known[key], knobs) for key, knobs in self._divided.items() if key in known]

    def rejections(self) -> dict[Trial, Rejection]:
        """The trials that found an option not to fit."""
        return dict(self._rejections)

    def keeps(self, family: str, approximate: Approximate, keep: Mapping[str, float]) -> bool:
        """Whether a family was shown to keep its metrics to these tolerances with an approximation."""
        found = self._kept.get((family, approximate))
        return found is not None and found.keeps and shows(found, keep)

    def deadly(self) -> set[tuple[str, str]]:
        """The families, and on which kind of device, of which a trial ended its worker each time and nothing else was
        ever measured."""
        # Of a larger or another way to train it a loss may well be that way's own fault.
        first = [trial for trial in self._lost if (trial.technique, trial.count) == ("resident", 1)]
        known = {(trial.family, trial.kind) for trial in self._profiles}
        return {(trial.family, trial.kind) for trial in first} - known

    def event(self, kind: type[E], task: TaskId, *, attempt: int | None = None, **fields: Any) -> E:
        """An event of this moment, by default of the task's newest attempt."""
        number = self[task].attempt if attempt is None else attempt
        return kind(task=task, attempt=number, at_seconds=self._now(), **fields)

    def ending(self, task: TaskId, *, step: int | None) -> TaskCancelled | TaskPruned:
        """The event that ends a task of which that was asked, now that no attempt at it is under way."""
        if reason := self[task].prune_reason:
            return self.event(TaskPruned, task, step=step, reason=reason)
        return self.event(TaskCancelled, task, step=step)

    def record(self, events: Iterable[Event], *, tasks: Iterable[tuple[str, Task]] = ()) -> None:
        """Put events, the points they carry and the profiles they bring on disk, then let them count. New tasks,
        as (workload, task), go with the events that speak of them."""
        events, tasks = list(events), list(tasks)
        if not (events or tasks):
            return
        events = [self._presentable(event) for event in events]
        # Progress comes several times a second and its points say it all.
        kept = [event for event in events if event.__class__ is not StepsDone]
        points = [
            Point(task=event.task, name=name, step=step, value=value, at_seconds=event.at_seconds)
            for event in (events if len(kept) < len(events) else ())
            if isinstance(event, StepsDone)
            for name, step, value in event.points
        ]
        profiles = [event.profile for event in kept if event.__class__ is TrialMeasured]
        anew = [event.task for event in kept if event.__class__ is TaskRestarted]
        self._insist(
            lambda: self.store.add(events=kept, points=points, profiles=profiles, tasks=tasks, without_points_of=anew)
        )
        fold(events, self._progress)
        self._touched |= dict.fromkeys([event.task for event in events])
        self._profiles |= {trial_of(profile): profile for profile in profiles}
        self.feeds |= _feeds(profiles)
        self.measured += len(profiles)
        self.measured += self._reject(kept)  # what does not fit makes another set of options, too
        for hear in self.listeners:
            hear(events)

    def _insist(self, write: Callable[[], T]) -> T:
        """Write to the store, again and again where that is refused and somebody waits for better times."""
        while True:
            try:
                return write()
            except StoreRefused as error:
                self.on_refusal(error)

    def _presentable(self, event: Event) -> Event:
        """The event as it may be kept and sent around: secrets masked in all its words, and these bounded."""
        changes: dict[str, Any] = {}
        for field in _TEXTS[event.__class__]:
            text = getattr(event, field)
            if text and (kept := self.redact.excerpt(text)) != text:
                changes[field] = kept
        name = self._show_metric
        match event:
            case StepsDone(points=points) if any(name(each[0]) != each[0] for each in points):
                changes["points"] = tuple((name(metric), step, value) for metric, step, value in points)
            case TaskFinished(metrics=metrics) | RungReached(metrics=metrics) if any(name(n) != n for n in metrics):
                changes["metrics"] = FrozenDict({name(metric): value for metric, value in metrics.items()})
            case OptionRejected(rejection=found) if (kept := self.redact.excerpt(found.reason)) != found.reason:
                changes["rejection"] = dataclasses.replace(found, reason=kept)
            case TrialMeasured(profile=profile) if any(name(metric) != metric for metric in profile.metrics):
                shown = dataclasses.replace(profile, metrics=tuple(map(name, profile.metrics)))
                changes["profile"] = shown
        return dataclasses.replace(event, **changes) if changes else event

    def _show_metric(self, name: str) -> str:
        return name if name in self._judged else self.redact.name(name)

    def _reject(self, events: Iterable[Event]) -> int:
        """Take these options for unfit, or for fit in another way; how many were found unfit."""
        count = 0
        for event in events:
            if isinstance(event, OptionRejected):
                trial, count = trial_of(event.rejection), count + 1
                self._rejections[trial] = event.rejection
                self._unfit.add(trial)
                if event.lost:
                    self._lost.add(trial)
                self._divided.pop(trial, None)  # what was offered of it last; more parts come with their own event
            elif isinstance(event, TaskRetried) and self._lost:
                self._forget_lost(event.task)
            elif isinstance(event, BatchDivided):
                knobs: dict[str, Any] = {"microbatches": event.microbatches} if event.microbatches > 1 else {}
                knobs |= {"recompute": True} if event.recompute else {}
                trial = Trial(
                    technique=event.technique,
                    family=event.family,
                    kind=event.device_kind,
                    count=event.count,
                    knobs=join_knobs(event.approximate, {}),
                )
                self._divided[trial] = knobs
            elif isinstance(event, ApproximationJudged):
                self._kept[event.family, event.approximate] = event
        return count

    def _forget_lost(self, task: TaskId) -> None:
        """A task that was set aside is tried again, and so are the options that were lost with its family."""
        known = self[task].fingerprint
        for trial in [trial for trial in self._lost if known is not None and trial.family == known.family]:
            self._lost.discard(trial)
            self._unfit.discard(trial)
            self._rejections.pop(trial, None)

    def record_plan(self, plan: Plan, *, workload: str, because: str) -> None:
        """Keep a plan and why it was made."""
        assert plan.schedule is not None
        now = self._now()
        made = PlanMade(
            at_seconds=now,
            plan=self._insist(lambda: self.store.add_plan(self.redact.plan(plan), workload=workload, at_seconds=now)),
            workload=workload,
            makespan_seconds=plan.schedule.makespan_seconds,
            bound_seconds=plan.bound_seconds,
            because=because,
        )
        self.record([made])


def shows(found: ApproximationJudged, keep: Mapping[str, float]) -> bool:
    """Whether what was judged answers for these tolerances: to have kept to less is to keep to more.

    >>> found = ApproximationJudged(at_seconds=0.0, family="f", approximate="fp8", keep={"loss": 0.1}, keeps=True,
    ...                             why="", pairs=4)
    >>> shows(found, {"loss": 0.2}), shows(found, {"loss": 0.01}), shows(found, {"accuracy": 0.1})
    (True, False, False)
    """
    if found.keeps:
        return all(found.keep.get(metric, math.inf) <= tolerance for metric, tolerance in keep.items())
    return dict(found.keep) == dict(keep)


def _give_up(error: StoreRefused) -> None:
    raise error


def _feeds(profiles: Iterable[Profile]) -> dict[str, tuple[StageProfile, ...]]:
    return {profile.family: profile.feed for profile in profiles if profile.feed}
