"""Races that were never run: events as workers and the controller would have left them, with times that are known."""

from collections.abc import Sequence

from dovetail.metrics.progress import fold
from dovetail.metrics.race.outcome import RaceResult, judge_race
from dovetail.metrics.race.run_clock import fold_clocks
from dovetail.vocabulary import Event, FrozenDict, Program, Stop, Task
from dovetail.vocabulary.events import AttemptStarted, TargetEvaluated, TaskFinished

STOP = Stop(steps=1000, metric="accuracy", at_least=0.9)
DEVICE = "n0:0"


def make_task(name: str, seed: int) -> Task:
    program = Program(reference=f"race.py:{name}")
    return Task(name=f"{name} seed={seed}", program=program, parameters={"seed": seed}, stop=STOP)


def started(task: Task, at: float, *, attempt: int = 1, step: int = 0, devices: Sequence[str] = (DEVICE,)) -> Event:
    return AttemptStarted(
        task=task.identity,
        attempt=attempt,
        at_seconds=at,
        placement=f"{task.name} {attempt}",
        devices=tuple(devices),
        step=step,
        until=1000,
        predicted_seconds=1.0,
    )


def evaluated(task: Task, at: float, step: int, value: float, *, attempt: int = 1, **seconds: float) -> Event:
    return TargetEvaluated(
        task=task.identity, attempt=attempt, at_seconds=at, step=step, value=value, seconds=FrozenDict(seconds)
    )


def straight_run(
    task: Task,
    *,
    steps: int,
    step_seconds: float,
    begins: float = 0.0,
    every: int = 10,
    start_seconds: float = 3.0,
    evaluation_seconds: float = 0.2,
    arrives: bool = True,
) -> list[Event]:
    """A run whose accuracy rises evenly and meets 0.9 at exactly `steps`, evaluated `every` so many."""
    events = [started(task, begins)]
    for number, step in enumerate(range(every, steps + 1, every), start=1):
        train, evaluate = step * step_seconds, number * evaluation_seconds
        value = 0.9 * step / steps if arrives else 0.5
        at = begins + start_seconds + train + evaluate
        events.append(evaluated(task, at, step, value, train=train, evaluate=evaluate))
    events.append(TaskFinished(task=task.identity, attempt=1, at_seconds=events[-1].at_seconds, step=steps))
    return events


def judge(events: list[Event], tasks: Sequence[Task], *, prices: dict[str, float] | None = None) -> RaceResult:
    """What the real folds make of these events."""
    contestants: dict[str, list[Task]] = {}
    for task in tasks:
        contestants.setdefault(task.program.function, []).append(task)
    return judge_race(
        "planted race",
        contestants,
        stop=STOP,
        clocks=fold_clocks(events),
        progress=fold(events),
        points={},
        prices=prices or {},
    )
