"""What the controller knows and what is on disk, kept the same: written first, believed second."""

from collections.abc import Callable, Iterable
from typing import Any

from dovetail.metrics.progress import ENDED, Progress, fold
from dovetail.plan import Trial
from dovetail.store import Point, Store
from dovetail.vocabulary import Event, Plan, Profile, Rejection, Task, from_json, to_json

RUN_BEGAN = "the run began"
"""Why the first plan of a run was made."""


class Ledger:
    """Everything in a store, in memory, and the one way to add to both.

    >>> ledger = Ledger(Store(None, write=True), now=lambda: 0.0)
    >>> ledger.record([ledger.event("finished", "a", step=5)])
    >>> ledger["a"].status
    'finished'
    """

    def __init__(self, store: Store, *, now: Callable[[], float]) -> None:
        self.store = store
        self._now = now
        self._progress = fold(event for _, event in store.events())
        self._profiles = {_key(profile): profile for profile in store.profiles()}
        self._rejections: dict[Trial, Rejection] = {}
        self._reject(event for _, event in store.events())

    def __getitem__(self, task: str) -> Progress:
        """Where a task stands; one never heard of is pending."""
        found = self._progress.get(task)
        if found is None:
            found = self._progress[task] = Progress(task=task)
        return found

    def has_ended(self, task: str) -> bool:
        """Whether nothing more is to be done for a task."""
        return self[task].status in ENDED

    def gone(self) -> set[str]:
        """The tasks that are no longer in their workload files."""
        return {task for task, one in self._progress.items() if one.vanished}

    def profiles(self) -> list[Profile]:
        """Everything measured."""
        return list(self._profiles.values())

    def rejections(self) -> dict[Trial, Rejection]:
        """The trials that found an option not to fit."""
        return dict(self._rejections)

    def event(self, kind: str, task: str, *, attempt: int | None = None, **data: Any) -> Event:
        """An event of this moment, by default of the task's newest attempt."""
        number = self[task].attempt if attempt is None else attempt
        return Event(kind=kind, task=task, attempt=number, at_seconds=self._now(), data=data)

    def record(self, events: Iterable[Event], *, tasks: Iterable[tuple[str, Task]] = ()) -> None:
        """Put events, the points they carry and the profiles they bring on disk, then let them count. New tasks,
        as (workload, task), go with the events that speak of them."""
        events, tasks = list(events), list(tasks)
        if not (events or tasks):
            return
        points = [
            Point(task=event.task, name=name, step=step, value=value, at_seconds=event.at_seconds)
            for event in events
            if event.kind == "progress"
            for name, step, value in event.data["points"]
        ]
        profiles = [from_json(Profile, to_json(event.data)) for event in events if event.kind == "measured"]
        # Progress comes several times a second and its points say it all.
        kept = [event for event in events if event.kind != "progress"]
        self.store.add(events=kept, points=points, profiles=profiles, tasks=tasks)
        fold(events, self._progress)
        self._profiles |= {_key(profile): profile for profile in profiles}
        self._reject(events)

    def _reject(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind == "rejected":
                found = from_json(Rejection, to_json(event.data))
                (family,) = found.families
                trial = Trial(family=family, technique=found.technique, kind=found.kind, count=found.count)
                self._rejections[trial] = found

    def record_plan(self, plan: Plan, *, workload: str, because: str) -> None:
        """Keep a plan and why it was made."""
        assert plan.schedule is not None
        now = self._now()
        data = {
            "plan": self.store.add_plan(plan, workload=workload, at_seconds=now),
            "workload": workload,
            "makespan_seconds": plan.schedule.makespan_seconds,
            "bound_seconds": plan.bound_seconds,
            "because": because,
        }
        self.record([Event(kind="planned", at_seconds=now, data=data)])


def _key(profile: Profile) -> tuple[str, str, str, int]:
    return profile.family, profile.technique, profile.kind, profile.count
