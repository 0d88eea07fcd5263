"""The shortest task first."""

from dovetail.planning.problem import Problem
from dovetail.planning.share.policies.ordered import serve
from dovetail.vocabulary import Allocation


def allocate(problem: Problem) -> Allocation:
    """share(m) = 1 on the fastest kind that is still free, for tasks in the order of steps(m) ÷ best rate(m).

    >>> from dovetail.planning.share.policies import example
    >>> served = allocate(example())
    >>> [(share.option.kind, served.groups[share.groups[0]]) for share in served.shares]
    [('fast', ('b',)), ('slow', ('a',)), ('slow', ('c',))]
    """
    return serve(problem, order=lambda member, rate: (member.steps / rate, -member.age_seconds))
