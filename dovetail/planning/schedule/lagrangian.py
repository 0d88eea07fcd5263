"""A Lagrangian bound for objectives in which the ends of all tasks count, and the modes and starts that it suggests.

Lagrangian relaxation of the time-indexed program (Dyer and Wolsey 1990): let each device of kind k cost a rent λ_k(t)
at time t, and let every task choose for itself

  min over its modes m and starts S of   w · (S + seconds) + count ∫_S^{S+seconds} λ_k

Then Σ tasks' costs - Σ_k ∫ devices_k λ_k is at most the best Σ w · end, whatever λ ≥ 0. A gang's rent is split evenly
between its members. Rents are constant between the points of a grid, so a task's best start or end is one of them.
Where many want the same time its rent rises (subgradients with Polyak's step). The starts that tasks choose are not
yet a schedule, but an order for one.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import device_ends
from dovetail.planning.schedule.relaxation import Relaxed

_POINTS = 96
# What one turn may evaluate: points × modes. Larger tables have a coarser grid.
_EVALUATED = 600_000
_FEWEST_POINTS = 24
_ROUNDING = 1e-9

_Floats = npt.NDArray[np.float64]


def relax_ends(judge: Judge, *, horizon_seconds: float, known: float, turns: int) -> Relaxed:
    """The best bound of so many turns; `known` is the Σ weight × end of a schedule, `horizon_seconds` its length.

    >>> from dovetail.planning.schedule.table import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Objective, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=(Member(task="a", steps=10), Member(task="b", steps=20)))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))
    >>> found = relax_ends(Judge(table, Objective(name="mean")), horizon_seconds=30.0, known=40.0, turns=50)
    >>> 38 < found.bound <= 40
    True
    """
    return _Lagrangian(judge, horizon_seconds).settle(known, turns)


class _Lagrangian:
    def __init__(self, judge: Judge, horizon_seconds: float) -> None:
        table = judge.table
        self._needs = np.array(table.needs, float)
        entries = [
            (number, group, end)
            for number, mode in enumerate(table.modes)
            for group, end in zip(mode.groups, judge.ends[number], strict=True)
        ]
        kinds = [kind.name for kind in table.cluster.kinds]
        modes = [table.modes[number] for number, _, _ in entries]
        self._modes = np.array([number for number, _, _ in entries])
        self._groups = np.array([group for _, group, _ in entries])
        self._ends = np.array([end for _, _, end in entries])
        self._weights = np.array([table.groups[group].weight for _, group, _ in entries])
        self._kinds = np.array([kinds.index(mode.option.kind) for mode in modes])
        self._seconds = np.array([mode.seconds for mode in modes])
        self._counts = np.array([mode.option.count / len(mode.groups) for mode in modes])
        # Entries of a group lie together, so that each group's best is a slice's.
        order = np.argsort(self._groups, kind="stable")
        for name in ("_modes", "_groups", "_ends", "_weights", "_kinds", "_seconds", "_counts"):
            setattr(self, name, getattr(self, name)[order])
        self._first = np.searchsorted(self._groups, np.arange(len(self._needs)))
        points = max(_FEWEST_POINTS, min(_POINTS, _EVALUATED // max(1, len(entries))))
        self._grid = np.linspace(0.0, horizon_seconds, points + 1)
        self._room = _room(judge, kinds, self._grid)

    def settle(self, known: float, turns: int) -> Relaxed:
        rents = self._first_rents()
        best = Relaxed(bound=0.0, choices=())
        stretch, since = 1.0, 0
        for _ in range(turns):
            value, chosen, starts = self._answer(rents)
            if value > best.bound or not best.choices:
                pairs = zip(self._modes[chosen].tolist(), starts.tolist(), strict=True)
                best, since = Relaxed(bound=max(value, best.bound), choices=tuple(pairs)), 0
            else:
                since += 1
                stretch, since = (stretch / 2, 0) if since >= 5 else (stretch, since)
            asked = self._usage(chosen, starts) - self._room
            # Rents are per second: a cell's gradient is its surplus of device-seconds.
            square = float((asked * asked).sum())
            if square <= 0 or known - value <= 1e-6 * known:
                break
            rents = np.maximum(0.0, rents + stretch * (known - value) / square * asked)
        return dataclasses.replace(best, bound=max(0.0, best.bound * (1 - _ROUNDING)))

    def _first_rents(self) -> _Floats:
        """By Smith's rule on one machine that has everybody's speed, the rent is the weight still waiting, a device."""
        areas = self._seconds * self._counts
        least = np.minimum.reduceat(areas, self._first)
        weights = self._weights[self._first]
        order = np.argsort(least / np.maximum(weights, 1e-300), kind="stable")
        devices = max(1.0, float(self._room.sum()) / float(self._grid[-1]))
        until = np.cumsum((least * self._needs)[order]) / devices
        waiting = np.cumsum((weights * self._needs)[order][::-1])[::-1]
        middles = (self._grid[1:] + self._grid[:-1]) / 2
        rent_at = np.append(waiting, 0.0)[np.searchsorted(until, middles)] / devices
        return np.tile(rent_at, (len(self._room), 1))

    def _answer(self, rents: _Floats) -> tuple[float, npt.NDArray[np.int64], _Floats]:
        """The bound of these rents, each group's choice of an entry, and its start."""
        widths = np.diff(self._grid)
        paid = np.concatenate([np.zeros((len(rents), 1)), np.cumsum(rents * widths, axis=1)], axis=1)
        best = np.full(len(self._groups), np.inf)
        starts = np.zeros(len(self._groups))
        for kind in range(len(rents)):
            mine = np.flatnonzero(self._kinds == kind)
            if not len(mine):
                continue
            seconds = self._seconds[mine, None]
            early = np.broadcast_to(self._grid, (len(mine), len(self._grid)))
            late = np.maximum(0.0, self._grid - seconds)
            for begin in (early, late):
                rented = np.interp(begin + seconds, self._grid, paid[kind]) - np.interp(begin, self._grid, paid[kind])
                price = self._weights[mine, None] * (begin + self._ends[mine, None]) + self._counts[mine, None] * rented
                column = price.argmin(axis=1)
                rows = np.arange(len(mine))
                cheaper = price[rows, column] < best[mine]
                best[mine] = np.where(cheaper, price[rows, column], best[mine])
                starts[mine] = np.where(cheaper, begin[rows, column], starts[mine])
        least = np.minimum.reduceat(best, self._first)
        chosen = np.empty(len(self._needs), int)
        # From the back, so that of equals the first stays.
        for entry in np.flatnonzero(best == least[self._groups])[::-1]:
            chosen[self._groups[entry]] = entry
        value = float((least * self._needs).sum() - (rents * self._room).sum())
        return value, chosen, starts[chosen]

    def _usage(self, chosen: npt.NDArray[np.int64], starts: _Floats) -> _Floats:
        """The device-seconds that the choices take of each kind between the points."""
        usage = np.zeros_like(self._room)
        seconds, weight = self._seconds[chosen, None], (self._counts[chosen] * self._needs)[:, None]
        begin, end = starts[:, None], starts[:, None] + seconds
        taken = weight * np.clip(np.minimum(end, self._grid[1:]) - np.maximum(begin, self._grid[:-1]), 0.0, None)
        np.add.at(usage, self._kinds[chosen], taken)
        return usage


def _room(judge: Judge, kinds: Sequence[str], grid: _Floats) -> _Floats:
    """The device-seconds of each kind that are free of what runs now, between the points."""
    free = device_ends(judge.table)
    rows = []
    for kind in kinds:
        until = np.array([until for node in free[kind] for until, _ in node])
        left = np.clip(grid[None, 1:] - np.maximum(grid[None, :-1], until[:, None]), 0.0, None)
        rows.append(left.sum(axis=0) if len(until) else np.zeros(len(grid) - 1))
    return np.array(rows)
