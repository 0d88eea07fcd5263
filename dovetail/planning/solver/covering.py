"""Covering programs: the least share of every pool, or the least money, with which all needs are covered. On GLOP.

Answers carry their own proof, rebuilt from the duals, so that they hold whatever the solver's tolerance is. What GLOP
does not solve to its end proves nothing and has no amounts.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.planning.solver.door import load


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A variable of a covering program: what one unit of it covers, and what it draws from each pool."""

    covers: Mapping[int, int]
    draws: Mapping[int, float]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The least share of every pool with which all needs can be covered: `ratio` is proven, whatever the solver's
    tolerance; `amounts` are the columns' values in the solution found, and empty where none was."""

    ratio: float
    amounts: tuple[float, ...]


def cover(columns: Sequence[Column], *, needs: Sequence[int], pools: Sequence[float]) -> Cover:
    """Minimise s over x ≥ 0 with Σ covers·x ≥ needs and Σ draws·x ≤ s·pools.

    The ratio is rebuilt from the dual: prices of pools with Σ price·pool = 1 and worths of needs such that no column
    covers more worth than it draws prove s ≥ Σ worth·need.

    >>> two_ways = [Column(covers={0: 1}, draws={0: 2.0}), Column(covers={0: 1}, draws={1: 6.0})]
    >>> round(cover(two_ways, needs=[10], pools=[10.0, 10.0]).ratio, 6)
    1.5
    """
    linear = load("ortools.linear_solver.pywraplp").Solver.CreateSolver("GLOP")
    infinity = linear.infinity()
    share = linear.NumVar(0.0, infinity, "")
    need_rows = [linear.Constraint(float(need), infinity) for need in needs]
    pool_rows = [linear.Constraint(-infinity, 0.0) for _ in pools]
    for row, size in zip(pool_rows, pools, strict=True):
        row.SetCoefficient(share, -size)
    variables = [_variable(linear, column, need_rows, pool_rows) for column in columns]
    linear.Minimize(share)
    if linear.Solve() != linear.OPTIMAL:
        return Cover(ratio=0.0, amounts=())
    worths = [max(0.0, row.dual_value()) for row in need_rows]
    prices = [max(0.0, -row.dual_value()) for row in pool_rows]
    amounts = tuple(variable.solution_value() for variable in variables)
    return Cover(ratio=_proven(columns, needs, pools, worths, prices), amounts=amounts)


def _variable(linear: Any, column: Column, need_rows: Sequence[Any], pool_rows: Sequence[Any]) -> Any:
    variable = linear.NumVar(0.0, linear.infinity(), "")
    for need, times in column.covers.items():
        need_rows[need].SetCoefficient(variable, float(times))
    for pool, amount in column.draws.items():
        pool_rows[pool].SetCoefficient(variable, amount)
    return variable


def _proven(
    columns: Iterable[Column],
    needs: Sequence[int],
    pools: Sequence[float],
    worths: Sequence[float],
    prices: Sequence[float],
) -> float:
    """What the dual proves once rounding is taken out of it: worths are lowered until every column is honest."""
    total = sum(price * size for price, size in zip(prices, pools, strict=True))
    honest = 1.0
    for column in columns:
        worth = sum(worths[need] * times for need, times in column.covers.items())
        price = sum(prices[pool] * amount for pool, amount in column.draws.items())
        if worth > price:
            honest = min(honest, price / worth)
    value = sum(worth * need for worth, need in zip(worths, needs, strict=True))
    return honest * value / total if total > 0 else 0.0


def cheapest(
    columns: Sequence[Column], *, prices: Sequence[float], needs: Sequence[int], pools: Sequence[float]
) -> Cover:
    """Minimise Σ price·x over x ≥ 0 with Σ covers·x ≥ needs and Σ draws·x ≤ pools: the `ratio` is that sum, proven like
    `cover`'s, and infinite where there is no such x.

    >>> two_ways = [Column(covers={0: 1}, draws={0: 2.0}), Column(covers={0: 1}, draws={1: 6.0})]
    >>> round(cheapest(two_ways, prices=[3.0, 1.0], needs=[10], pools=[100.0, 30.0]).ratio, 6)
    20.0
    """
    linear = load("ortools.linear_solver.pywraplp").Solver.CreateSolver("GLOP")
    infinity = linear.infinity()
    need_rows = [linear.Constraint(float(need), infinity) for need in needs]
    pool_rows = [linear.Constraint(-infinity, size) for size in pools]
    variables = [_variable(linear, column, need_rows, pool_rows) for column in columns]
    objective = linear.Objective()
    for variable, price in zip(variables, prices, strict=True):
        objective.SetCoefficient(variable, price)
    objective.SetMinimization()
    status = linear.Solve()
    if status != linear.OPTIMAL:
        return Cover(ratio=math.inf if status == linear.INFEASIBLE else 0.0, amounts=())
    worths = [max(0.0, row.dual_value()) for row in need_rows]
    rents = [max(0.0, -row.dual_value()) for row in pool_rows]
    honest = 1.0
    for column, price in zip(columns, prices, strict=True):
        worth = sum(worths[need] * times for need, times in column.covers.items())
        paid = price + sum(rents[pool] * amount for pool, amount in column.draws.items())
        if worth > paid:
            honest = min(honest, paid / worth)
    value = honest * sum(worth * need for worth, need in zip(worths, needs, strict=True))
    value -= sum(rent * size for rent, size in zip(rents, pools, strict=True))
    return Cover(ratio=max(0.0, value), amounts=tuple(variable.solution_value() for variable in variables))
