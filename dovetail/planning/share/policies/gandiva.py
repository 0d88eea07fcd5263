"""A baseline after Gandiva: blind time slicing, with tasks paired at random and kept together while it pays."""

import hashlib
from collections import defaultdict

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.vocabulary import Allocation


def allocate(problem: Problem) -> Allocation:
    """share(u, j) = devices(j) ÷ (units · count(u)) for every unit u, a task alone or a pair, scaled to at most 1.

    Tasks are paired only where there are more than devices: neighbours in an order drawn from their names, kept where
    both together do more than in turns on some kind; on other kinds they take turns.

    >>> from dovetail.planning.share.policies import example
    >>> sum(len(share.groups) for share in allocate(example()).shares) >= 3
    True
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
