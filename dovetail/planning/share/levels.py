"""Raising many tasks together: the one linear program behind every policy that favours the worst off.

Maximise t with rate_g ÷ unit_g ≥ t for every group g that is lifted and ≥ floor_g for all, where rate is the sum of
share × rate, a task runs at most all of the time, and no pool gives more than it has. Knows arrays, not policies.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from dovetail.planning.share.columns import Columns
from dovetail.planning.share.decompose import decompose
from dovetail.planning.solver.linear import LinearProgram, Numbers, maximise, maximise_whole

# From so many groups on, when no gang ties them together, prices for the kinds decide faster than simplex.
MANY_GROUPS = 1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Raised:
    """What raising comes to: the level that all lifted groups reach, the most it could be, and how much of what holds
    it down is due to each group (the duals of their rows, which sum to 1; zeros where they are not known)."""

    x: Numbers
    level: float
    bound: float
    holding: Numbers


def raise_together(
    columns: Columns,
    *,
    units: Numbers,
    lifted: NDArray[np.bool_] | None = None,
    floors: Numbers | None = None,
    spread: bool = True,
    then: Numbers | None = None,
) -> Raised | None:
    """Raise the lifted groups (all, if not given) together, or None where the floors cannot be kept.

    With `spread`, what the worst off leave is given where it makes the most units of rate, which is Pareto optimal, or
    with `then` where `then·x` is largest. Very many groups that no gang ties together are raised by prices, which stops
    at the level: what is left over is for the rounds to fill.

    >>> from dovetail.planning.share.policies import example
    >>> from dovetail.planning.share.columns import columns
    >>> arrays = columns(example())
    >>> round(raise_together(arrays, units=arrays.references()).level, 6)
    1.0
    """
    groups = columns.sizes.size
    if groups == 0:
        return Raised(x=np.zeros(0), level=0.0, bound=0.0, holding=np.zeros(0))
    plain = lifted is None and floors is None and then is None
    if plain and spread and (best := _each_its_best(columns, units)) is not None:
        return best
    if plain and _is_separable(columns):
        return _raised_by_prices(columns, units)
    lifted = np.ones(groups, bool) if lifted is None else lifted
    program = _program(columns, units, lifted, np.zeros(groups) if floors is None else floors)
    worths = columns.worths(units) if then is None else then
    found = maximise(program, then=np.append(worths, 0.0) if spread else None)
    if found is None:
        return None
    holding = np.where(lifted, np.abs(found.duals[-groups:]), 0.0)
    return Raised(x=found.x[:-1], level=found.value, bound=found.value, holding=holding)


def most_worth(columns: Columns, *, worths: Numbers, floors: Numbers) -> Numbers | None:
    """The x of the greatest worth with which every group keeps its floor of steps per second, or None where none does.

    >>> from dovetail.planning.share.policies import example
    >>> from dovetail.planning.share.columns import columns
    >>> arrays = columns(example())
    >>> most_worth(arrays, worths=np.ones(arrays.options.size), floors=np.full(arrays.sizes.size, 100.0)) is None
    True
    """
    groups = columns.sizes.size
    if groups == 0:
        return np.zeros(0)
    units = columns.references()
    program = _program(columns, units, np.zeros(groups, bool), floors / units)
    found = maximise(dataclasses.replace(program, objective=np.append(worths, 0.0)))
    return None if found is None else found.x[:-1]


def run_all(columns: Columns, *, usable: NDArray[np.bool_]) -> Numbers | None:
    """An x in whole numbers in which every task runs all of the time, with usable columns only, or None.

    >>> from dovetail.planning.share.policies import example
    >>> from dovetail.planning.share.columns import columns
    >>> arrays = columns(example())
    >>> float(run_all(arrays, usable=arrays.single).sum())
    3.0
    """
    groups, kinds = columns.sizes.size, columns.capacity.size - 1
    used = np.flatnonzero(usable)
    place = np.full(usable.size, -1)
    place[used] = np.arange(used.size)
    entries = usable[columns.entry_column]
    limited = np.isfinite(columns.capacity[-1])
    spending = np.arange(used.size) if limited else np.arange(0)
    program = LinearProgram(
        # How many tasks run, which is to be all of them.
        objective=np.bincount(columns.entry_column, columns.entry_tasks, minlength=usable.size)[used].astype(
            np.float64
        ),
        rows=np.concatenate(
            [columns.entry_group[entries], groups + columns.kinds[used], np.full(spending.size, groups + kinds)]
        ),
        columns=np.concatenate([place[columns.entry_column[entries]], np.arange(used.size), spending]),
        values=np.concatenate([columns.entry_tasks[entries], columns.draws[used], columns.prices[used][spending]]),
        lower=np.full(groups + kinds + 1, -np.inf),
        upper=np.concatenate([columns.sizes, columns.capacity]),
    )
    found = maximise_whole(program, most=np.full(used.size, columns.sizes.max()))
    if found is None or program.objective @ found < columns.sizes.sum():
        return None
    x = np.zeros(usable.size)
    x[used] = found
    return x


def _each_its_best(columns: Columns, units: Numbers) -> Raised | None:
    """The best of everybody, where all can have it at once: on a cluster that is not full there is nothing to trade."""
    rates = columns.entry_rate / columns.entry_tasks
    best = np.zeros(columns.sizes.size)
    np.maximum.at(best, columns.entry_group, rates)
    first = np.unique(columns.entry_group[rates >= best[columns.entry_group]], return_index=True)[1]
    chosen = columns.entry_column[np.flatnonzero(rates >= best[columns.entry_group])[first]]
    x = np.zeros(columns.options.size)
    x[chosen] = columns.sizes
    used = np.bincount(columns.kinds, columns.draws * x, minlength=columns.capacity.size - 1)
    if not columns.single[chosen].all() or (used > columns.capacity[:-1]).any():
        return None
    if columns.prices @ x > columns.capacity[-1]:
        return None
    level = float((best / units).min())
    return Raised(x=x, level=level, bound=level, holding=np.zeros(units.size))


def _is_separable(columns: Columns) -> bool:
    return columns.sizes.size >= MANY_GROUPS and bool(columns.single.all())


def _raised_by_prices(columns: Columns, units: Numbers) -> Raised:
    found = decompose(
        groups=columns.entry_group,
        kinds=columns.kinds,
        rates=columns.entry_rate / units[columns.entry_group],
        draws=columns.draws,
        spends=columns.prices,
        sizes=columns.sizes,
        capacity=columns.capacity,
    )
    return Raised(x=found.x, level=found.level, bound=found.bound, holding=np.zeros(units.size))


def _program(columns: Columns, units: Numbers, lifted: NDArray[np.bool_], floors: Numbers) -> LinearProgram:
    """Rows: the time of each group's tasks, the pools, and what each group must reach; the last column is t."""
    groups, size, kinds = columns.sizes.size, columns.options.size, columns.capacity.size - 1
    every = np.arange(size)
    reached = groups + columns.capacity.size + np.arange(groups)
    limited = np.isfinite(columns.capacity[-1])
    spending = every if limited else every[:0]
    raising = np.flatnonzero(lifted)
    per_unit = columns.entry_rate / (columns.sizes * units)[columns.entry_group]
    return LinearProgram(
        objective=np.append(np.zeros(size), 1.0),
        rows=np.concatenate(
            [
                columns.entry_group,
                groups + columns.kinds,
                np.full(spending.size, groups + kinds),
                reached[columns.entry_group],
                reached[raising],
            ]
        ),
        columns=np.concatenate(
            [columns.entry_column, every, spending, columns.entry_column, np.full(raising.size, size)]
        ),
        values=np.concatenate(
            [columns.entry_tasks, columns.draws, columns.prices[spending], per_unit, np.full(raising.size, -1.0)]
        ),
        lower=np.concatenate([np.full(groups + kinds + 1, -np.inf), floors]),
        upper=np.concatenate([columns.sizes, columns.capacity, np.full(groups, np.inf)]),
    )
