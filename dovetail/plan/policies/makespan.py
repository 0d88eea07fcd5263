"""The shortest makespan, as one linear program."""

from operator import attrgetter

from dovetail.plan.levels import raise_together
from dovetail.plan.problem import Problem
from dovetail.plan.shares import columns
from dovetail.vocabulary import Allocation

_STEPS = attrgetter("steps")


def allocate(problem: Problem) -> Allocation:
    """min T with rate(m) ≥ steps(m) ÷ T for every task m; with s = 1/T: max s with rate(m) ÷ steps(m) ≥ s.

    `value` is s, so 1 ÷ value is the makespan if all shares are kept to the end.

    >>> from dovetail.plan.policies import example
    >>> round(1 / allocate(example()).value)
    800
    """
    arrays = columns(problem, alike=_STEPS)
    # In hours, so that the level is of the order of one, which is what a solver's tolerances are made for.
    steps = arrays.of_members(_STEPS)
    raised = raise_together(arrays, units=steps / 3600)
    assert raised is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(raised.x, value=raised.level / 3600, bound=raised.bound / 3600)
