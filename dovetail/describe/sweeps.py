"""Workloads from programs: every combination, random samples, explicit lists, and several joined."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dovetail.describe import programs
from dovetail.vocabulary import (
    Halving,
    InvalidRecord,
    InvalidWorkload,
    Program,
    Stop,
    Task,
    Workload,
    parse_device_memory,
)
from dovetail.vocabulary.records import dumps, freeze

Named = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """Where `sample` draws a parameter from; made by `uniform` and `log_uniform`."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, generator: random.Random) -> float:
        """Draw one value."""
        if self.logarithmic:
            return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return generator.uniform(self.low, self.high)


def uniform(low: float, high: float) -> Distribution:
    """Values between `low` and `high`, all alike likely.

    >>> uniform(0, 1).logarithmic
    False
    """
    if not low <= high:
        raise InvalidWorkload(f"uniform must have low <= high, got {low} and {high}.")
    return Distribution(low, high)


def log_uniform(low: float, high: float) -> Distribution:
    """Values between `low` and `high`, all orders of magnitude alike likely.

    >>> log_uniform(1e-4, 1e-2).logarithmic
    True
    """
    if not 0 < low <= high:
        raise InvalidWorkload(f"log_uniform must have 0 < low <= high, got {low} and {high}.")
    return Distribution(low, high, logarithmic=True)


def grid(
    program: Named,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    metric: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    patience: int | None = None,
    goal: str | None = None,
    name: str | None = None,
    halving: Halving | None = None,
    objective: str = "makespan",
    weights: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] = (),
    device_memory: str | int | None = None,
    **parameters: Any,
) -> Workload:
    """A task for every combination of the parameters given as lists, ranges or NumPy arrays; the others are fixed.
    A program gets a tuple as a list, because tasks are kept as JSON.

    Each task trains for `steps` or `epochs`, or until `metric` is `at_least` or `at_most` so much, or has not improved
    for `patience` evaluations (`dt.Stop`). What is wanted of the whole, `objective` to `device_memory`, is as in
    `dt.workload`.

    >>> workload = grid("dovetail.vocabulary.units:show_bytes", count=[1, 2, 3], steps=10, objective="mean")
    >>> [task.name for task in workload.tasks], workload.objective
    (['show_bytes count=1', 'show_bytes count=2', 'show_bytes count=3'], 'mean')
    """
    stop = Stop(
        steps=steps,
        epochs=epochs,
        metric=metric,
        at_least=at_least,
        at_most=at_most,
        patience=patience,
        goal=goal,
    )
    swept = {key: axis for key, value in parameters.items() if (axis := _axis(value)) is not None}
    for key, values in swept.items():
        if not values:
            raise InvalidWorkload(f"a grid must have at least one value for each parameter; {key!r} has none.")
    combinations = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    fixed = {key: value for key, value in parameters.items() if key not in swept}
    tasks = _tasks(program, [(chosen, fixed | chosen) for chosen in combinations], stop)
    return workload(
        tasks,
        name=name or "",
        halving=halving,
        objective=objective,
        weights=weights,
        techniques=techniques,
        device_memory=device_memory,
    )


def sample(
    program: Named,
    *,
    count: int,
    sample_seed: int = 0,
    steps: int | None = None,
    epochs: int | None = None,
    metric: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    patience: int | None = None,
    goal: str | None = None,
    name: str | None = None,
    halving: Halving | None = None,
    objective: str = "makespan",
    weights: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] = (),
    device_memory: str | int | None = None,
    **parameters: Any,
) -> Workload:
    """Random search: `count` tasks, each parameter drawn from its list, range, NumPy array or distribution; the others
    are fixed.

    `sample_seed` decides what is drawn; a parameter called `seed` is the tasks' own. The rest is as in `dt.grid`.

    >>> workload = sample("dovetail.vocabulary.units:show_seconds", count=3, steps=10, seconds=uniform(0, 1))
    >>> len(workload.tasks), 0 <= workload.tasks[0].parameters["seconds"] <= 1
    (3, True)
    """
    if count < 1:
        raise InvalidWorkload(f"sample must have a count of at least 1, got {count}.")
    stop = Stop(
        steps=steps,
        epochs=epochs,
        metric=metric,
        at_least=at_least,
        at_most=at_most,
        patience=patience,
        goal=goal,
    )
    generator = random.Random(sample_seed)
    drawn = [
        {
            key: _draw(key, value, generator)
            for key, value in parameters.items()
            if isinstance(value, Distribution) or _axis(value) is not None
        }
        for _ in range(count)
    ]
    fixed = {key: value for key, value in parameters.items() if key not in drawn[0]}
    tasks = _tasks(program, [({"": n, **chosen}, fixed | chosen) for n, chosen in enumerate(drawn)], stop)
    return workload(
        tasks,
        name=name or "",
        halving=halving,
        objective=objective,
        weights=weights,
        techniques=techniques,
        device_memory=device_memory,
    )


def task(
    program: Named,
    *,
    name: str,
    steps: int | None = None,
    epochs: int | None = None,
    metric: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    patience: int | None = None,
    goal: str | None = None,
    **parameters: Any,
) -> Task:
    """One task by hand.

    >>> task("dovetail.vocabulary.units:show_bytes", name="one", steps=5, count=1).parameters["count"]
    1
    """
    stop = Stop(
        steps=steps,
        epochs=epochs,
        metric=metric,
        at_least=at_least,
        at_most=at_most,
        patience=patience,
        goal=goal,
    )
    found = programs.program(program)
    _check(program, parameters, found)
    return Task(name=name, program=found, parameters=parameters, stop=stop)


