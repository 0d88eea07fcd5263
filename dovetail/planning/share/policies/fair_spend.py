"""The fairest shares, for the least money they can be had for."""

from operator import attrgetter

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import raise_together
from dovetail.planning.share.policies.spend import refuse_without_prices
from dovetail.vocabulary import Allocation

_WEIGHT = attrgetter("weight")


def allocate(problem: Problem) -> Allocation:
    """max min over tasks m of rate(m) ÷ (weight(m) · reference(m)), then min Σ share(o) · spend(o) over the options o.

    Max-min fairness gives what the worst off leave to whoever does the most with it; here it stays idle, and among the
    shares that are as fair the cheapest are chosen. With prices of now tasks move to where they are low
    as far as fairness leaves a choice.

    >>> from dovetail.planning.share.policies import POLICIES, example
    >>> from dovetail.planning.share.policies.fair_spend import allocate
    >>> round(allocate(example()).value - POLICIES["max_min_fairness"](example()).value, 6)
    0.0
    """
    arrays = columns(problem, alike=_WEIGHT)
    refuse_without_prices(arrays)
    units = arrays.references() * arrays.of_members(_WEIGHT)
    raised = raise_together(arrays, units=units, then=-arrays.prices)
    assert raised is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(raised.x, value=raised.level, bound=raised.bound, fills=False)
