"""The random numbers that batches carry with them: generators of torch, NumPy and Python that an object holds."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

Generator = torch.Generator | numpy.random.Generator | numpy.random.RandomState | random.Random


def generators_in(value: Any, *, depth: int = 3) -> Iterator[Generator]:
    """The generators that an object holds, itself or through its parts.

    >>> dataset = type("Dataset", (), {})()
    >>> dataset.own = random.Random(0)
    >>> len(list(generators_in(dataset)))
    1
    """
    if isinstance(value, Generator):
        yield value
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        for part in vars(value).values():
            yield from generators_in(part, depth=depth - 1)


def put_back(generator: Generator) -> Callable[[], Any]:
    """A function that makes a generator draw again what it would draw now.

    >>> generator = random.Random(0)
    >>> again = put_back(generator)
    >>> first = generator.random()
    >>> again()
    >>> generator.random() == first
    True
    """
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: generator.set_state(state)
    if isinstance(generator, numpy.random.Generator):
        bits, stood = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", stood)
    if isinstance(generator, numpy.random.RandomState):
        return _restorer(generator.set_state, generator.get_state())
    return _restorer(generator.setstate, generator.getstate())


def _restorer(put: Callable[[Any], None], state: Any) -> Callable[[], None]:
    return lambda: put(state)
