"""Who enters a race: every program with its parameters, once for each seed, until the one target that all have."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.describe.programs import arguments_of
from dovetail.metrics.race.contestants import group_tasks
from dovetail.planning.techniques import techniques as known_techniques
from dovetail.vocabulary import DovetailError, InvalidWorkload, Stop, Task, Workload

DEFAULT_SEEDS = 5
_TARGET = re.compile(r"\s*(?P<metric>.+?)\s*(?P<sign>>=|<=|≥|≤)\s*(?P<value>[^\s<>=≥≤]+)\s*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RaceEntries:
    """A race before it is run: its workload, and the tasks of each contestant by name."""

    workload: Workload
    contestants: Mapping[str, Sequence[Task]]
    stop: Stop


def enter_race(
    workload: Workload,
    *,
    until: str | None = None,
    seeds: int | Sequence[int] | None = None,
    devices: int | None = None,
) -> RaceEntries:
    """The race of a workload's tasks: each set of parameters is a contestant. `seeds` are how many runs each has, or
    which; without it those that the workload has, or 5 where it has only one.

    >>> from dovetail.describe import grid
    >>> entries = enter_race(
    ...     grid("dovetail.testing.programs:dropout", steps=9, name="nets"), until="accuracy>=0.9", seeds=2
    ... )
    >>> entries.workload.name, [task.name for task in entries.workload.tasks], str(entries.stop)
    ('nets race', ['dropout seed=0', 'dropout seed=1'], 'accuracy ≥ 0.9, at most 9 steps')
    """
    if workload.halving is not None:
        raise InvalidWorkload(
            f"a race must let every run go on to its target; {workload.name!r} leaves some behind by halving. Leave "
            f"halving out."
        )
    target = parse_target(until) if until is not None else _common_target(workload)
    contestants = {
        name: [_entry(name, task, seed, target) for task, seed in _runs(tasks, seeds)]
        for name, tasks in group_tasks(workload.tasks).items()
    }
    tasks = tuple(task for found in contestants.values() for task in found)
    name = workload.name or workload.tasks[0].program.function
    entered = dataclasses.replace(
        workload,
        # A workload of its own: the sweep that it came from may be run in the same store.
        name=f"{name} race",
        tasks=tasks,
        objective="makespan" if workload.objective.startswith("weighted") else workload.objective,
        weights={},
        deadlines={},
        techniques=workload.techniques or alone_techniques(devices),
    )
    return RaceEntries(workload=entered, contestants=contestants, stop=tasks[0].stop)


def alone_techniques(devices: int | None = None) -> tuple[str, ...]:
    """What a race uses unless it is told: techniques by which a run has its device for itself, since the time of one
    that shares it is its neighbours' too.

    >>> alone_techniques()
    ('resident', 'graph', 'spill', 'hop')
    """
    alone = {name: spec for name, spec in known_techniques().items() if not spec.is_gang}
    return tuple(name for name, spec in alone.items() if not spec.ranked or (devices or 1) > 1)


def parse_target(text: str) -> dict[str, Any]:
    """A target such as `accuracy>=0.94` or `loss<=2.1`, as `dt.Stop` takes it.

    >>> parse_target("valid/loss <= 2.1")
    {'metric': 'valid/loss', 'at_most': 2.1}
    """
    found = _TARGET.fullmatch(text)
    try:
        value = float(found["value"]) if found else None
    except ValueError:
        value = None
    if found is None or value is None or value - value != 0:
        raise DovetailError(
            f"a target (--until, until=) must be a metric, >= or <=, and a number, as in 'accuracy>=0.94' or "
            f"'loss<=2.1', got {text!r}."
        )
    return {"metric": found["metric"], "at_least" if found["sign"] in (">=", "≥") else "at_most": value}


def _common_target(workload: Workload) -> dict[str, Any]:
    """The target that all tasks have already."""
    targets = {(task.stop.metric, task.stop.at_least, task.stop.at_most) for task in workload.tasks}
    if any(not task.stop.has_target for task in workload.tasks):
        raise DovetailError(
            "a race must have a metric and a target to reach; this workload has none. Give --until 'accuracy>=0.94', "
            "in Python until='accuracy>=0.94', with a metric that the programs' evaluate reports."
        )
    if len(targets) > 1:
        said = ", ".join(sorted({task.stop.target for task in workload.tasks}))
        raise DovetailError(f"a race must have one target for all; this workload has {said}. Give one with --until.")
    names = ("metric", "at_least", "at_most")
    return {name: value for name, value in zip(names, targets.pop(), strict=True) if value is not None}


def _runs(tasks: Sequence[Task], seeds: int | Sequence[int] | None) -> list[tuple[Task, int]]:
    if seeds is None:
        if len(tasks) > 1:
            return [(task, task.seed) for task in tasks]
        seeds = DEFAULT_SEEDS
    if isinstance(seeds, int):
        if isinstance(seeds, bool) or seeds < 1:
            raise DovetailError(f"--seeds (seeds=) must be a whole number of at least 1, got {seeds!r}.")
        seeds = range(seeds)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise DovetailError(f"seeds= must be whole numbers, each once, and at least one, got {list(seeds)!r}.")
    return [(tasks[0], seed) for seed in seeds]


def _entry(name: str, task: Task, seed: int, target: Mapping[str, Any]) -> Task:
    taken = arguments_of(task.program)
    if taken is not None and "seed" not in taken:
        raise DovetailError(
            f"a race must run each program with several seeds; {task.program.function!r} takes {list(taken)}, and not "
            f"'seed'. Give it a parameter seed=0, and draw what is random from that or from torch's generators, which "
            f"it seeds."
        )
    stop = Stop(steps=task.stop.steps, epochs=task.stop.epochs, **target)
    return dataclasses.replace(
        task, name=f"{name} seed={seed}", parameters={**task.parameters, "seed": seed}, stop=stop
    )
