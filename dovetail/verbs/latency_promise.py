"""Replicas for a promise of latency: on this machine, as requests come, or on a cluster that is described."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from dovetail.engines import detect
from dovetail.planning.options.kinds import parse_cluster, with_prices
from dovetail.planning.options.predicted_latency import predict_latency
from dovetail.planning.serving import (
    FrontEnd,
    KindOffer,
    LatencyCurve,
    ServingPlan,
    arrivals_at,
    arrivals_of_trace,
    check_serving,
    plan_serving,
)
from dovetail.vocabulary import Cluster, DovetailError

# What a request takes beside what is measured of the server (the network, the kernel); requests that a plan is
# simulated with; by which share the rate must have changed to plan again; and of a trace, the seconds in a row that are
# planned for, the busiest.
OVERHEAD_SECONDS, _PLANNED_REQUESTS, _CHANGED, _BUSIEST_SECONDS = 0.0005, 5000, 0.25, 60


@dataclasses.dataclass(frozen=True)
class LatencyPromise:
    """99 of 100 answers within `p99` seconds, at so many requests a second, or as the busiest minute of a trace has
    them, which counts the requests of each second.

    >>> LatencyPromise(p99=0.02, trace=[1.0] * 60 + [5.0] * 60).busiest_rate
    5.0
    """

    p99: float
    rate: float = 0.0
    trace: Sequence[float] = ()

    @property
    def busiest_rate(self) -> float:
        """Requests a second to plan for."""
        busiest = self._busiest()
        return sum(busiest) / len(busiest) if busiest else self.rate

    def arrivals(self) -> list[float]:
        """Moments of requests to plan with."""
        busiest = self._busiest()
        return arrivals_of_trace(busiest) if busiest else arrivals_at(self.rate, _PLANNED_REQUESTS)

    def _busiest(self) -> list[float]:
        starts = range(max(1, len(self.trace) - _BUSIEST_SECONDS + 1))
        return max((list(self.trace[at : at + _BUSIEST_SECONDS]) for at in starts), key=sum)


def read_trace(file: Path) -> list[float]:
    """The requests of each second, a number a line. Raises `DovetailError` where they are not."""
    try:
        found = [float(line) for line in file.read_text().split()]
    except (OSError, ValueError) as error:
        raise DovetailError(
            f"a trace must be a file with the requests of each second, a number a line; found: {error}."
        ) from error
    if not found or min(found) < 0 or not 0 < sum(found) < float("inf"):
        raise DovetailError(f"a trace must have seconds with requests, none with fewer than 0; {file} has not.")
    return found


class ServingPlanner:
    """Plans for what is offered behind a `front` end, and again as the rate changes."""

    def __init__(self, promise: LatencyPromise, offers: Sequence[KindOffer], *, front: FrontEnd | None = None) -> None:
        self._promise, self._offers, self._front = promise, offers, front or FrontEnd()
        self._planned = 0.0

    def first(self) -> ServingPlan:
        """For what was promised."""
        return self._plan(self._promise.arrivals(), self._promise.busiest_rate)

    def replan(self, rate: float) -> ServingPlan | None:
        """For a rate that was seen, where it is far from the one that was planned for."""
        if not rate or abs(rate - self._planned) <= _CHANGED * self._planned:
            return None
        return self._plan(arrivals_at(rate, _PLANNED_REQUESTS), rate)

    def _plan(self, arrivals: Sequence[float], rate: float) -> ServingPlan:
        """Checked by what counts for itself."""
        p99, front = self._promise.p99, self._front
        plan = plan_serving(self._offers, arrivals, p99=p99, overhead=OVERHEAD_SECONDS, front=front)
        if wrong := check_serving(plan, self._offers, rate=rate, p99=p99, front=front):
            raise DovetailError(f"a plan must hold what it promises; found: {'; '.join(wrong)}.")
        self._planned = rate
        return plan


def offers_here(curve: LatencyCurve, *, devices: int | None = None) -> list[KindOffer]:
    """One kind of device, whose hours nobody pays for, a replica for each; fewer are better. Without a number, those of
    this machine."""
    return [KindOffer("replica", 1.0, devices or len(detect().devices), {"this model": curve})]


def priced_cluster(cluster: str, *, prices: Mapping[str, float], here: Cluster) -> Cluster:
    """What is written as '4xt4+8xcpu', with the price of an hour of each kind. Raises `DovetailError` where one is
    missing."""
    there = parse_cluster(cluster, at_hand=here.kinds)
    cores = next((kind.name for kind in there.kinds if kind.processor == "cpu"), "cpu")
    there = with_prices(there, {cores if name == "cpu" else name: price for name, price in prices.items()})
    if missing := [kind.name for kind in there.kinds if not kind.price_per_hour]:
        raise DovetailError(
            f"the cheapest mix needs the price of an hour of each kind; give --price {missing[0]}=0.50 for "
            f"{', '.join(missing)}."
        )
    return there


def offers_on(there: Cluster, *, here: Cluster, curve: LatencyCurve, parameter_bytes: int) -> list[KindOffer]:
    """The kinds of a cluster. Latencies are those measured here where the kind is at hand, else predicted from them."""
    source = here.kind(here.devices[0].kind)
    return [
        KindOffer(
            kind.name,
            kind.price_per_hour,
            count,
            {"this model": predict_latency(curve, parameter_bytes=parameter_bytes, source=source, target=kind)},
        )
        for kind, count in there.counts()
    ]
