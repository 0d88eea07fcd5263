"""Finish-time fairness: nobody should end much later than with a cluster of their own of an equal part."""

from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import Raised, most_worth, raise_together
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation

_READS = ("steps", "age_seconds", "isolated_seconds", "weight")
_READ = attrgetter(*_READS)
_EQUAL = 1e-7
_ROUNDS = 50


def allocate(problem: Problem) -> Allocation:
    """min max over tasks m of ρ(m) = (age(m) + steps(m) ÷ rate(m)) ÷ (weight(m) · (isolated(m) + steps(m) ÷ equal(m))).

    equal(m) is the rate of m on an equal split of every kind, isolated(m) what its steps so far took there. For a given
    ρ the rates it asks for are fixed numbers, so the largest factor by which all of them can be exceeded is a linear
    program. Its duals say below which ρ nothing can be reached, which is asked next; these bounds rise to the least ρ
    in a few steps, as Newton's do. `value` is 1 ÷ ρ.

    >>> from dovetail.planning.share.policies import example
    >>> round(1 / allocate(example()).value, 3)
    1.042
    """
    arrays = columns(problem, alike=_READ)
    if not arrays.sizes.size:
        return arrays.allocation(np.zeros(0))
    steps, ages, isolated, weights = (arrays.of_members(attrgetter(name)) for name in _READS)
    equal = arrays.equal_split_rates()
    fair = weights * (isolated + steps / equal)
    rho = reached = _most_unfair(equal, steps, ages, fair)
    proven = 0.0
    x = np.zeros(arrays.options.size)
    for _ in range(_ROUNDS):
        needs = _needs(steps, ages, fair, rho)
        raised = raise_together(arrays, units=needs, spread=False)
        assert raised is not None, "without floors, doing nothing is feasible"
        now = _most_unfair(arrays.rates(raised.x), steps, ages, fair)
        if now <= reached or not x.any():
            x, reached = raised.x, now
        if raised.holding.any():
            # At its own age no rate is high enough for a task.
            least = max(_least(raised, needs, steps, ages, fair), float(np.max(ages / fair)) * (1 + 1e-9))
            proven = max(proven, least)
        else:  # Where there are too many groups for duals: from what was reached down, until nothing is gained.
            least = reached if reached < rho * (1 - _EQUAL) else rho
            # What a lower ρ′ asks for is at least ρ ÷ ρ′ times what ρ does, and no level exceeds the bound.
            proven = max(proven, rho / max(raised.bound, 1.0))
        if least >= reached * (1 - _EQUAL) and (raised.holding.any() or least == rho):
            break
        rho = least
    # Of all shares with this ρ those that do the most, in units of what is fair.
    floors = _needs(steps, ages, fair, reached) * (1 - _EQUAL)
    most = most_worth(arrays, worths=arrays.worths(equal), floors=floors)
    return arrays.allocation(x if most is None else most, value=1 / reached, bound=1 / min(proven, reached))


def _most_unfair(rates: Numbers, steps: Numbers, ages: Numbers, fair: Numbers) -> float:
    with np.errstate(divide="ignore"):
        return float(np.max((ages + steps / rates) / fair))


def _needs(steps: Numbers, ages: Numbers, fair: Numbers, rho: float) -> Numbers:
    """The rates with which every task ends by ρ times its fair time."""
    return steps / (rho * fair - ages)


def _least(raised: Raised, needs: Numbers, steps: Numbers, ages: Numbers, fair: Numbers) -> float:
    """The ρ at which the duals stop proving that it cannot be reached: with duals y (Σ y = 1) no level exceeds
    level ÷ Σ y·(needs at ρ ÷ needs now), so Σ y·(needs at ρ ÷ needs now) ≤ level must hold. By bisection."""
    held = raised.holding > 0
    weights = raised.holding[held] / raised.holding[held].sum() / needs[held]
    steps, ages, fair = steps[held], ages[held], fair[held]
    low = float(np.max(ages / fair))
    high = low + float(np.max(steps / fair)) / float(np.min(needs[held])) + 1.0
    while float(weights @ _needs(steps, ages, fair, high)) > raised.level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if float(weights @ _needs(steps, ages, fair, middle)) > raised.level:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return high
