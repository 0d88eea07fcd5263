"""A sample of a stream in which newer rows are likelier, by exponential decay, kept a batch at a time.

A row at time t has the weight 2^(t / half life), and rows are drawn without replacement by weight: each has the key
log(weight) plus a Gumbel variate, and the `capacity` largest keys stay (Efraimidis and Spirakis, in logarithms). Of a
batch only the rows that enter are drawn at all, so that a full reservoir costs next to nothing: a row enters where its
key exceeds the smallest one held, which has a known chance.
"""

import math
from typing import Any

import numpy as np

# exp(-exp(x)) is 0 long before this, and exp(x) is not yet infinite.
_LARGEST = 50.0


class DecayedReservoir:
    """Up to `capacity` rows of `width` numbers, newer ones likelier by `half_life` events.

    >>> reservoir = DecayedReservoir(capacity=3, width=1, half_life=10.0, seed=0)
    >>> reservoir.add(np.arange(1000.0)[:, None])
    >>> reservoir.rows().shape, bool(reservoir.rows().min() > 900)
    ((3, 1), True)
    """

    def __init__(self, *, capacity: int, width: int, half_life: float, seed: int) -> None:
        self._rate = math.log(2.0) / half_life
        self._values = np.empty((capacity, width))
        # Keys count from the newest event, so that they stay small however long the stream is.
        self._keys = np.full(capacity, -np.inf)
        self._random = np.random.default_rng(seed)
        self._held = 0

    def rows(self) -> np.ndarray:
        """The sample, in no order."""
        return self._values[: self._held]

    def add(self, values: np.ndarray) -> None:
        """Offer rows, the newest last."""
        count, capacity = len(values), len(self._keys)
        self._keys -= self._rate * count
        first = min(capacity - self._held, count)
        if first:
            end = self._held + first
            self._values[self._held : end] = values[:first]
            self._keys[self._held : end] = self._random.gumbel(size=first) - self._rate * np.arange(
                count, count - first, -1
            )
            self._held = end
        if first < count:
            self._challenge(values[first:])

    def _challenge(self, values: np.ndarray) -> None:
        """Draw the rows that exceed the smallest key held, with their keys, and keep the largest of all."""
        bar = self._keys.min()
        # P(Gumbel > bar + age) = 1 - exp(-exp(-(bar + age))), at most what the newest row has.
        most = -math.expm1(-math.exp(min(-bar - self._rate, _LARGEST)))
        count = self._random.binomial(len(values), most)
        tried = self._random.choice(len(values), count, replace=False, shuffle=False)
        ages = self._rate * (len(values) - tried)
        uniform = 1.0 - self._random.random(count) * most  # uniform over what the newest row may exceed
        entering = uniform > np.exp(-np.exp(np.minimum(-bar - ages, _LARGEST)))
        drawn = -np.log(-np.log(np.minimum(uniform[entering], 1.0 - 2.0**-53))) - ages[entering]
        rows, keys = np.concatenate([self._values, values[tried[entering]]]), np.concatenate([self._keys, drawn])
        left_out = len(keys) - len(self._keys)
        kept = np.argpartition(keys, left_out)[left_out:] if left_out else slice(None)
        self._values, self._keys = rows[kept], keys[kept]

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {
            "values": self._values,
            "keys": self._keys,
            "held": self._held,
            "random": self._random.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self._values, self._keys, self._held = state["values"], state["keys"], state["held"]
        self._random.bit_generator.state = state["random"]
