"""Who races: the runs of one contestant differ in their seed alone. What came of each, and of all of them together."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.metrics.race.crossing import TargetCrossing
from dovetail.metrics.race.race_statistics import Estimate, estimate
from dovetail.metrics.race.run_clock import ClockReading
from dovetail.vocabulary import Task
from dovetail.vocabulary.records import dumps

_LEAST_POINTS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RaceRun:
    """One seed of a contestant and what came of it.

    `crossing` is when it reached the target, if ever; `readings` are all its evaluations, `ways` how it ran, such as
    `resident on 1 × cpu`, and `spend` what it took of money until then (until its last evaluation where it never
    arrived), where devices have prices. `stopped_seconds`, for which the whole race was stopped, are on no clock.
    `steps_per_epoch` is zero where nobody knows.
    """

    task: Task
    status: str
    reason: str = ""
    crossing: TargetCrossing | None = None
    readings: tuple[ClockReading, ...] = ()
    ways: tuple[str, ...] = ()
    started_seconds: float = 0.0
    interruptions: int = 0
    stopped_seconds: float = 0.0
    spend: float | None = None
    steps_per_epoch: int = 0

    @property
    def seed(self) -> int:
        """The seed that it has and no other run of its contestant."""
        return self.task.seed

    @property
    def last(self) -> ClockReading | None:
        """The reading at its end: where it arrived, else the last there is."""
        if self.crossing is not None:
            return self.crossing.hit
        return self.readings[-1] if self.readings else None

    def seconds(self, clock: str) -> float:
        """The time to the target by a clock; infinite where it never arrived."""
        return self.crossing.seconds(clock) if self.crossing is not None else math.inf

    def interpolated_seconds(self, clock: str) -> float:
        """The same, where a straight line between the last miss and the first hit meets the target."""
        return self.crossing.interpolated_seconds(clock) if self.crossing is not None else math.inf

    @property
    def steps(self) -> float:
        """The steps to the target; infinite where it never arrived."""
        return float(self.crossing.hit.step) if self.crossing is not None else math.inf

    @property
    def step_seconds(self) -> float:
        """What a step took, waiting for its batches included; NaN where nothing was measured."""
        found = self.last.step_seconds if self.last is not None else None
        return math.nan if found is None else found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A program with its parameters, and its runs, one for each seed."""

    name: str
    runs: tuple[RaceRun, ...]

    @property
    def arrived_count(self) -> int:
        """How many of its runs reached the target."""
        return sum(run.crossing is not None for run in self.runs)

    def time(self, clock: str) -> Estimate:
        """The olympic mean of the times to the target, by a clock."""
        return estimate([run.seconds(clock) for run in self.runs])

    def interpolated_time(self, clock: str) -> Estimate:
        """The same of interpolated crossings."""
        return estimate([run.interpolated_seconds(clock) for run in self.runs])

    @property
    def steps(self) -> Estimate:
        """The olympic mean of the steps to the target."""
        return estimate([run.steps for run in self.runs])

    @property
    def step_seconds(self) -> Estimate:
        """The olympic mean of what a step took in each run that took any."""
        return estimate([run.step_seconds for run in self.runs if not math.isnan(run.step_seconds)])

    @property
    def spend(self) -> Estimate | None:
        """The olympic mean of the spend to the target; None where devices have no prices."""
        found = [(run.spend if run.crossing is not None else math.inf) for run in self.runs if run.spend is not None]
        return estimate(found) if found else None

    def error_seconds(self, clock: str) -> float:
        """The largest error of sparse evaluation among its runs: how much earlier one may have arrived than seen."""
        return max((run.crossing.error_seconds(clock) for run in self.runs if run.crossing is not None), default=0.0)

    def phase_seconds(self) -> dict[str, float]:
        """Where the time of a run went, by phase, on average over its runs."""
        found = [run.last.seconds for run in self.runs if run.last is not None]
        names = dict.fromkeys(name for seconds in found for name in seconds)
        return {name: sum(seconds.get(name, 0.0) for seconds in found) / len(found) for name in names}


def group_tasks(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    """The tasks of each contestant, by its name: the task's, without the seed.

    >>> from dovetail.vocabulary import Program, Stop
    >>> program, stop = Program(reference="a.py:net"), Stop(steps=9)
    >>> tasks = [
    ...     Task(name=f"net width={w} seed={s}", program=program, stop=stop, parameters={"width": w, "seed": s})
    ...     for w in (8, 16)
    ...     for s in (0, 1)
    ... ]
    >>> {name: len(found) for name, found in group_tasks(tasks).items()}
    {'net width=8': 2, 'net width=16': 2}
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(_key(task), []).append(task)
    names: dict[str, list[Task]] = {}
    for found in groups.values():
        name = name_without_seed(found[0])
        names[name if name not in names else found[0].name] = found
    return names


def name_without_seed(task: Task) -> str:
    """What a task is called without its seed.

    >>> from dovetail.vocabulary import Program, Stop
    >>> program = Program(reference="a.py:net")
    >>> name_without_seed(Task(name="net seed=3", program=program, stop=Stop(steps=9), parameters={"seed": 3}))
    'net'
    """
    words = [word for word in task.name.split(" ") if word != f"seed={task.parameters.get('seed')}"]
    return " ".join(words) or task.name


def _key(task: Task) -> str:
    parameters: Mapping[str, Any] = {name: value for name, value in task.parameters.items() if name != "seed"}
    return dumps([task.program.reference, task.program.source, task.begins_with, sorted(parameters.items())])


def find_equal_curves(curves: Mapping[int, Sequence[tuple[str, int, float]]]) -> list[list[int]]:
    """The seeds whose runs measured the same values at the same steps, from `curves` by seed: groups of two and more.
    Runs are as long as they took to the target, so that one may be the beginning of another; where that is all of it,
    they are equal too. Fewer than three values may be equal by chance.

    >>> falling = [("loss", step, 1 / step) for step in (1, 2, 3)]
    >>> find_equal_curves({0: falling, 1: falling, 2: [("loss", step, 0.9 / step) for step in (1, 2, 3)]})
    [[0, 1]]
    """
    groups: list[list[int]] = []
    for seed, points in curves.items():
        if len(points) < _LEAST_POINTS:
            continue
        same = next((group for group in groups if _are_equal(curves[group[0]], points)), None)
        if same is None:
            groups.append([seed])
        else:
            same.append(seed)
    return [group for group in groups if len(group) > 1]


def _are_equal(one: Sequence[tuple[str, int, float]], other: Sequence[tuple[str, int, float]]) -> bool:
    first, second = ({(name, step): value for name, step, value in points} for points in (one, other))
    shared = first.keys() & second.keys()
    return len(shared) == min(len(first), len(second)) and all(first[key] == second[key] for key in shared)
