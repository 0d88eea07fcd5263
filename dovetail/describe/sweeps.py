"""Workloads from programs: every combination, random samples, explicit lists, and several joined."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.describe import programs
from dovetail.vocabulary import Halving, InvalidRecord, InvalidWorkload, Program, Stop, Task, Workload
from dovetail.vocabulary.records import dumps, freeze

Named = str | Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """Where `sample` draws a parameter from; made by `uniform` and `log_uniform`."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, generator: random.Random) -> float:
        """One value."""
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
    name: str | None = None,
    halving: Halving | None = None,
    **parameters: Any,
) -> Workload:
    """A task for every combination of the parameters given as lists, ranges or NumPy arrays; the others are fixed.
    A program gets a tuple as a list, because tasks are kept as JSON.

    >>> workload = grid("dovetail.vocabulary.units:show_bytes", count=[1, 2, 3], steps=10)
    >>> [task.name for task in workload.tasks]
    ['show_bytes count=1', 'show_bytes count=2', 'show_bytes count=3']
    """
    stop = Stop(steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most)
    swept = {key: axis for key, value in parameters.items() if (axis := _axis(value)) is not None}
    for key, values in swept.items():
        if not values:
            raise InvalidWorkload(f"a grid must have at least one value for each parameter; {key!r} has none.")
    combinations = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    fixed = {key: value for key, value in parameters.items() if key not in swept}
    return _workload(program, [(chosen, fixed | chosen) for chosen in combinations], stop, name, halving)


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
    name: str | None = None,
    halving: Halving | None = None,
    **parameters: Any,
) -> Workload:
    """Random search: `count` tasks, each parameter drawn from its list, range, NumPy array or distribution; the others
    are fixed.

    `sample_seed` decides what is drawn; a parameter called `seed` is the tasks' own.

    >>> workload = sample("dovetail.vocabulary.units:show_seconds", count=3, steps=10, seconds=uniform(0, 1))
    >>> len(workload.tasks), 0 <= workload.tasks[0].parameters["seconds"] <= 1
    (3, True)
    """
    if count < 1:
        raise InvalidWorkload(f"sample must have a count of at least 1, got {count}.")
    stop = Stop(steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most)
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
    return _workload(
        program, [({"": n, **chosen}, fixed | chosen) for n, chosen in enumerate(drawn)], stop, name, halving
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
    **parameters: Any,
) -> Task:
    """One task by hand.

    >>> task("dovetail.vocabulary.units:show_bytes", name="one", steps=5, count=1).parameters["count"]
    1
    """
    stop = Stop(steps=steps, epochs=epochs, metric=metric, at_least=at_least, at_most=at_most)
    found = programs.program(program)
    _check(program, parameters, found)
    return Task(name=name, program=found, parameters=parameters, stop=stop)


def workload(tasks: Iterable[Task], *, name: str = "", halving: Halving | None = None) -> Workload:
    """A workload from an explicit list of tasks.

    >>> len(workload([task("dovetail.vocabulary.units:show_bytes", name="one", steps=5, count=1)]).tasks)
    1
    """
    return Workload(name=name, tasks=tuple(tasks), halving=halving)


def join(*workloads: Workload, name: str) -> Workload:
    """The tasks of several workloads in one.

    >>> one = grid("dovetail.vocabulary.units:show_bytes", count=[1], steps=10)
    >>> two = grid("dovetail.vocabulary.units:show_seconds", seconds=[1], steps=10)
    >>> len(join(one, two, name="both").tasks)
    2
    """
    halvings = {each.halving for each in workloads}
    if len(halvings) > 1:
        raise InvalidWorkload("joined workloads must all be halved alike, or none; these differ.")
    halving = halvings.pop() if halvings else None
    deadlines = {task: due for each in workloads for task, due in each.deadlines.items()}
    tasks = tuple(task for each in workloads for task in each.tasks)
    return Workload(name=name, tasks=tasks, halving=halving, deadlines=deadlines)


def _workload(
    program: Named,
    combinations: list[tuple[dict[str, Any], dict[str, Any]]],
    stop: Stop,
    name: str | None,
    halving: Halving | None,
) -> Workload:
    found = programs.program(program)
    tasks = []
    for chosen, parameters in combinations:
        _check(program, parameters, found)
        tasks.append(Task(name=_name(found, chosen), program=found, parameters=parameters, stop=stop))
    return Workload(name=name or "", tasks=tuple(tasks), halving=halving)


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
            f"a parameter must be numbers, text, or lists and dicts of these; {key!r} is a {type(value).__name__}: "
            f"{value!r}. Pass a name, and look it up in the program."
        ) from None
    if dataclasses.is_dataclass(value):
        raise InvalidWorkload(
            f"a parameter must be numbers, text, or lists and dicts of these; {key!r} is a {type(value).__name__}. "
            f"Pass dataclasses.asdict(...), and make it again in the program."
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
