"""Policies that take tasks for one where their rates are nearly the same, on a grid, with a proven limit to the error.

A task's rates count in units of its own, u(m): what an average device gives it, or its steps. Rates in these units are
rounded to the middle of cells whose edges are a factor g apart; tasks with the same cells everywhere become one family.
Feasible shares do not depend on rates, so shares x″ of the rounded problem are shares of the true one. What they lose:

  A rounded rate is within √g of the true one, both ways; so are what a policy divides it by, if that is made of rates
  (reference, best rate for the money), and what it does not make of rates is left as it is. So for the same shares the
  rounded objective V″ and the true V are within g: V ÷ g ≤ V″ ≤ g·V. With x* the true optimum,

    V(x″) ≥ V″(x″) ÷ g ≥ V″(x*) ÷ g ≥ V(x*) ÷ g²,

  because x″ is optimal for V″. With g = √(1 + error) nothing better exists than (1 + error) times what is had.

`value` is V″(x″) ÷ g, which x″ reaches or exceeds, and `bound` is g times the bound of V″, so the gap states the error.
For lexicographic policies this holds of the first level.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import Columns, columns
from dovetail.planning.share.policies import POLICIES, Policy
from dovetail.vocabulary import Allocation, Family, InvalidWorkload, Member, Option, Share, TaskId

ERROR = 0.05
_STEPS = attrgetter("steps")
# What every task is given to do where rates are counted in its own steps.
_SAME_STEPS = 1_000_000

_Way = tuple[int, int]
"""A kind, by its number, and a count."""


def coarse(policy: Policy, *, error: float = ERROR, by_steps: bool = False) -> Policy:
    """The policy, told rates on a grid such that its objective is at most `error` below the best; `by_steps` for
    policies that divide a task's rate by its steps. For policies with an objective and without floors (no deadlines),
    and for tasks that run alone.
    """
    step = math.sqrt(1 + error)

    def allocate(problem: Problem) -> Allocation:
        arrays = columns(problem, alike=_STEPS if by_steps else None)
        _refuse_gangs(arrays)
        units = arrays.of_members(_STEPS) / _SAME_STEPS if by_steps else arrays.references()
        ways = _ways(arrays)
        cells = _cells(arrays, ways, units, step)
        merged = _merged(problem, arrays, cells, step, by_steps=by_steps)
        return _expanded(policy(merged), arrays, ways, step)

    return allocate


def _refuse_gangs(arrays: Columns) -> None:
    if not arrays.single.all():
        gang = arrays.problem.options[int(arrays.options[np.flatnonzero(~arrays.single)[0]])]
        raise InvalidWorkload(
            f"a coarse policy must have tasks that run alone; {' and '.join(map(repr, gang.families))} have an option "
            "together. Take such options out, or choose the exact policy."
        )


def _ways(arrays: Columns) -> list[dict[_Way, int]]:
    """For each group its fastest column on each kind and count."""
    rates = np.zeros(arrays.options.size)
    rates[arrays.entry_column] = arrays.entry_rate
    found: list[dict[_Way, int]] = [{} for _ in arrays.members]
    kinds, draws = arrays.kinds.tolist(), arrays.draws.astype(int).tolist()
    for column, group in zip(arrays.entry_column.tolist(), arrays.entry_group.tolist(), strict=True):
        best = found[group].setdefault((kinds[column], draws[column]), column)
        if rates[column] > rates[best]:
            found[group][kinds[column], draws[column]] = column
    return found


_Cell = tuple[tuple[_Way, int], ...]


def _cells(arrays: Columns, ways: list[dict[_Way, int]], units: np.ndarray, step: float) -> dict[_Cell, list[int]]:
    """The groups of each cell: its ways, and on which stretch of the grid the rate is in each."""
    rates = np.zeros(arrays.options.size)
    rates[arrays.entry_column] = arrays.entry_rate / units[arrays.entry_group]
    stretch = np.floor(np.log(rates, out=np.zeros_like(rates), where=rates > 0) / math.log(step)).astype(int).tolist()
    found: dict[_Cell, list[int]] = defaultdict(list)
    for group, mine in enumerate(ways):
        found[tuple(sorted((way, stretch[column]) for way, column in mine.items()))].append(group)
    return found


def _merged(
    problem: Problem, arrays: Columns, cells: dict[_Cell, list[int]], step: float, *, by_steps: bool
) -> Problem:
    told: Callable[[Member], Member] = _with_same_steps if by_steps else _unchanged
    families, options = [], []
    for number, (cell, groups) in enumerate(cells.items()):
        name = f"cell {number}"
        families.append(
            Family(name=name, members=tuple([told(member) for group in groups for member in arrays.members[group]]))
        )
        for (kind, count), stretch in cell:
            seconds = step ** -(stretch + 0.5)
            options.append(
                Option(
                    families=(name,),
                    technique="resident",
                    kind=problem.cluster.kinds[kind].name,
                    count=count,
                    step_seconds=(seconds,),
                    measured=False,
                )
            )
    return dataclasses.replace(problem, families=tuple(families), options=tuple(options))


def _unchanged(member: Member) -> Member:
    return member


def _with_same_steps(member: Member) -> Member:
    return dataclasses.replace(member, steps=_SAME_STEPS)


def _expanded(found: Allocation, arrays: Columns, ways: list[dict[_Way, int]], step: float) -> Allocation:
    """The shares of the true options: each task of a merged group has the same part of its time."""
    group_of = {member.task: group for group, members in enumerate(arrays.members) for member in members}
    kinds = {kind.name: number for number, kind in enumerate(arrays.problem.cluster.kinds)}
    groups: list[tuple[TaskId, ...]] = []
    parts: list[list[tuple[int, int]]] = []
    for tasks in found.groups:
        split: dict[int, list[TaskId]] = defaultdict(list)
        for task in tasks:
            split[group_of[task]].append(task)
        parts.append([(group, len(groups) + place) for place, group in enumerate(split)])
        groups += [tuple(mine) for mine in split.values()]
    shares = []
    for share in found.shares:
        (merged,) = share.groups
        way = (kinds[share.option.kind], share.option.count)
        for group, place in parts[merged]:
            option = arrays.problem.options[int(arrays.options[ways[group][way]])]
            part = share.share * len(groups[place]) / len(found.groups[merged])
            shares.append(Share(option=option, share=part, groups=(place,)))
    return dataclasses.replace(
        found, shares=tuple(shares), groups=tuple(groups), value=found.value / step, bound=found.bound * step
    )


#: Those policies that can take nearly equal tasks for one, 5% from the optimum at most.
COARSE: dict[str, Policy] = {
    name: coarse(POLICIES[name], by_steps=name in ("completions", "makespan"))
    for name in (
        "completions",
        "hierarchical",
        "makespan",
        "max_min_fairness",
        "spend",
        "throughput",
        "water_filling",
    )
}
