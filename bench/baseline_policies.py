"""Baselines after AlloX and Gandiva, as policies: what others do, to be compared with.

AlloX (Le et al., EuroSys 2020) matches tasks with places in the devices' queues; Gandiva (Xiao et al., OSDI 2018)
slices time without knowing kinds, with tasks paired at random and kept together while it pays.
"""

import hashlib
from collections import defaultdict

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns, refuse_too_little_money
from dovetail.planning.solver.linear import LinearProgram, maximise
from dovetail.vocabulary import Allocation, InvalidWorkload


def allox(problem: Problem) -> Allocation:
    """min Σ k · steps(m) ÷ rate(m, j) over matchings of tasks m with places k from the end of the queues of kind j.

    The task in place k from the end keeps k tasks waiting, itself included, so the sum is that of completion times. A
    kind with n devices has n places of each number. The tasks at the heads of the queues get all of the time. For
    tasks that run on one device only, as in AlloX.
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


def gandiva(problem: Problem) -> Allocation:
    """share(u, j) = devices(j) ÷ (units · count(u)) for every unit u, a task alone or a pair, scaled to at most 1.

    Tasks are paired only where there are more than devices: neighbours in an order drawn from their names, kept where
    both together do more than in turns on some kind; on other kinds they take turns.
    """
    arrays = columns(problem, alike=lambda member: member.task)
    ways = _ways(arrays)
    units = _units(arrays, ways)
    x = np.zeros(arrays.options.size)
    for unit in units:
        _slice(arrays, ways, unit, len(units), x)
    spend = float(arrays.prices @ x)
    return arrays.allocation(x * min(1.0, float(arrays.capacity[-1]) / spend) if spend > 0 else x)


_Ways = dict[tuple[int, ...], dict[int, int]]


def _ways(arrays: Columns) -> _Ways:
    """For each task and each pair the column on each kind: on the fewest devices on which the first runs alone."""
    fewest = arrays.counts()
    found: _Ways = defaultdict(dict)
    for column, gang in enumerate(arrays.groups):
        if len(gang) <= 2 and arrays.draws[column] == fewest[gang[0]] == fewest[gang[-1]]:
            found[tuple(sorted(gang))].setdefault(int(arrays.kinds[column]), column)
    return found


def _units(arrays: Columns, ways: _Ways) -> list[tuple[int, ...]]:
    shuffled = sorted(range(len(arrays.members)), key=lambda group: _dice(arrays.members[group][0].task))
    if arrays.counts().sum() <= arrays.capacity[:-1].sum():
        return [(group,) for group in shuffled]
    units, open_ = [], dict.fromkeys(shuffled)
    while open_:
        first = next(iter(open_))
        del open_[first]
        partner = next(iter(open_), None)
        pair = tuple(sorted((first, partner))) if partner is not None else ()
        if partner is not None and pair in ways:
            del open_[partner]
            units.append(pair)
        else:
            units.append((first,))
    return units


def _slice(arrays: Columns, ways: _Ways, unit: tuple[int, ...], units: int, x: np.ndarray) -> None:
    """Give a unit its part of every kind, where a pair does not pay half of the time each."""
    count = arrays.counts()[unit[0]]
    parts = arrays.capacity[:-1] / (units * count)
    parts /= max(1.0, parts.sum())
    for kind, part in enumerate(parts.tolist()):
        if kind in ways.get(unit, {}):
            x[ways[unit][kind]] += part
        else:
            for group in unit:
                if kind in ways[(group,)]:
                    x[ways[(group,)][kind]] += part / len(unit)


def _dice(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
