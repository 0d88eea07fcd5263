"""Weighted max-min fairness over effective throughput: least attained service, aware of kinds."""

from operator import attrgetter

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import raise_together
from dovetail.vocabulary import Allocation

_WEIGHT = attrgetter("weight")


def allocate(problem: Problem) -> Allocation:
    """max min over tasks m of rate(m) ÷ (weight(m) · reference(m)), then the greatest sum of the same.

    rate(m) = Σ share × rate over the options that run m; reference(m) = Σ over kinds of (its devices ÷ all devices) ×
    (best rate of m per device there), what one device of the average kind gives. For tasks of one fixed count this is
    Gavel's count·thr(X) ÷ (w·thr(X_prop)); where counts are free it is the same measure, in devices' worth.

    >>> from dovetail.planning.share.policies import example
    >>> allocation = allocate(example())
    >>> round(allocation.value, 4)
    1.0
    """
    arrays = columns(problem, alike=_WEIGHT)
    units = arrays.references() * arrays.of_members(_WEIGHT)
    raised = raise_together(arrays, units=units)
    assert raised is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(raised.x, value=raised.level, bound=raised.bound)
