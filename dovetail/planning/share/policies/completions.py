"""The most completions a second: what is nearly done and runs well goes first."""

from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import most_worth
from dovetail.vocabulary import Allocation

_STEPS = attrgetter("steps")


def allocate(problem: Problem) -> Allocation:
    """max Σ over tasks m of rate(m) ÷ steps(m): shortest first, where how short a task is depends on where it runs.

    >>> from dovetail.planning.share.policies import example
    >>> round(1 / allocate(example()).value, 1)
    166.7
    """
    arrays = columns(problem, alike=_STEPS)
    steps = arrays.of_members(_STEPS)
    # In hours, for a solver's tolerances.
    worths = arrays.worths(steps / 3600)
    x = most_worth(arrays, worths=worths, floors=np.zeros(steps.size))
    assert x is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(x, value=float(worths @ x) / 3600)
