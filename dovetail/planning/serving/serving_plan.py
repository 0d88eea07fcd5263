"""The cheapest replicas that keep a promise of latency: kinds, how many of each, their batch sizes, and by which way of
answering (the plain model, a cascade), decided together."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dovetail.planning.serving.latency import LatencyCurve
from dovetail.planning.serving.queueing import FrontEnd, QueueForecast, ReplicaGroup, forecast
from dovetail.vocabulary import DovetailError

# Rows of a call that are weighed, and how many candidates are simulated before the search gives up.
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_MOST_TRIED = 400
# Sizes of calls that are weighed for a kind, the largest that may be and the next smaller ones, alike for all kinds.
_LEVELS = 5
# Of the time promised, how much a call may take.
_LARGEST = 0.8
# Replicas busier than this have queues that grow at the first gust.
_BUSIEST = 0.97


@dataclasses.dataclass(frozen=True)
class KindOffer:
    """A kind of device: what an hour of one costs, how many there are, and what calls take by each way of answering."""

    kind: str
    price: float
    most: int
    curves: Mapping[str, LatencyCurve]


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """Replicas that keep the promise, and what is expected of them."""

    way: str
    groups: tuple[ReplicaGroup, ...]
    wait_seconds: float
    price: float
    expected: QueueForecast
    tried: int = 0

    def __str__(self) -> str:
        groups = " and ".join(
            f"{group.count} × {group.kind} with up to {group.batch_rows} rows" for group in self.groups
        )
        return (
            f"{self.way}: {groups}; 99% within {1000 * self.expected.p99:.3g} ms expected, "
            f"{self.expected.busy:.0%} busy, {self.expected.mean_rows:.3g} rows a call"
            + (f"; {self.price:.4g} an hour" if self.price else "")
        )


def plan_serving(
    offers: Sequence[KindOffer],
    arrivals: Sequence[float],
    *,
    p99: float,
    overhead: float = 0.0,
    front: FrontEnd = FrontEnd(),  # noqa: B008
) -> ServingPlan:
    """The cheapest replicas that should answer 99 of 100 requests within `p99` seconds, behind a `front` end that takes
    what was measured. Raises `DovetailError` where none do, with the best that can be.

    >>> curve = LatencyCurve(((1, 0.010), (8, 0.017)))
    >>> from dovetail.planning.serving.arrivals import arrivals_at
    >>> offers = [KindOffer("cpu", 0.1, 8, {"plain": curve})]
    >>> plan_serving(offers, arrivals_at(150.0, 2000), p99=0.08).groups[0].count
    1
    """
    _check(offers, arrivals, p99)
    rate = len(arrivals) / arrivals[-1]
    if rate > _BUSIEST * front.rate:
        raise DovetailError(
            f"the process that reads requests can pass on {_BUSIEST * front.rate:.4g} a second, and {rate:.4g} come; "
            f"serve at several ports, with a proxy before them."
        )
    nearest: ServingPlan | None = None
    candidates = itertools.islice(_by_price(offers, rate, p99 - overhead), _MOST_TRIED)
    for tried, (price, way, groups) in enumerate(candidates, start=1):
        wait = _wait(groups, p99 - overhead)
        expected = forecast(groups, arrivals, wait_seconds=wait, overhead=overhead, front=front)
        found = ServingPlan(way, groups, wait, price, expected, tried)
        if expected.p99 <= p99:
            return found
        if nearest is None or expected.p99 < nearest.expected.p99:
            nearest = found
    reason = f"the nearest is {nearest}" if nearest else "no kind has a call of one row within that, or enough devices"
    raise DovetailError(
        f"99 of 100 requests must be answered within {1000 * p99:g} ms at {rate:.4g} a second; {reason}. Allow more "
        f"time, or give more or other devices."
    )


def check_serving(
    plan: ServingPlan,
    offers: Sequence[KindOffer],
    *,
    rate: float,
    p99: float,
    front: FrontEnd = FrontEnd(),  # noqa: B008
) -> list[str]:
    """What is wrong with a plan, counted without the planner's help."""
    by_kind = {offer.kind: offer for offer in offers}
    found = []
    for group in plan.groups:
        offer = by_kind.get(group.kind)
        if offer is None or plan.way not in offer.curves:
            found.append(f"{group.kind} has no latencies for {plan.way}")
            continue
        used = sum(each.count for each in plan.groups if each.kind == group.kind)
        if not 0 < used <= offer.most:
            found.append(f"{group.kind} has {offer.most} devices; {used} are used")
        if offer.curves[plan.way].seconds(1) > p99:
            found.append(f"a call of one row on {group.kind} takes longer than {p99:g} s")
    capacity = sum(group.count * group.batch_rows / group.curve.seconds(group.batch_rows) for group in plan.groups)
    if capacity < rate:
        found.append(f"{rate:g} rows a second come and {capacity:.4g} can be answered")
    if rate * front.request_seconds > 1:
        found.append(
            f"{rate:g} requests a second come, and one takes {front.request_seconds:g} s to read and to answer"
        )
    price = sum(group.count * by_kind[group.kind].price for group in plan.groups if group.kind in by_kind)
    if not math.isclose(price, plan.price, rel_tol=1e-9, abs_tol=1e-12):
        found.append(f"the devices cost {price:g} an hour, not {plan.price:g}")
    if plan.expected.p99 > p99:
        found.append(f"99% within {plan.expected.p99:g} s is more than the {p99:g} s promised")
    return found


