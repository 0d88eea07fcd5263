"""Workloads from programs: every combination, random samples, explicit lists, and several joined."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dovetail.describe import programs, spaces
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
from dovetail.vocabulary.redact import show_value
from dovetail.vocabulary.secret_forms import MASK

Named = str | Callable[..., Any]


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
    allow: str | Iterable[str] = (),
    **parameters: Any,
) -> Workload:
    """A task for every combination of the parameters given as lists, ranges, NumPy arrays or `dt.choice`; the others
    are fixed, but for those that `dt.when` gives to some tasks alone. A program gets a tuple as a list, because tasks
    are kept as JSON.

    Each task trains for `steps` or `epochs`, or until `metric` is `at_least` or `at_most` so much, or has not improved
    for `patience` evaluations (`dt.Stop`). What is wanted of the whole, `objective` to `allow`, is as in
    `dt.workload`.

    >>> workload = grid("dovetail.vocabulary.units:show_bytes", count=[1, 2, 3], steps=10, objective="mean")
    >>> [task.name for task in workload.tasks], workload.objective
    (['show_bytes count=1', 'show_bytes count=2', 'show_bytes count=3'], 'mean')
    """
    stop = Stop(
        steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most, patience=patience, goal=goal
    )
    spaces.check_conditions(parameters)
    axes = {key: spaces.axis(value) for key, value in parameters.items()}
    for key, values in axes.items():
        if values is not None and not len(values):
            raise InvalidWorkload(f"a grid must have at least one value for each parameter; {key!r} has none.")
    every = [[_plain_values(parameters[key])] if values is None else values for key, values in axes.items()]
    combinations = [
        spaces.without_unmet(dict(zip(axes, values, strict=True)), parameters) for values in itertools.product(*every)
    ]
    named = {key for key, value in parameters.items() if axes[key] is not None or isinstance(value, spaces.Conditional)}
    if any(isinstance(value, spaces.Conditional) for value in parameters.values()):
        combinations = _deduplicate(combinations)
    tasks = _tasks(program, combinations, named, stop)
    return workload(
        tasks,
        name=name or "",
        halving=halving,
        objective=objective,
        weights=weights,
        techniques=techniques,
        device_memory=device_memory,
        allow=allow,
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
    allow: str | Iterable[str] = (),
    **parameters: Any,
) -> Workload:
    """Random search: `count` tasks, each parameter drawn from its list, range, NumPy array or distribution
    (`dt.uniform`, `dt.log_uniform`, `dt.integers`, `dt.choice`); the others are fixed, but for those that `dt.when`
    gives to some tasks alone.

    `sample_seed` decides what is drawn; a parameter called `seed` is the tasks' own. The rest is as in `dt.grid`.

    >>> workload = sample("dovetail.vocabulary.units:show_seconds", count=3, steps=10, seconds=spaces.uniform(0, 1))
    >>> len(workload.tasks), 0 <= workload.tasks[0].parameters["seconds"] <= 1
    (3, True)
    """
    if count < 1:
        raise InvalidWorkload(f"sample must have a count of at least 1, got {count}.")
    stop = Stop(
        steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most, patience=patience, goal=goal
    )
    spaces.check_conditions(parameters)
    generator = random.Random(sample_seed)
    drawn = [
        # All are drawn, also those that a task then does not have: what the others are does not depend on it.
        spaces.without_unmet({key: spaces.draw(key, value, generator) for key, value in parameters.items()}, parameters)
        for _ in range(count)
    ]
    named = {key for key, value in parameters.items() if _is_drawn(value)}
    tasks = _tasks(program, drawn, named, stop, numbered=True)
    return workload(
        tasks,
        name=name or "",
        halving=halving,
        objective=objective,
        weights=weights,
        techniques=techniques,
        device_memory=device_memory,
        allow=allow,
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
        steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most, patience=patience, goal=goal
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
    allow: str | Iterable[str] = (),
) -> Workload:
    """A workload from an explicit list of tasks, with what is wanted of the whole.

    `objective` is what plans make small: `makespan`, `mean`, `weighted` with `weights` by task name, `first:3`,
    `spend:deadline=2h` or `target:chance=0.2`. `deadlines` are seconds from the beginning of a run, by task name.
    `techniques` are the only ones to use, or, with a minus, those not to use. `device_memory`, such as `"24 GiB"`:
    accelerators are used as if they had no more. `allow` names approximations (docs/numeric.md), such as
    `"state-8bit"`: tasks whose optimizer can have them may be trained so, where that is measured to be faster or
    nothing else fits. Without a name nothing is approximated.

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
        allow=allow,  # type: ignore[arg-type]  # parsed there
    )


def join(*workloads: Workload, name: str) -> Workload:
    """The tasks of several workloads in one. What is wanted of the whole must be the same in each of them.

    >>> one = grid("dovetail.vocabulary.units:show_bytes", count=[1], steps=10)
    >>> two = grid("dovetail.vocabulary.units:show_seconds", seconds=[1], steps=10)
    >>> len(join(one, two, name="both").tasks)
    2
    """
    for field in ("halving", "objective", "techniques", "device_memory_bytes", "allow"):
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


def _tasks(
    program: Named, combinations: Iterable[Mapping[str, Any]], named: set[str], stop: Stop, *, numbered: bool = False
) -> list[Task]:
    """A task for each combination of parameters, called after those that are `named`."""
    found = programs.program(program)
    tasks: list[Task] = []
    taken: set[str] = set()
    for number, parameters in enumerate(combinations):
        _check(program, parameters, found)
        chosen = {key: value for key, value in parameters.items() if key in named}
        name = task_name(found, ({"": number} if numbered else {}) | chosen)
        if MASK in name and name in taken:  # they differ in what no name shows
            name = f"{name} #{number}"
        taken.add(name)
        tasks.append(Task(name=name, program=found, parameters=parameters, stop=stop))
    return tasks


def _deduplicate(combinations: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without repetitions, which come about where a parameter is left out of some of them."""
    return list({repr(freeze(each)): each for each in combinations}.values())


def _plain_values(value: Any) -> Any:
    return value.values if isinstance(value, spaces.Conditional) else value


def _is_drawn(value: Any) -> bool:
    return isinstance(value, spaces.Distribution | spaces.Conditional) or spaces.axis(value) is not None


def _check(program: Named, parameters: Mapping[str, Any], found: Program) -> None:
    for key, value in parameters.items():
        check_value(key, value)
    # A program given by name may be costly to import; workers check it when they build it.
    if callable(program):
        programs.check_parameters(program, parameters, name=found.function)


def check_value(key: str, value: Any) -> None:
    """Refuse a value that no task can have as a parameter.

    >>> check_value("widths", [32, 64])
    """
    if isinstance(value, spaces.Distribution):
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


def task_name(program: Program, chosen: Mapping[str, Any]) -> str:
    """What a task is called after the parameters that were chosen for it; a number stands under the empty name.

    >>> task_name(Program(reference="a.py:f"), {"": 3, "rate": 0.12345})
    'f #3 rate=0.1235'
    """
    numbered = "" in chosen  # a sample's tasks differ by their number, a grid's by their values alone
    words = [
        f"{key}={show_value(key, value, _shorten(value, exact=not numbered))}" if key else f"#{value}"
        for key, value in chosen.items()
    ]
    return " ".join([program.function, *words]).replace("/", "_")


def _shorten(value: Any, *, exact: bool) -> str:
    if hasattr(value, "tolist"):  # a number of NumPy's
        value = value.tolist()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.4g}"
    return short if not exact or float(short) == value else repr(value)
