"""A baseline after AlloX: match tasks with places in the devices' queues so that the mean completion is least."""

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns, refuse_too_little_money
from dovetail.planning.solver.linear import LinearProgram, maximise
from dovetail.vocabulary import Allocation, InvalidWorkload


def allocate(problem: Problem) -> Allocation:
    """min Σ k · steps(m) ÷ rate(m, j) over matchings of tasks m with places k from the end of the queues of kind j.

    The task in place k from the end keeps k tasks waiting, itself included, so the sum is that of completion times. A
    kind with n devices has n places of each number. The tasks at the heads of the queues get all of the time. For
    tasks that run on one device only, as in AlloX.

    >>> from dovetail.planning.share.policies import example
    >>> served = allocate(example())
    >>> [(share.option.kind, served.groups[share.groups[0]]) for share in served.shares]
    [('fast', ('b',)), ('slow', ('c',))]
    """
    arrays = columns(problem, alike=lambda member: member.task)
    if not arrays.members:
        return arrays.allocation(np.zeros(0))
    wide = [arrays.members[group][0].task for group in np.flatnonzero(arrays.counts() != 1).tolist()]
    if wide:
        raise InvalidWorkload(f"policy 'allox' must have tasks that run on one device, {wide[0]!r} does not.")
    best = _best_columns(arrays)
    kind, place = _places(arrays)
    found = _match(arrays, best, kind, place)
    x = np.zeros(arrays.options.size)
    money = float(arrays.capacity[-1])
    for number in range(arrays.capacity.size - 1):
        tasks, slots = np.nonzero(found[:, kind == number])
        heads = np.argsort(-place[kind == number][slots], kind="stable")[: int(arrays.capacity[number])]
        for column in best[tasks[heads], number].tolist():
            if arrays.prices[column] <= money:
                money -= float(arrays.prices[column])
                x[column] = 1.0
    if arrays.members and not x.any():
        refuse_too_little_money(problem)
    return arrays.allocation(x)


def _best_columns(arrays: Columns) -> np.ndarray:
    """For each task and kind its fastest column alone on one device, or −1."""
    best = np.full((len(arrays.members), arrays.capacity.size - 1), -1)
    rates = np.zeros(best.shape)
    for column, group, rate in zip(arrays.entry_column, arrays.entry_group, arrays.entry_rate, strict=True):
        kind = arrays.kinds[column]
        if arrays.single[column] and arrays.draws[column] == 1 and rate > rates[group, kind]:
            best[group, kind], rates[group, kind] = column, rate
    return best


def _places(arrays: Columns) -> tuple[np.ndarray, np.ndarray]:
    """The kind and the number from the end of every place that a task may be matched with."""
    depth = [int(np.ceil(len(arrays.members) / devices)) if devices else 0 for devices in arrays.capacity[:-1]]
    return np.repeat(np.arange(len(depth)), depth), np.concatenate([np.arange(1, d + 1) for d in depth])


def _match(arrays: Columns, best: np.ndarray, kind: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Which task has which place: a transport program, whose vertices are whole."""
    rate_of_column = np.zeros(arrays.options.size)
    rate_of_column[arrays.entry_column] = arrays.entry_rate
    steps = arrays.of_members(lambda member: member.steps)
    task, slot = np.nonzero(best[:, kind] >= 0)
    seconds = steps[task] / rate_of_column[best[task, kind[slot]]]
    ways = np.arange(task.size)
    found = maximise(
        LinearProgram(
            objective=-place[slot] * seconds / seconds.mean(),
            rows=np.concatenate([task, steps.size + slot]),
            columns=np.concatenate([ways, ways]),
            values=np.ones(2 * task.size),
            lower=np.concatenate([np.ones(steps.size), np.full(kind.size, -np.inf)]),
            upper=np.concatenate([np.ones(steps.size), arrays.capacity[kind]]),
        )
    )
    assert found is not None, "there are places enough for all tasks on any kind that all run on"
    matched = np.zeros((steps.size, kind.size), bool)
    matched[task, slot] = found.x > 0.5
    return matched
