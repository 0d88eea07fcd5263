"""When so many tasks can have ended at the earliest, whichever they are; without a solver."""

import math

from dovetail.planning.schedule.joint.modes import Table

_CHANGES = 8
_HALVINGS = 8
_ROUNDING = 1e-9


def earliest(table: Table, results: int) -> float:
    """Seconds before which no schedule has ended so many of the tasks.

    Any prices of the kinds' devices prove one: each task costs at least its part of the cheapest mode it is in, so
    the `results` cheapest tasks together are worth no more than all devices until then. Modes that end later do not
    count, so a target that this refutes, with them left out, is refuted.

    >>> from dovetail.planning.schedule.joint.modes import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))
    >>> [round(earliest(table, results), 3) for results in (0, 1, 3)]
    [0.0, 10.0, 15.0]
    """
    if results <= 0:
        return 0.0
    return _StartRanks(table).bound(results)


class _StartRanks:
    def __init__(self, table: Table) -> None:
        self._devices = {kind.name: count for kind, count in table.cluster.counts() if count}
        self._needs = table.needs
        self._ways: list[list[tuple[float, str, float]]] = [[] for _ in self._needs]
        for mode in table.modes:
            for group, end in zip(mode.groups, mode.ends(table.groups), strict=True):
                # A gang may go on after a member has ended; until then it has taken at least this much for each.
                self._ways[group].append((end, mode.option.kind, end * mode.option.count / len(mode.groups)))

    def bound(self, results: int) -> float:
        low = self._fastest(results)
        found = self._priced(results, math.inf)
        low = max(low, found)
        high = 2 * low
        while self._priced(results, high) > high:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._priced(results, middle) > middle else (low, middle)
        return low * (1 - _ROUNDING)

    def _fastest(self, results: int) -> float:
        ends = sorted((min(way[0] for way in ways), need) for ways, need in zip(self._ways, self._needs, strict=True))
        for end, need in ends:
            results -= need
            if results <= 0:
                return end
        return math.inf

    def _priced(self, results: int, target: float) -> float:
        """The best bound that prices prove with the modes that end by a target."""
        timely = [[way for way in ways if way[0] <= target * (1 + _ROUNDING)] for ways in self._ways]
        prices, best = dict.fromkeys(self._devices, 1.0), 0.0
        for change in range(_CHANGES if len(self._devices) > 1 else 1):
            cheapest = sorted(
                (min((prices[kind] * area, kind) for _, kind, area in ways), need)
                for ways, need in zip(timely, self._needs, strict=True)
                if ways
            )
            left, worth, asked = results, 0.0, dict.fromkeys(self._devices, 0.0)
            for (price, kind), need in cheapest:
                taken = min(left, need)
                worth, left = worth + price * taken, left - taken
                asked[kind] += price * taken
                if not left:
                    break
            if left:
                return math.inf
            total = sum(prices[kind] * count for kind, count in self._devices.items())
            best = max(best, worth / total)
            for kind, count in self._devices.items():
                prices[kind] *= 1 + (asked[kind] / worth - prices[kind] * count / total) / (change + 1)
        return best
