"""What no schedule can beat, by a linear relaxation over the modes, and which modes that would take.

`planning/schedule/bound.py` gives every task its smallest area wherever that is; with unlike kinds all of
them want the fastest.
Here each kind's devices give what they have and no more:

  minimise s  with  Σ_m covers[g, m] x_m ≥ tasks of g   for each group g
                    Σ_m draws[r, m] seconds_m x_m ≤ s · room_r(T)   for each pool r

over the modes that can end by T. Where s > 1, no schedule ends by T. Both sides ease as T grows, so a bisection over
T finds the least that is not refuted. Pools are the devices of each kind, less what runs now, and the memory,
disk and cores of all nodes together.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence

from dovetail.planning.schedule.joint.modes import Mode, Table
from dovetail.planning.solver import Column, Cover, cheapest, cover

_ROUNDS = 14
# A bound this close is as good as none closer; predictions are not better than that.
_PRECISION = 1e-4
_ROUNDING = 1e-9
_PRICE_CHANGES = 12
# From so many modes on a linear program takes seconds, so fewer of them are solved.
_MANY_MODES, _FEW_ROUNDS = 5_000, 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The proven bound, and how much of each mode the relaxation would take.

    >>> Relaxed(bound_seconds=5.0, amounts=(1.0,)).bound_seconds
    5.0
    """

    bound_seconds: float
    amounts: tuple[float, ...]


def relax(table: Table, *, low_seconds: float) -> Relaxed:
    """The bound of the relaxation, at least the one known already.

    >>> from dovetail.planning.schedule.joint.modes import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))
    >>> round(relax(table, low_seconds=1.0).bound_seconds, 3)
    15.0
    """
    if not table.groups:
        return Relaxed(bound_seconds=low_seconds, amounts=())
    low, high = max(low_seconds, _longest(table)), math.inf
    best = found = _at(table, low)
    for _ in range(_FEW_ROUNDS if len(table.modes) > _MANY_MODES else _ROUNDS):
        if high - low <= _PRECISION * low or (high == math.inf and found.ratio <= 1.0):
            break
        target = (low + high) / 2 if high < math.inf else low * min(found.ratio, 2.0)
        found = _at(table, target)
        if found.ratio >= 1.0 - _ROUNDING:
            # Room shrinks at least as fast as the target, so just below it the ratio is above one.
            low = target * (1 - 2 * _ROUNDING)
        else:
            high = target
        best = found if found.amounts else best
    return Relaxed(bound_seconds=low, amounts=best.amounts)


def relax_by_prices(table: Table) -> Relaxed:
    """A bound without a solver, in a tenth of a second for thousands of tasks; for tables in which nothing runs.

    Any prices of the kinds' devices prove one: a task is worth no more than its part of the cheapest mode it is in, and
    the makespan no less than the worth of all tasks over the price of all devices. Prices rise where more is asked for.

    >>> from dovetail.planning.schedule.joint.modes import tabulate
    >>> from dovetail.planning.problem import Problem
    >>> from dovetail.vocabulary import Cluster, Family, Kind, Member, Option
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> round(relax_by_prices(tabulate(Problem(cluster=cluster, families=(tasks,), options=(one,)))).bound_seconds, 3)
    15.0
    """
    devices = {kind.name: count for kind, count in table.cluster.counts() if count}
    prices, needs, bound = dict.fromkeys(devices, 1.0), table.needs, _longest(table)
    modes = [(mode.option.kind, mode.area / len(mode.groups), mode.groups) for mode in table.modes]
    for change in range(_PRICE_CHANGES):
        worths, kinds = [math.inf] * len(needs), [""] * len(needs)
        for kind, area, groups in modes:
            for group in groups:
                if prices[kind] * area < worths[group]:
                    worths[group], kinds[group] = prices[kind] * area, kind
        worth = sum(each * need for each, need in zip(worths, needs, strict=True))
        bound = max(bound, worth / sum(prices[kind] * count for kind, count in devices.items()))
        asked = dict.fromkeys(devices, 0.0)
        for each, kind, need in zip(worths, kinds, needs, strict=True):
            asked[kind] += need * each / worth
        total = sum(prices[kind] * count for kind, count in devices.items())
        for kind, count in devices.items():
            prices[kind] *= 1 + (asked[kind] - prices[kind] * count / total) / (change + 1)
    return Relaxed(bound_seconds=bound * (1 - _ROUNDING), amounts=())


def _longest(table: Table) -> float:
    """The longest that a task takes in its fastest mode."""
    fastest = [math.inf] * len(table.groups)
    for mode in table.modes:
        for group in mode.groups:
            fastest[group] = min(fastest[group], mode.seconds)
    return max(fastest)


def _at(table: Table, target: float) -> Cover:
    """The least share of all pools by a target; infinite where a group has no mode that ends by then."""
    timely = [number for number, mode in enumerate(table.modes) if mode.seconds <= target * (1 + 1e-12)]
    reached = {group for number in timely for group in table.modes[number].groups}
    if len(reached) < len(table.groups):
        return Cover(ratio=math.inf, amounts=())
    columns, sizes = _columns(table, timely, target)
    found = cover(columns, needs=table.needs, pools=sizes)
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
    ends: dict[str, float] = defaultdict(float)
    for placement in table.running:
        for device in placement.devices:
            ends[device] = max(ends[device], placement.end_seconds)
    rooms = {
        f"kind {kind.name}": sum(
            max(0.0, target - max(0.0, ends[device.name])) for device in table.cluster.of_kind(kind.name)
        )
        for kind in table.cluster.kinds
    }
    nodes = table.cluster.nodes
    rooms["host"] = target * sum(node.memory_bytes for node in nodes)
    rooms["disk"] = target * sum(node.disk_bytes or math.inf for node in nodes)
    rooms["cores"] = target * sum(node.cores for node in nodes)
    return rooms


def relax_money(table: Table, spends: Sequence[float], *, deadline_seconds: float) -> Relaxed:
    """The least that covering every task can cost with the modes and the room that there are until the deadline; the
    bound is money. Infinite where even the relaxation has no room; then there are no amounts.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> relax_money(nothing, [], deadline_seconds=1.0).bound_seconds
    0.0
    """
    timely = [number for number, mode in enumerate(table.modes) if mode.seconds <= deadline_seconds * (1 + 1e-12)]
    reached = {group for number in timely for group in table.modes[number].groups}
    if len(reached) < len(table.groups):
        return Relaxed(bound_seconds=math.inf, amounts=())
    columns, sizes = _columns(table, timely, deadline_seconds)
    found = cheapest(columns, prices=[spends[number] for number in timely], needs=table.needs, pools=sizes)
    if not found.amounts:
        return Relaxed(bound_seconds=found.ratio, amounts=())
    amounts = [0.0] * len(table.modes)
    for number, amount in zip(timely, found.amounts, strict=True):
        amounts[number] = amount
    return Relaxed(bound_seconds=found.ratio * (1 - _ROUNDING), amounts=tuple(amounts))
