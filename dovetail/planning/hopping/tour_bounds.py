"""When an open shop can end at the earliest, whatever the order: by its busiest devices, and by its longest tour.

The classical bound (the largest row or column sum), with what is known beyond it here: devices that are busy at first,
visits that several devices may hold, and hops that no order avoids. Shares nothing with the planner.
"""

import itertools
from collections.abc import Iterable

from dovetail.planning.hopping.open_shop import OpenShop, ShopDevice, Tour


def shop_bound(shop: OpenShop) -> float:
    """A lower bound of the makespan, in seconds.

    >>> where = {"s0": {"n0:0": 1.0}, "s1": {"n1:0": 2.0}}
    >>> tours = tuple(Tour(task=name, epochs=(("s0", "s1"),), visit_seconds=where) for name in "abc")
    >>> devices = (ShopDevice(name="n0:0", node="n0"), ShopDevice(name="n1:0", node="n1"))
    >>> shop_bound(OpenShop(devices=devices, tours=tours))
    6.0
    """
    chains = [_chain_seconds(shop, tour) for tour in shop.tours]
    return max([0.0, *chains, *(_group_seconds(shop, group) for group in _groups(shop))])


def _groups(shop: OpenShop) -> list[frozenset[str]]:
    """Sets of devices whose work is looked at: each by itself, each node's, and all."""
    nodes: dict[str, set[str]] = {}
    for device in shop.devices:
        nodes.setdefault(device.node, set()).add(device.name)
    single = [frozenset([device.name]) for device in shop.devices]
    return list(dict.fromkeys([*single, *map(frozenset, nodes.values()), frozenset(shop.node_of)]))


def _group_seconds(shop: OpenShop, group: frozenset[str]) -> float:
    """When devices can be through with the visits that only they can hold."""
    work_seconds = 0.0
    inside: dict[int, dict[str, float]] = {}  # by the table of seconds, which the tasks of a family share
    for tour in shop.tours:
        known = inside.get(id(tour.visit_seconds))
        if known is None:
            found = tour.visit_seconds.items()
            known = {shard: min(where.values()) for shard, where in found if group.issuperset(where)}
            inside[id(tour.visit_seconds)] = known
        work_seconds += sum(known.get(shard, 0.0) for epoch in tour.epochs for shard in epoch)
    if not work_seconds:
        return 0.0
    return _filled(work_seconds, [device for device in shop.devices if device.name in group])


def _filled(work_seconds: float, devices: Iterable[ShopDevice]) -> float:
    """Until when devices that fall free one by one are busy with so much work, divided as it suits."""
    free = sorted(device.free_seconds for device in devices)
    level = free[0]
    for count, until in enumerate([*free[1:], None], start=1):
        filled = level + work_seconds / count
        if until is None or filled <= until:
            return filled
        work_seconds -= (until - level) * count
        level = until
    raise AssertionError("the last level has no end")


def _chain_seconds(shop: OpenShop, tour: Tour) -> float:
    """When a task can have made its tour if no device ever keeps it waiting."""
    if not tour.visits:
        return 0.0
    least = {shard: min(where.values()) for shard, where in tour.visit_seconds.items()}
    work_seconds = sum(least[shard] for epoch in tour.epochs for shard in epoch)
    nodes = {shard: frozenset(map(shop.node_of.__getitem__, where)) for shard, where in tour.visit_seconds.items()}
    hops = _least_hops(tour, nodes)
    return tour.ready_seconds + work_seconds + (hops * _least_hop_seconds(shop, tour, nodes) if hops else 0.0)


def _least_hops(tour: Tour, nodes: dict[str, frozenset[str]]) -> int:
    """How often a task must at least change its node."""
    if tour.is_ordered:
        stops = [nodes[shard] for epoch in tour.epochs for shard in epoch]
        stops = [frozenset([tour.at]), *stops] if tour.at else stops
        return sum(before.isdisjoint(after) for before, after in itertools.pairwise(stops))
    first = next(filter(None, tour.epochs))
    begun = bool(tour.at) and not any(tour.at in nodes[shard] for shard in first)
    # From one epoch to the next it may stay where it is.
    return begun + sum(_disjoint(nodes[shard] for shard in epoch) - 1 for epoch in tour.epochs if epoch)


def _disjoint(found: Iterable[frozenset[str]]) -> int:
    """How many sets can be told apart by having nothing in common: no fewer nodes than that have all of them."""
    taken: set[str] = set()
    count = 0
    for nodes in sorted(found, key=len):
        if taken.isdisjoint(nodes):
            taken |= nodes
            count += 1
    return count


def _least_hop_seconds(shop: OpenShop, tour: Tour, nodes: dict[str, frozenset[str]]) -> float:
    reached = sorted(frozenset().union(*nodes.values()) | ({tour.at} - {""}))
    pairs = itertools.permutations(reached, 2)
    return min((shop.hop_seconds(tour.state_bytes, *pair) for pair in pairs), default=0.0)
