"""A cluster of one's own for everybody: an equal part of every kind."""

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.solver.linear import Numbers
from dovetail.vocabulary import Allocation


def allocate(problem: Problem) -> Allocation:
    """share(m, j) = devices(j) ÷ (tasks · count(m)) for every kind j that m runs on, scaled down to at most 1 in all.

    >>> from dovetail.planning.share.policies import example
    >>> [round(share.share, 3) for share in allocate(example()).shares]
    [0.667, 1.333, 0.333, 0.667]
    """
    arrays = columns(problem)
    return arrays.allocation(split(arrays, parts=np.ones(arrays.sizes.size)))


def split(arrays: Columns, *, parts: Numbers) -> Numbers:
    """Give a task of each group its part of every kind's devices, on the fewest devices on which it runs alone.

    >>> from dovetail.planning.share.policies import example
    >>> arrays = columns(example())
    >>> split(arrays, parts=np.ones(2)).round(2).tolist()[:2]
    [0.67, 1.33]
    """
    alone = arrays.single[arrays.entry_column]
    group, column = arrays.entry_group[alone], arrays.entry_column[alone]
    fewest = arrays.draws[column] == arrays.counts()[group]
    group, column = group[fewest], column[fewest]
    kind = arrays.kinds[column]
    shares = (parts / (parts @ arrays.sizes))[group] * arrays.capacity[kind] / arrays.draws[column]
    # Two techniques on the same kind are two ways of using the same part, which is split between them.
    place = group * arrays.capacity.size + kind
    shares /= np.bincount(place)[place]
    busy = np.bincount(group, shares, minlength=arrays.sizes.size)
    x = np.zeros(arrays.options.size)
    x[column] = shares * (arrays.sizes / np.maximum(1.0, busy))[group]
    spend = float(arrays.prices @ x)
    return x * min(1.0, float(arrays.capacity[-1]) / spend) if spend > 0 else x
