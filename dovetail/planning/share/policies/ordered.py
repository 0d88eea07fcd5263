"""What policies that serve tasks one after another share: each in turn takes the best that is left, whole."""

from collections.abc import Callable

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns, refuse_too_little_money
from dovetail.vocabulary import Allocation, Member


def serve(problem: Problem, *, order: Callable[[Member, float], tuple[float, ...]]) -> Allocation:
    """Serve tasks in the order of `order(task, its best rate alone)`: each takes all of the time of the fastest option
    whose devices are still free; of equals, who came first, and the kind of which the most is free: whoever cannot tell
    kinds apart is not to learn from how they are listed. Nobody waits for devices that only a later one fits.

    >>> from dovetail.planning.share.policies import example
    >>> served = serve(example(), order=lambda member, rate: (member.steps,))
    >>> [(share.option.kind, served.groups[share.groups[0]]) for share in served.shares]
    [('slow', ('a',)), ('slow', ('b',)), ('fast', ('c',))]
    """
    arrays = columns(problem, alike=lambda member: member.task)
    alone = np.flatnonzero(arrays.single)
    group_of = arrays.entry_group[np.isin(arrays.entry_column, alone)]
    rates = arrays.entry_rate[np.isin(arrays.entry_column, alone)]
    ways: list[list[tuple[float, int]]] = [[] for _ in arrays.members]
    for column, group, rate in zip(alone.tolist(), group_of.tolist(), rates.tolist(), strict=True):
        ways[group].append((-rate, column))

    def rank(group: int) -> tuple[float, ...]:
        (member,) = arrays.members[group]
        return *order(member, -min(ways[group])[0]), member.place

    def taste(way: tuple[float, int]) -> tuple[float, float, int]:
        slowness, column = way
        kind = arrays.kinds[column]
        return slowness, -float(free[kind] / arrays.capacity[kind]), column

    turns = sorted(range(len(ways)), key=rank)
    free = arrays.capacity.copy()
    x = np.zeros(arrays.options.size)
    for group in turns:
        for _, column in sorted(ways[group], key=taste):
            kind, draws, price = arrays.kinds[column], arrays.draws[column], arrays.prices[column]
            if draws <= free[kind] and price <= free[-1]:
                free[kind] -= draws
                free[-1] -= price
                x[column] = 1.0
                break
    if arrays.members and not x.any():
        refuse_too_little_money(problem)
    return arrays.allocation(x)
