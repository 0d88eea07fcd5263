"""Whether a plan of tours breaks a law: every visit once, nobody in two places, no device with two, no hop too fast.

Shares no code with the planner or the bound, on purpose, as `planning/checker` does not.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator

from dovetail.planning.hopping.open_shop import OpenShop, Stay, Tour, Tours
from dovetail.vocabulary import InvalidSchedule

# Times are sums of floats.
_TOLERANCE = 1e-6
_SHOWN = 20


def check_tours(plan: Tours, shop: OpenShop) -> None:
    """Raise `InvalidSchedule` with the violations, unless there is none.

    >>> check_tours(Tours(stays=(), bound_seconds=0.0), OpenShop(devices=(), tours=()))
    """
    found = tour_violations(plan, shop)
    if found:
        more = [f"- and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise InvalidSchedule(
            f"a plan of tours must break no law, this one breaks {len(found)}; none of it was started. "
            "This is a mistake in the planner: please report it.\n"
            + "\n".join([*(f"- {each}" for each in found[:_SHOWN]), *more])
        )


def tour_violations(plan: Tours, shop: OpenShop) -> list[str]:
    """Every law that a plan breaks; an empty list where it breaks none.

    >>> tour = Tour(task="a", epochs=(("s0",),), visit_seconds={"s0": {"n0:0": 1.0}})
    >>> from dovetail.planning.hopping.open_shop import ShopDevice
    >>> shop = OpenShop(devices=(ShopDevice(name="n0:0", node="n0"),), tours=(tour,))
    >>> tour_violations(Tours(stays=(), bound_seconds=0.0), shop)
    ["'a' must visit shard 's0' once in epoch 0, found 0 visits."]
    """
    tours = {tour.task: tour for tour in shop.tours}
    by_task: dict[str, list[Stay]] = defaultdict(list)
    by_device: dict[str, list[Stay]] = defaultdict(list)
    found: list[str] = []
    copying = _copying(plan, shop)
    for stay in plan.stays:
        if stay.task not in tours:
            found.append(f"{stay.task!r} has no tour.")
            continue
        by_task[stay.task].append(stay)
        by_device[stay.device].append(stay)
        found += _place_violations(stay, tours[stay.task], copying.get(id(stay), 0.0))
    for tour in shop.tours:
        found += _count_violations(tour, by_task[tour.task])
        found += _order_violations(tour, by_task[tour.task], shop)
    free = {device.name: device.free_seconds for device in shop.devices}
    for device, stays in sorted(by_device.items()):
        found += _device_violations(device, stays, free.get(device, 0.0))
    if plan.bound_seconds > plan.makespan_seconds + _slack(plan.makespan_seconds):
        found.append(
            f"the bound must not be above the makespan of {plan.makespan_seconds:g} s, found {plan.bound_seconds:g} s."
        )
    return found


def _slack(seconds: float) -> float:
    return _TOLERANCE * max(1.0, abs(seconds))


def _copying(plan: Tours, shop: OpenShop) -> dict[int, float]:
    """The stays that are the first on their node of what is copied there, and what that takes; of those that begin at
    the same moment, the one that is longer than a visit."""
    sources = {tour.task: tour.copied for tour in shop.tours}
    visits = {tour.task: tour.visit_seconds for tour in shop.tours}

    def longer(stay: Stay) -> float:
        return stay.duration_seconds - visits.get(stay.task, {}).get(stay.shard, {}).get(stay.device, 0.0)

    nodes = {device.name: device.node for device in shop.devices}
    found, seen = dict[int, float](), set[tuple[str, str]]()
    for stay in sorted(plan.stays, key=lambda stay: (stay.start_seconds, -longer(stay))):
        source, node = sources.get(stay.task, {}).get(stay.shard), nodes.get(stay.device, "")
        if source is not None and (source, node) not in seen and node not in shop.copies[source].nodes:
            seen.add((source, node))
            found[id(stay)] = shop.copies[source].seconds
    return found


def _place_violations(stay: Stay, tour: Tour, copying_seconds: float) -> Iterator[str]:
    due = tour.visit_seconds.get(stay.shard, {}).get(stay.device)
    if due is None:
        yield f"{stay.task!r} cannot visit shard {stay.shard!r} on device {stay.device!r}."
        return
    due += copying_seconds
    if abs(due - stay.duration_seconds) > _slack(due):
        yield (
            f"{stay.task!r} must stay with shard {stay.shard!r} for {due:g} s on {stay.device!r}, found "
            f"{stay.duration_seconds:g} s."
        )


def _count_violations(tour: Tour, stays: list[Stay]) -> Iterator[str]:
    wanted = {(epoch, shard) for epoch, shards in enumerate(tour.epochs) for shard in shards}
    made: dict[tuple[int, str], int] = defaultdict(int)
    for stay in stays:
        made[stay.epoch, stay.shard] += 1
    for epoch, shard in sorted(wanted | made.keys()):
        if (count := made.get((epoch, shard), 0)) != ((epoch, shard) in wanted):
            times = "once" if (epoch, shard) in wanted else "never"
            yield f"{tour.task!r} must visit shard {shard!r} {times} in epoch {epoch}, found {count} visits."


def _order_violations(tour: Tour, stays: list[Stay], shop: OpenShop) -> Iterator[str]:
    """One visit at a time, a hop between two nodes, one epoch after the other, in the order that is asked for."""
    nodes = {device.name: device.node for device in shop.devices}
    stays = sorted(stays, key=lambda stay: (stay.start_seconds, stay.epoch))
    at, left = tour.at, tour.ready_seconds
    for stay in stays:
        node = nodes.get(stay.device, "")
        carried = at and at != node
        link = shop.link
        arrives = left + (link.latency_seconds + tour.state_bytes / link.bytes_per_second if carried else 0.0)
        if stay.start_seconds < arrives - _slack(arrives):
            yield (
                f"{tour.task!r} must not begin with shard {stay.shard!r} on {stay.device!r} before it is there at "
                f"{arrives:g} s, found {stay.start_seconds:g} s."
            )
        at, left = node, stay.end_seconds
    for before, after in itertools.pairwise(stays):
        if after.epoch < before.epoch:
            yield f"{tour.task!r} must end epoch {after.epoch} before epoch {before.epoch} begins."
    if tour.is_ordered:
        wanted = [shard for epoch in tour.epochs for shard in epoch]
        made = [stay.shard for stay in stays]
        if made != wanted:
            yield f"{tour.task!r} must visit {', '.join(wanted)} in this order, found {', '.join(made)}."


def _device_violations(device: str, stays: list[Stay], free_seconds: float) -> Iterator[str]:
    stays = sorted(stays, key=lambda stay: stay.start_seconds)
    if stays[0].start_seconds < free_seconds - _slack(free_seconds):
        yield f"device {device!r} is not free before {free_seconds:g} s, found {stays[0].task!r} there earlier."
    for before, after in itertools.pairwise(stays):
        if after.start_seconds < before.end_seconds - _slack(before.end_seconds):
            yield (
                f"device {device!r} must hold one visit at a time: {before.task!r} until {before.end_seconds:g} s and "
                f"{after.task!r} from {after.start_seconds:g} s."
            )