def workload(
    tasks: Iterable[Task],
    *,
    name: str = "",
    halving: Halving | None = None,
    objective: str = "makespan",
    weights: Mapping[str, float] = MappingProxyType({}),
    deadlines: Mapping[str, float] = MappingProxyType({}),
    techniques: str | Iterable[str] = (),
    device_memory: str | int | None = None,
) -> Workload:
    """A workload from an explicit list of tasks, with what is wanted of the whole.

    `objective` is what plans make small: `makespan`, `mean`, `weighted` with `weights` by task name, `first:3`,
    `spend:deadline=2h` or `target:chance=0.2`. `deadlines` are seconds from the beginning of a run, by task name.
    `techniques` are the only ones to use, or, with a minus, those not to use. `device_memory`, such as `"24 GiB"`:
    accelerators are used as if they had no more.

    >>> one = task("dovetail.vocabulary.units:show_bytes", name="one", steps=5, count=1)
    >>> two = task("dovetail.vocabulary.units:show_bytes", name="two", steps=5, count=2)
    >>> urgent = workload([one, two], objective="weighted", weights={"two": 3.0}, techniques="-fuse")
    >>> urgent.weights["two"], urgent.allows("fuse")
    (3.0, False)
    """
    return Workload(
        name=name,
        tasks=tuple(tasks),
        halving=halving,
        objective=objective,
        weights=weights,
        deadlines=deadlines,
        techniques=techniques,  # type: ignore[arg-type]  # parsed there
        device_memory_bytes=parse_device_memory(device_memory),
    )


def join(*workloads: Workload, name: str) -> Workload:
    """The tasks of several workloads in one. What is wanted of the whole must be the same in each of them.

    >>> one = grid("dovetail.vocabulary.units:show_bytes", count=[1], steps=10)
    >>> two = grid("dovetail.vocabulary.units:show_seconds", seconds=[1], steps=10)
    >>> len(join(one, two, name="both").tasks)
    2
    """
    for field in ("halving", "objective", "techniques", "device_memory_bytes"):
        if len(found := {getattr(each, field) for each in workloads}) > 1:
            raise InvalidWorkload(
                f"joined workloads must all have the same {field}; these differ: {', '.join(sorted(map(repr, found)))}."
            )
    return dataclasses.replace(
        workloads[0] if workloads else Workload(name=name, tasks=()),
        name=name,
        tasks=tuple(task for each in workloads for task in each.tasks),
        deadlines={task: due for each in workloads for task, due in each.deadlines.items()},
        weights={task: weight for each in workloads for task, weight in each.weights.items()},
    )


def _tasks(program: Named, combinations: list[tuple[dict[str, Any], dict[str, Any]]], stop: Stop) -> list[Task]:
    """A task for each pair of the parameters that name it and all that it has."""
    found = programs.program(program)
    tasks = []
    for chosen, parameters in combinations:
        _check(program, parameters, found)
        tasks.append(Task(name=_name(found, chosen), program=found, parameters=parameters, stop=stop))
    return tasks


def _axis(value: Any) -> list[Any] | None:
    """The values to choose from, where a parameter has several. NumPy need not be imported to know an array of it."""
    if isinstance(value, list):
        return value
    if isinstance(value, range):
        return list(value)
    return list(value.tolist()) if getattr(value, "ndim", 0) else None


def _check(program: Named, parameters: Mapping[str, Any], found: Program) -> None:
    for key, value in parameters.items():
        _check_value(key, value)
    # A program given by name may be costly to import; workers check it when they build it.
    if callable(program):
        programs.check_parameters(program, parameters, name=found.function)


def _check_value(key: str, value: Any) -> None:
    if isinstance(value, Distribution):
        raise InvalidWorkload(
            f"a parameter must have a value; {key!r} has a distribution, from which only dt.sample draws. "
            f"Use dt.sample(..., count=...), or give a list of values."
        )
    try:
        dumps(freeze(value))
    except InvalidRecord:
        raise InvalidWorkload(
            "a parameter must be numbers, text, or lists and dicts of these; "
            f"{key!r} is of type {type(value).__name__}: {value!r}. Pass a name, and look it up in the program."
        ) from None
    if dataclasses.is_dataclass(value):
        raise InvalidWorkload(
            "a parameter must be numbers, text, or lists and dicts of these; "
            f"{key!r} is of type {type(value).__name__}. Pass dataclasses.asdict(...) and build it anew there."
        )


def _name(program: Program, chosen: Mapping[str, Any]) -> str:
    numbered = "" in chosen  # a sample's tasks differ by their number, a grid's by their values alone
    words = [f"{key}={_short(value, exact=not numbered)}" if key else f"#{value}" for key, value in chosen.items()]
    return " ".join([program.function, *words]).replace("/", "_")


def _short(value: Any, *, exact: bool) -> str:
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.4g}"
    return short if not exact or float(short) == value else repr(value)


def _draw(key: str, value: Any, generator: random.Random) -> Any:
    if isinstance(value, Distribution):
        return value.draw(generator)
    if not (values := _axis(value)):
        raise InvalidWorkload(f"a sample must have at least one value for each parameter; {key!r} has none.")
    return generator.choice(values)
