"""What a parameter may be: distributions to draw from, choices to enumerate, and parameters that exist only where
others have certain values. Knows nothing of programs."""

import abc
import dataclasses
import difflib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dovetail.vocabulary import InvalidWorkload


class Distribution(abc.ABC):
    """Where `dt.sample` draws a parameter from. Those of a grid are lists, ranges and choices."""

    @abc.abstractmethod
    def draw(self, generator: random.Random) -> Any:
        """Draw one value by this generator."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval(Distribution):
    """Numbers between two, made by `uniform`, `log_uniform` and `integers`. With a `step`, only `low` and what is whole
    steps above it."""

    low: float
    high: float
    logarithmic: bool = False
    step: float | None = None

    def draw(self, generator: random.Random) -> float:
        """One value; an integer where both `low` and `step` are."""
        if self.step is None:
            return self._draw(generator, self.low, self.high)
        last = self._steps()
        if not self.logarithmic:
            return self._at(generator.randint(0, last))
        # Half a step more at both ends, so that these are as likely as their neighbours.
        low = max(self.low - self.step / 2, self.low / 2)
        drawn = self._draw(generator, low, self._at(last) + self.step / 2)
        return self._at(min(last, max(0, round((drawn - self.low) / self.step))))

    @property
    def last(self) -> float:
        """The largest value there is: `high`, or with a `step` what is whole steps above `low`."""
        return self.high if self.step is None else self._at(self._steps())

    def _steps(self) -> int:
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step + 1e-9)

    def _draw(self, generator: random.Random, low: float, high: float) -> float:
        if self.logarithmic:
            return math.exp(generator.uniform(math.log(low), math.log(high)))
        return generator.uniform(low, high)

    def _at(self, number: int) -> float:
        if isinstance(self.low, int) and isinstance(self.step, int):
            return self.low + number * self.step
        # In decimals, as they were written: 3 × 0.1 is 0.3, not 0.30000000000000004.
        return float(Decimal(repr(self.low)) + number * Decimal(repr(self.step)))


@dataclasses.dataclass(frozen=True, slots=True)
class Choice(Distribution):
    """One of several values, whatever they are; made by `choice`."""

    values: tuple[Any, ...]
    weights: tuple[float, ...] = ()

    def draw(self, generator: random.Random) -> Any:
        """Draw one of the values by this generator, by their weights where there are some."""
        return generator.choices(self.values, self.weights or None)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Conditional:
    """A parameter that exists only where others have certain values; made by `when`."""

    values: Any
    conditions: Mapping[str, Any]


def uniform(low: float, high: float, *, step: float | None = None) -> Distribution:
    """Values between `low` and `high`, all alike likely; with a `step`, only `low`, `low + step` and so on.

    >>> uniform(0.1, 0.5, step=0.2).draw(random.Random(0))
    0.3
    """
    if not low <= high:
        raise InvalidWorkload(f"uniform must have low <= high, got {low} and {high}.")
    return Interval(float(low), float(high), step=_positive("uniform", step))


def log_uniform(low: float, high: float, *, step: float | None = None) -> Distribution:
    """Values between `low` and `high`, all orders of magnitude alike likely; with a `step`, only `low`, `low + step`
    and so on.

    >>> 1e-4 <= log_uniform(1e-4, 1e-2).draw(random.Random(0)) <= 1e-2
    True
    """
    if not 0 < low <= high:
        raise InvalidWorkload(f"log_uniform must have 0 < low <= high, got {low} and {high}.")
    return Interval(float(low), float(high), logarithmic=True, step=_positive("log_uniform", step))


def integers(low: int, high: int, *, step: int = 1, log: bool = False) -> Distribution:
    """Integers from `low` to `high`, both included, in steps of `step`, all alike likely; with `log`, all orders of
    magnitude.

    >>> [integers(16, 64, step=16).draw(random.Random(seed)) for seed in range(3)]
    [64, 32, 16]
    """
    for name, value in (("low", low), ("high", high), ("step", step)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidWorkload(f"integers must have whole numbers; {name} is {value!r}. Use uniform for others.")
    if not low <= high or (log and low < 1):
        raise InvalidWorkload(f"integers must have low <= high, with log 1 <= low, got {low} and {high}.")
    _positive("integers", step)
    return Interval(low, high, logarithmic=log, step=step)


def choice(*values: Any, weights: Iterable[float] = ()) -> Distribution:
    """One of these values, or of a list of them: all of them in a grid, a random one in a sample, as likely as its
    weight says. Values may be lists themselves; one such list alone stands in another.

    >>> from dovetail.describe import grid
    >>> workload = grid("dovetail.vocabulary.units:show_bytes", count=choice([1, 2], 3), steps=10)
    >>> [task.name for task in workload.tasks]
    ['show_bytes count=[1, 2]', 'show_bytes count=3']
    >>> choice([16, 32]) == choice(16, 32)
    True
    """
    if len(values) == 1 and not isinstance(values[0], str | bytes | Mapping) and isinstance(values[0], Iterable):
        values = tuple(values[0].tolist() if hasattr(values[0], "tolist") else values[0])
    found = tuple(weights)
    if not values:
        raise InvalidWorkload("a choice must have at least one value, got none.")
    if found and (len(found) != len(values) or min(found) < 0 or not 0 < sum(found) < math.inf):
        raise InvalidWorkload(f"a choice must have a weight of at least 0 for each of {len(values)} values: {found}.")
    return Choice(values, found)


def when(values: Any, /, **conditions: Any) -> Conditional:
    """A parameter that only some tasks have: those in which the others named here have the value given, one of the
    values of a list, or one for which a function says yes. The program of the other tasks has its own default.

    >>> from dovetail.describe import grid
    >>> units = "dovetail.vocabulary.units:show_bytes"
    >>> workload = grid(units, kind=["adam", "sgd"], momentum=when([0.8, 0.9], kind="sgd"), steps=10)
    >>> [task.name for task in workload.tasks]
    ['show_bytes kind=adam', 'show_bytes kind=sgd momentum=0.8', 'show_bytes kind=sgd momentum=0.9']
    """
    if not conditions:
        raise InvalidWorkload("`when` must name the parameter that it depends on, such as when([0.9], kind='sgd').")
    if isinstance(values, Conditional):
        raise InvalidWorkload("`when` must have values, not another `when`. Name all its conditions in one.")
    return Conditional(values, conditions)


def axis(value: Any) -> Sequence[Any] | None:
    """The values to choose from, where a parameter has several; None where it has one, or is a distribution. NumPy need
    not be imported to know an array of it.

    >>> axis([1, 2]), axis(range(3)), axis(1)
    ([1, 2], range(0, 3), None)
    """
    if isinstance(value, Conditional):
        return axis(value.values)
    if isinstance(value, Choice):
        return value.values
    if isinstance(value, list | range):
        return value
    return list(value.tolist()) if getattr(value, "ndim", 0) else None


def draw(name: str, value: Any, generator: random.Random) -> Any:
    """A value of a parameter of `dt.sample`; one that is fixed, as it is."""
    if isinstance(value, Conditional):
        return draw(name, value.values, generator)
    if isinstance(value, Distribution):
        return value.draw(generator)
    if (values := axis(value)) is None:
        return value
    if not len(values):
        raise InvalidWorkload(f"a sample must have at least one value for each parameter; {name!r} has none.")
    return generator.choice(values)


def check_conditions(parameters: Mapping[str, Any]) -> None:
    """Refuse a condition on a parameter that there is not."""
    for name, value in parameters.items():
        for other in value.conditions if isinstance(value, Conditional) else ():
            if other not in parameters or other == name:
                near = difflib.get_close_matches(other, parameters.keys() - {name}, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise InvalidWorkload(
                    f"{name!r} must depend on another parameter of the same sweep; {other!r} is none.{hint}"
                )


def without_unmet(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a task without those of parameters whose conditions it does not meet. A parameter that is left out
    meets no condition.

    >>> without_unmet({"kind": "adam", "momentum": 0.9}, {"kind": ["adam"], "momentum": when(0.9, kind="sgd")})
    {'kind': 'adam'}
    """
    kept = dict(values)
    while unmet := [name for name in kept if not _is_met(parameters[name], kept)]:
        for name in unmet:
            del kept[name]
    return kept


def _is_met(parameter: Any, values: Mapping[str, Any]) -> bool:
    if not isinstance(parameter, Conditional):
        return True
    return all(name in values and _holds(wanted, values[name]) for name, wanted in parameter.conditions.items())


def _holds(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, Callable):  # type: ignore[arg-type]
        return bool(wanted(value))
    several = axis(wanted)
    return value == wanted if several is None else value in several


def _positive(where: str, step: float | None) -> float | None:
    if step is not None and not 0 < step < math.inf:
        raise InvalidWorkload(f"{where} must have a step greater than 0, got {step!r}.")
    return step
