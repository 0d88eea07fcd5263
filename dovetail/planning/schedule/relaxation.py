"""What no schedule can beat, by a linear relaxation over the modes, and which modes that would take.

`schedule/bounds.py` gives every task its smallest area wherever that is; with unlike kinds all of them want the
fastest. Here each kind's devices give what they have and no more:

  minimise s  with  Σ_m covers[g, m] x_m ≥ tasks of g   for each group g
                    Σ_m draws[r, m] seconds_m x_m ≤ s · room_r(T)   for each pool r

over the modes that can end by T. Where s > 1, no schedule ends by T. Both sides ease as T grows, so a bisection over
T finds the least that is not refuted. Pools are the devices of each kind, less what runs now, and the memory,
disk and cores of all nodes together.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dovetail.planning.room import shared_sizes
from dovetail.planning.schedule.list_schedule import device_ends
from dovetail.planning.schedule.table import Mode, Table
from dovetail.planning.solver import Column, Cover, cheapest, cover

_ROUNDS = 14
# A bound this close is as good as none closer; predictions are not better than that.
_PRECISION = 1e-4
_ROUNDING = 1e-9
_PRICE_CHANGES = 24
# How much dearer a pool becomes that is ahead of the others by all that it has.
_AHEAD = 8.0
# From so many modes on a linear program takes seconds, so fewer of them are solved.
_MANY_MODES, _FEW_ROUNDS = 5_000, 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The proven bound, in seconds or money, and what the relaxation would take: how much of each mode or, where the
    ends of all tasks count, a mode and a start for each group."""

    bound: float
    amounts: tuple[float, ...] = ()
    choices: tuple[tuple[int, float], ...] = ()


def relax(table: Table, *, low_seconds: float, work: float = math.inf) -> Relaxed:
    """The bound of the relaxation, at least the one known already; by prices where the linear programs of so large a
    table would take more than the work.

    >>> from dovetail.planning.schedule.table import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))
    >>> round(relax(table, low_seconds=1.0).bound, 3)
    15.0
    """
    if not table.groups:
        return Relaxed(bound=low_seconds)
    if len(table.modes) > _MANY_MODES and work < _FEW_ROUNDS * (len(table.modes) / _MANY_MODES) ** 1.5:
        found = relax_by_prices(table)
        return Relaxed(bound=max(low_seconds, found.bound), amounts=found.amounts)
    return _relax_linearly(table, low_seconds)


def _relax_linearly(table: Table, low_seconds: float) -> Relaxed:
    low, high = max(low_seconds, _longest(table)), math.inf
    best = found = _cover(table, low)
    for _ in range(_FEW_ROUNDS if len(table.modes) > _MANY_MODES else _ROUNDS):
        if high - low <= _PRECISION * low or (high == math.inf and found.ratio <= 1.0):
            break
        target = (low + high) / 2 if high < math.inf else low * min(found.ratio, 2.0)
        found = _cover(table, target)
        if found.ratio >= 1.0 - _ROUNDING:
            # Room shrinks at least as fast as the target, so just below it the ratio is above one.
            low = target * (1 - 2 * _ROUNDING)
        else:
            high = target
        best = found if found.amounts else best
    return Relaxed(bound=low, amounts=best.amounts)


def relax_by_prices(table: Table) -> Relaxed:
    """A bound without a solver, in tenths of a second for ten thousand tasks, and a mode for each task.

    Any prices of the pools prove one: a task is worth no more than its part of the cheapest mode it is in, and until T
    all pools together are worth no less than all tasks. Prices rise where more is asked for than others. The modes then
    are chosen task by task at these prices, dearer where a pool is ahead of the others, so that equal tasks do not all
    ask for the same.

    >>> from dovetail.planning.schedule.table import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> relaxed = relax_by_prices(tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,))))
    >>> round(relaxed.bound, 3), relaxed.amounts
    (15.0, (3.0,))
    """
    market = _PoolMarket(table)
    return Relaxed(bound=market.bound * (1 - _ROUNDING), amounts=tuple(market.choose()))


def mode_prices(table: Table) -> list[float]:
    """What each mode costs at prices of the pools that rise where more is asked for than others give."""
    market = _PoolMarket(table)
    return [market.price(number) for number in range(len(table.modes))]


