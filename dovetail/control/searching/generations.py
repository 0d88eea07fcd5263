"""Who is replaced by whom at the end of a generation, and with which parameters. Pure: what is drawn follows from the
population's seed, the generation and the place, so that whoever asks again is told the same."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.vocabulary import Population

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def choose_parents(values: Mapping[int, float], rule: Population, *, goal: str, generation: int) -> dict[int, int]:
    """By place, whose clone takes it from here on: the worst are replaced by clones of the best, and so are those that
    have no value (NaN). The others stay.

    >>> choose_parents({0: 0.5, 1: 0.9, 2: 0.1, 3: 0.7}, Population(every_steps=9), goal="max", generation=1)
    {2: 1}
    """
    sign = -1.0 if goal == "max" else 1.0
    valid = sorted((place for place in values if not math.isnan(values[place])), key=lambda at: (sign * values[at], at))
    count = min(max(1, int(len(values) * rule.replaced)), len(values) // 2)
    failed = [place for place in values if place not in valid]
    worst = [*valid[max(1, len(values) - count) :], *failed]
    best = valid[:count]
    return {place: keyed(rule, generation, place).choice(best) for place in sorted(worst)} if best else {}


def keyed(rule: Population, generation: int, place: int) -> random.Random:
    """The generator of one place in one generation.

    >>> rule = Population(every_steps=9, seed=3)
    >>> keyed(rule, 1, 2).random() == keyed(rule, 1, 2).random() != keyed(rule, 2, 1).random()
    True
    """
    return random.Random(f"{rule.seed}/{generation}/{place}")


class MemberTrial:
    """Suggests the parameters of one member of a population, as an Optuna trial does: values near those of its parent,
    or, without one, from anywhere."""

    def __init__(self, rule: Population, generator: random.Random, parent: Mapping[str, Any]) -> None:
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}
        self._rule, self._generator, self._parent = rule, generator, parent

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number, some factor away from the parent's."""
        from optuna.distributions import FloatDistribution

        value = self._number(name, low, high, log=log)
        if step is not None:
            value = low + round((value - low) / step) * step
        self._note(name, min(max(value, low), high), FloatDistribution(low, high, step=step, log=log))
        return float(self.params[name])

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number, some factor away from the parent's."""
        from optuna.distributions import IntDistribution

        drawn = low + round((self._number(name, low, high, log=log) - low) / step) * step
        last = low + (high - low) // step * step
        self._note(name, min(max(drawn, low), last), IntDistribution(low, high, step=step, log=log))
        return int(self.params[name])

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """The parent's choice, or any."""
        from optuna.distributions import CategoricalDistribution

        drawn = self._generator.choice(list(choices))
        self._note(name, drawn if self._is_drawn(name) else self._parent[name], CategoricalDistribution(choices))
        return self.params[name]

    def _number(self, name: str, low: float, high: float, *, log: bool) -> float:
        # All is drawn, whatever becomes of it: what the others are does not depend on it.
        drawn = self._generator.uniform(math.log(low), math.log(high)) if log else self._generator.uniform(low, high)
        factor = self._generator.choice(self._rule.factors)
        if self._is_drawn(name):
            return math.exp(drawn) if log else drawn
        return float(self._parent[name]) * factor

    def _is_drawn(self, name: str) -> bool:
        return self._generator.random() < self._rule.resampled or name not in self._parent

    def _note(self, name: str, value: Any, distribution: "BaseDistribution") -> None:
        if name not in self.params:  # asked twice, it stays what it is
            self.params[name], self.distributions[name] = value, distribution
