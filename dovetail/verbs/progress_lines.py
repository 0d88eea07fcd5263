"""Progress in words: what a live table says of each task and of the whole; and, where there is no terminal, lines at a
pace that a log file bears, whatever the number of tasks."""

import time
from collections.abc import Callable

from dovetail.control import Controller
from dovetail.metrics.progress import ENDED, Progress
from dovetail.vocabulary import TaskId
from dovetail.vocabulary.units import show_seconds

# How far apart the lines on the whole are, in the first minutes and later.
PACE_SECONDS, SLOW_PACE_SECONDS, SLOW_AFTER_SECONDS = 10.0, 60.0, 600.0
# Of so many tasks each change is told between two lines on the whole; the others are counted in the next.
CHANGES = 24
# What people look for first comes first when there are more tasks than rows.
_ORDER = ("running", "failed", "resting", "pending", "paused", "finished", "halved", "pruned", "cancelled")
# Of so many running tasks a line says how far they are.
RUNNING = 3


class ProgressLines:
    """Writes a line where a task's status changes and, every few seconds, one on the whole: how many tasks are done,
    how far the running ones are, how long it will take. Failures are always told, and so is the end."""

    def __init__(self, write: Callable[[str], None], *, now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now = write, now
        self._said: dict[str, str] = {}
        self._began_at = self._wrote_at = now()
        self._changes = self._untold = 0
        self._last = ""

    def show(self, controller: Controller) -> None:
        """Write what is due."""
        for identity, one in controller.progress.items():
            if one.status != self._said.get(identity, "pending"):
                self._said[identity] = one.status
                self._tell(controller.name_of(identity), one)
        if controller.phase in ("done", "stopped") or self._now() - self._wrote_at >= self._pace():
            line = summarize(controller, untold=self._untold)
            if line != self._last:  # the end may be looked at more than once
                self._write(line)
            self._last, self._wrote_at, self._changes, self._untold = line, self._now(), 0, 0

    def _tell(self, name: str, one: Progress) -> None:
        if one.status != "failed" and self._changes >= CHANGES:
            self._untold += 1
            return
        self._changes += 1
        self._write(f"{name} {one.status} at step {one.step}{f': {one.reason}' if one.reason else ''}")

    def _pace(self) -> float:
        return SLOW_PACE_SECONDS if self._now() - self._began_at > SLOW_AFTER_SECONDS else PACE_SECONDS


def order_tasks(controller: Controller) -> list[tuple[TaskId, Progress]]:
    """The tasks, those that people look for first."""
    return sorted(controller.progress.items(), key=lambda pair: _ORDER.index(pair[1].status))


def describe_progress(one: Progress) -> tuple[str, str, str, str]:
    """Of a task: how far it is, its steps a second, the time that is left, and its metrics or why it stands."""
    until = one.spans[-1].until_step if one.spans else 0
    running = one.status == "running"
    left = (until - one.step) / one.steps_per_second if running and one.steps_per_second > 0 else None
    values = [f"{name} {value:.4g}" for name, value in one.metrics.items() if name != "train/loss"][:3]
    return (
        f"{one.step}/{until}" if until else str(one.step),
        f"{one.steps_per_second:.0f}" if running else "",
        show_seconds(left) if left is not None else "",
        (one.reason or "  ".join(values))[:60],
    )


def describe_whole(controller: Controller) -> str:
    """What the controller does, how many tasks are how far, and the time that is left."""
    counts: dict[str, int] = {}
    for one in controller.progress.values():
        counts[one.status] = counts.get(one.status, 0) + 1
    words = [controller.phase, *(f"{count} {status}" for status, count in counts.items())]
    words += [controller.source.summary()] if controller.source is not None else []
    return " · ".join([*words, *time_left(controller)])


def summarize(controller: Controller, *, untold: int = 0) -> str:
    """One line on the whole: tasks that are done, run and are left, how far some that run are, the time left."""
    standing = controller.progress
    done = sum(one.status in ENDED for one in standing.values())
    running = [(task, one) for task, one in standing.items() if one.status == "running"]
    words = [
        f"{done} of {len(standing)} tasks done, {len(running)} running, {len(standing) - done - len(running)} left"
    ]
    if failed := sum(one.status == "failed" for one in standing.values()):
        words[0] += f", {failed} failed"
    if untold:
        words.append(f"{untold} more changes")
    words += [controller.source.summary()] if controller.source is not None else []
    words += [_tell_running(controller.name_of(task), one) for task, one in running[:RUNNING]]
    return " · ".join([*words, *time_left(controller)])


def time_left(controller: Controller) -> list[str]:
    """What is still to be measured, and how long the plan will take, in words."""
    words = [f"{controller.trials_left} trials to go"] if controller.trials_left else []
    if controller.source is not None and controller.source.to_come:
        return words  # the plan is of those that are there
    if controller.plans and controller.phase not in ("done", "stopped"):
        made_at, plan = controller.plans[-1]
        assert plan.schedule is not None
        left = made_at + plan.schedule.makespan_seconds - controller.now()
        words.append(f"about {show_seconds(left)} left" if left >= 1.0 else "a moment left")
    return words


def _tell_running(name: str, one: Progress) -> str:
    until = one.spans[-1].until_step if one.spans else 0
    metrics = [f"{key} {value:.4g}" for key, value in one.metrics.items() if key != "train/loss"]
    shown = metrics[:1] or [f"loss {one.metrics['train/loss']:.4g}" for _ in "1" if "train/loss" in one.metrics]
    return ", ".join([f"{name} at {one.step}/{until}", *shown])