class _PoolMarket:
    """Prices of pools, and what every task would take at them."""

    def __init__(self, table: Table) -> None:
        self._table, self._needs = table, table.needs
        ends = _device_ends(table)
        pools = {f"kind {kind}": sorted(until) for kind, until in ends.items() if until}
        self._slopes = {name: float(len(until)) for name, until in pools.items()}
        if not table.only_devices_bind:
            rooms = _rooms(table, 1.0)
            shared = {name: rooms[name] for name in ("host", "disk", "cores") if 0 < rooms[name] < math.inf}
            self._slopes |= shared
        # From when on each pool gives how much more each second.
        self._steps = sorted((until, name, 1.0) for name, each in pools.items() for until in each)
        self._steps += [(0.0, name, size) for name, size in self._slopes.items() if name not in pools]
        self._steps.sort()
        self._draws = [self._share(mode) for mode in table.modes]
        self._able = self._ever_cheapest()
        self.prices = {name: 1.0 / size for name, size in self._slopes.items()}
        self.bound = _longest(table)
        self._settle()

    def _share(self, mode: Mode) -> list[tuple[str, float]]:
        return [(n, amount / len(mode.groups)) for n, amount in _draws(mode).items() if n in self._slopes]

    def _ever_cheapest(self) -> list[tuple[int, tuple[int, ...], list[tuple[str, float]]]]:
        """The modes that are the cheapest for their tasks at some prices, with their tasks and draws: of those that
        draw from one and the same pool only the one that draws least."""
        found: dict[tuple[object, ...], int] = {}
        for number, mode in enumerate(self._table.modes):
            draws = self._draws[number]
            key = (mode.groups, draws[0][0]) if len(draws) == 1 else (number,)
            if key not in found or draws[0][1] < self._draws[found[key]][0][1]:
                found[key] = number
        return [(number, self._table.modes[number].groups, self._draws[number]) for number in sorted(found.values())]

    def _settle(self) -> None:
        best = self.prices
        for change in range(_PRICE_CHANGES if len(self.prices) > 1 else 1):
            worths, chosen = self._answer()
            worth = sum(each * need for each, need in zip(worths, self._needs, strict=True))
            found = self._until(worth)
            if found > self.bound:
                self.bound, best = found, self.prices
            asked = dict.fromkeys(self.prices, 0.0)
            for mode, need in zip(chosen, self._needs, strict=True):
                for name, amount in self._draws[mode]:
                    asked[name] += need * amount * self.prices[name]
            given = {name: self.prices[name] * self._slopes[name] for name in self.prices}
            total, sums = sum(given.values()), sum(asked.values()) or 1.0
            self.prices = {
                name: price * (1 + (asked[name] / sums - given[name] / total) / math.sqrt(change + 1))
                for name, price in self.prices.items()
            }
        self.prices = best

    def _answer(self) -> tuple[list[float], list[int]]:
        """What each group's tasks are worth, and the mode that says so."""
        worths, chosen, prices = [math.inf] * len(self._needs), [0] * len(self._needs), self.prices
        for number, groups, draws in self._able:
            price = 0.0
            for name, amount in draws:
                price += prices[name] * amount
            for group in groups:
                if price < worths[group]:
                    worths[group], chosen[group] = price, number
        return worths, chosen

    def _until(self, worth: float) -> float:
        """The least T by which the pools have given as much as this is worth."""
        given = level = slope = 0.0
        for until, name, size in self._steps:
            if given + slope * (until - level) >= worth and slope:
                break
            given, level, slope = given + slope * (until - level), until, slope + size * self.prices[name]
        return level + (worth - given) / slope if slope else 0.0

    def choose(self) -> list[float]:
        """How much of each mode: the cheapest for each task among those that end by the bound, the longest first."""
        modes, amounts = self._table.modes, [0.0] * len(self._table.modes)
        ways: list[list[int]] = [[] for _ in self._needs]
        for number, mode in enumerate(modes):
            if len(mode.groups) == 1:
                ways[mode.groups[0]].append(number)
        rooms = {name: size * self.bound for name, size in self._slopes.items()}
        drawn, done = dict.fromkeys(self.prices, 0.0), 0.0
        worths, _ = self._answer()
        total = sum(each * need for each, need in zip(worths, self._needs, strict=True)) or 1.0
        for group in sorted(range(len(ways)), key=lambda group: (-worths[group], group)):
            timely = [number for number in ways[group] if modes[number].seconds <= self.bound * (1 + 1e-9)]
            for _ in range(self._needs[group] if timely or ways[group] else 0):
                ahead = {n: math.exp(_AHEAD * (drawn[n] / rooms[n] - done / total)) for n in drawn}
                best = min(timely or ways[group], key=lambda number: (self._price(number, ahead), number))
                amounts[best] += 1.0
                done += worths[group]
                for name, amount in self._draws[best]:
                    drawn[name] += amount
        return amounts

    def price(self, number: int) -> float:
        """What a mode costs for all of its tasks."""
        members = len(self._table.modes[number].groups)
        return members * sum(self.prices[name] * amount for name, amount in self._draws[number])

    def _price(self, number: int, ahead: Mapping[str, float]) -> float:
        return sum(self.prices[name] * ahead[name] * amount for name, amount in self._draws[number])


