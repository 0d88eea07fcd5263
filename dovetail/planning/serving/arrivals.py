"""When requests come: at a rate, or as a trace of rates says."""

from collections.abc import Sequence

import numpy as np

from dovetail.vocabulary import DovetailError


def arrivals_at(rate: float, count: int, *, seed: int = 0) -> list[float]:
    """So many moments, independent of one another (Poisson), at this very rate over all of them.

    >>> round(arrivals_at(100.0, 1000)[-1], 9)
    10.0
    """
    if not rate > 0:
        raise DovetailError(f"a rate must be more than 0 requests a second, got {rate:g}.")
    moments = np.cumsum(np.random.default_rng(seed).exponential(1.0, count))
    return [float(each) for each in moments * (count / rate / moments[-1])]


def arrivals_of_trace(rates: Sequence[float], *, second: float = 1.0, seed: int = 0) -> list[float]:
    """Moments where each of these rates holds for so many seconds, one after another."""
    draw, found = np.random.default_rng(seed), list[float]()
    for number, rate in enumerate(rates):
        moments = draw.uniform(0.0, second, draw.poisson(rate * second))
        found += sorted(float(number * second + each) for each in moments)
    return found
