"""When requests come: at a rate, or as a trace of rates says."""

import random
from collections.abc import Sequence

from dovetail.vocabulary import DovetailError


def arrivals_at(rate: float, count: int, *, seed: int = 0) -> list[float]:
    """So many moments at so many a second, independent of one another (Poisson).

    >>> moments = arrivals_at(100.0, 1000)
    >>> 9 < moments[-1] < 11
    True
    """
    if not rate > 0:
        raise DovetailError(f"a rate must be more than 0 requests a second, got {rate:g}.")
    draw, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate)
        found.append(now)
    return found


def arrivals_of_trace(rates: Sequence[float], *, second: float = 1.0, seed: int = 0) -> list[float]:
    """Moments where each of these rates holds for so many seconds, one after another."""
    draw, found = random.Random(seed), []
    for number, rate in enumerate(rates):
        now = number * second
        while rate > 0:
            now += draw.expovariate(rate)
            if now >= (number + 1) * second:
                break
            found.append(now)
    return found
