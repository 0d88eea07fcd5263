"""The most work in all, whoever does it."""

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.levels import most_worth
from dovetail.vocabulary import Allocation


def allocate(problem: Problem) -> Allocation:
    """max Σ over tasks m of rate(m) ÷ reference(m): steps of unlike models are counted in devices' worth, so that the
    answer does not depend on how long somebody's step is.

    >>> from dovetail.planning.share.policies import example
    >>> round(allocate(example()).value, 3)
    3.25
    """
    arrays = columns(problem)
    references = arrays.references()
    worths = arrays.worths(references)
    x = most_worth(arrays, worths=worths, floors=np.zeros(references.size))
    assert x is not None, "without floors, doing nothing is feasible"
    return arrays.allocation(x, value=float(worths @ x))
