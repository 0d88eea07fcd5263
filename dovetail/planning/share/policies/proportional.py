"""Devices in proportion to what tasks ask for."""

from operator import attrgetter

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.policies.isolated import split
from dovetail.vocabulary import Allocation

_WEIGHT = attrgetter("weight")


def allocate(problem: Problem) -> Allocation:
    """share(m, j) = weight(m) · devices(j) ÷ Σ weight·count for every kind j that m runs on, scaled to at most 1.

    >>> from dovetail.planning.share.policies import example
    >>> [round(share.share, 3) for share in allocate(example()).shares]
    [0.667, 1.333, 0.333, 0.667]
    """
    arrays = columns(problem, alike=_WEIGHT)
    return arrays.allocation(split(arrays, parts=arrays.of_members(_WEIGHT) * arrays.counts()))