def _check(offers: Sequence[KindOffer], arrivals: Sequence[float], p99: float) -> None:
    if not offers or any(offer.price < 0 or offer.most < 0 or not offer.curves for offer in offers):
        raise DovetailError("there must be kinds to serve on, with prices of 0 or more and measured latencies.")
    if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        raise DovetailError("there must be requests to plan for; give a rate above 0.")
    if not p99 > 0:
        raise DovetailError(f"a promise of latency must be more than 0 seconds, got {p99:g}.")


def _wait(groups: Sequence[ReplicaGroup], p99: float) -> float:
    """A call waits for more rows no longer than what the slowest full one leaves of the promise, and not long."""
    slowest = max(group.curve.seconds(group.batch_rows) for group in groups)
    return max(0.0, min(0.002, (p99 - slowest) / 4))


def _by_price(
    offers: Sequence[KindOffer], rate: float, p99: float
) -> Iterator[tuple[float, str, tuple[ReplicaGroup, ...]]]:
    """Replicas that could keep up, the cheapest first; of as cheap ones, those with most to spare."""
    found: list[tuple[float, float, str, tuple[ReplicaGroup, ...]]] = []
    for way in sorted({way for offer in offers for way in offer.curves}):
        ladders = [(offer, _ladder(offer.curves[way], p99)) for offer in offers if way in offer.curves]
        for level in range(_LEVELS):
            ones = [
                (offer, ReplicaGroup(offer.kind, 1, ladder[min(level, len(ladder) - 1)], offer.curves[way]))
                for offer, ladder in ladders
                if ladder
            ]
            found += [(*each[:2], way, each[2]) for each in _counted(ones, rate)]
    found.sort(key=lambda each: each[:3])
    return ((price, way, groups) for price, _, way, groups in found)


def _ladder(curve: LatencyCurve, p99: float) -> list[int]:
    """Rows of a call, the largest first that leave time to wait for one."""
    return [rows for rows in _BATCHES if curve.seconds(rows) <= _LARGEST * p99][: -_LEVELS - 1 : -1]


def _counted(
    ones: Sequence[tuple[KindOffer, ReplicaGroup]], rate: float
) -> Iterator[tuple[float, float, tuple[ReplicaGroup, ...]]]:
    """How many of each kind, the cheapest that keep up first; of as cheap ones, those with most to spare. More than
    enough for all are not weighed."""
    if not ones:
        return
    enough = [min(offer.most, math.ceil(rate / one.rate * 2) + 1) for offer, one in ones]
    counts = np.indices([most + 1 for most in enough]).reshape(len(ones), -1)
    capacity = np.array([one.rate for _, one in ones]) @ counts
    price = np.array([offer.price for offer, _ in ones]) @ counts
    which = np.flatnonzero(capacity * _BUSIEST >= rate)
    for number in which[np.lexsort((-capacity[which], price[which]))][:_MOST_TRIED]:
        groups = tuple(
            dataclasses.replace(one, count=int(count))
            for (_, one), count in zip(ones, counts[:, number], strict=True)
            if count
        )
        yield float(price[number]), -float(capacity[number]), groups