def _longest(table: Table) -> float:
    """The longest that a task takes in its fastest mode."""
    fastest = [math.inf] * len(table.groups)
    for mode in table.modes:
        for group in mode.groups:
            fastest[group] = min(fastest[group], mode.seconds)
    return max(fastest)


def _cover(table: Table, target: float, *, spends: Sequence[float] | None = None) -> Cover:
    """The least share of all pools by a target or, with what the modes cost, the least money; infinite where a group
    has no mode that ends by then."""
    timely = [number for number, mode in enumerate(table.modes) if mode.seconds <= target * (1 + 1e-12)]
    reached = {group for number in timely for group in table.modes[number].groups}
    if len(reached) < len(table.groups):
        return Cover(ratio=math.inf, amounts=())
    columns, sizes = _columns(table, timely, target)
    if spends is None:
        found = cover(columns, needs=table.needs, pools=sizes)
    else:
        found = cheapest(columns, prices=[spends[number] for number in timely], needs=table.needs, pools=sizes)
    if not found.amounts:
        return found
    amounts = [0.0] * len(table.modes)
    for number, amount in zip(timely, found.amounts, strict=True):
        amounts[number] = amount
    return Cover(ratio=found.ratio, amounts=tuple(amounts))


def _columns(table: Table, timely: Sequence[int], target: float) -> tuple[list[Column], list[float]]:
    """The modes as columns of a linear program over what there is of each pool until a target."""
    rooms = _rooms(table, target)
    names = {name: number for number, name in enumerate(rooms)}
    columns = [
        Column(
            covers=table.modes[number].covers,
            draws={
                names[name]: amount
                for name, amount in _draws(table.modes[number]).items()
                if math.isfinite(rooms[name])
            },
        )
        for number in timely
    ]
    return columns, [room if math.isfinite(room) else 1.0 for room in rooms.values()]


def _draws(mode: Mode) -> dict[str, float]:
    option = mode.option
    drawn = {
        f"kind {option.kind}": option.count,
        "host": option.host_bytes,
        "disk": option.disk_bytes,
        "cores": option.cores,
    }
    return {name: amount * mode.seconds for name, amount in drawn.items() if amount}


def _rooms(table: Table, target: float) -> dict[str, float]:
    """Device-seconds of each kind, byte-seconds and core-seconds that there are until the target."""
    ends = _device_ends(table)
    rooms = {f"kind {kind}": sum(max(0.0, target - until) for until in each) for kind, each in ends.items()}
    sizes = zip(*map(shared_sizes, table.cluster.nodes), strict=True)
    for name, each in zip(("host", "disk", "cores"), sizes, strict=bool(table.cluster.nodes)):
        rooms[name] = target * sum(each)
    return rooms


def _device_ends(table: Table) -> dict[str, list[float]]:
    """When each device of each kind is free of what runs now."""
    free = device_ends(table)
    return {kind: [until for node in nodes for until, _ in node] for kind, nodes in free.items()}


def relax_money(table: Table, spends: Sequence[float], *, deadline_seconds: float) -> Relaxed:
    """The least that covering every task can cost with the modes and the room that there are until the deadline; the
    bound is money. Infinite where even the relaxation has no room; then there are no amounts."""
    found = _cover(table, deadline_seconds, spends=spends)
    return Relaxed(bound=found.ratio * (1 - _ROUNDING) if found.amounts else found.ratio, amounts=found.amounts)
