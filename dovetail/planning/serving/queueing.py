"""What requests wait where replicas take calls from one queue: an event by event simulation of the server."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Sequence

import numpy as np

from dovetail.planning.serving.latency import LatencyCurve


@dataclasses.dataclass(frozen=True)
class ReplicaGroup:
    """So many replicas on one kind of device, each taking calls of up to so many rows."""

    kind: str
    count: int
    batch_rows: int
    curve: LatencyCurve

    @property
    def rate(self) -> float:
        """Rows a second where all calls are full."""
        return self.count * self.batch_rows / self.curve.seconds(self.batch_rows)


@dataclasses.dataclass(frozen=True)
class QueueForecast:
    """What requests should see: the median and the 99th of a hundred seconds, and how busy replicas are."""

    p50: float
    p99: float
    busy: float
    mean_rows: float


def forecast(
    groups: Sequence[ReplicaGroup],
    arrivals: Sequence[float],
    *,
    wait_seconds: float = 0.0,
    overhead: float = 0.0,
    seed: int = 0,
) -> QueueForecast:
    """Requests of a row each at these moments. A replica that is free takes the oldest requests, up to what it may, as
    soon as they fill its call or the oldest has waited `wait_seconds`; `overhead` is what a request takes beside.

    >>> one = ReplicaGroup("cpu", 1, 1, LatencyCurve(((1, 0.1),)))
    >>> seen = forecast([one], [0.0, 0.0, 1.0])
    >>> round(seen.p50, 3), round(seen.p99, 3)
    (0.1, 0.2)
    """
    swings = np.random.default_rng(seed).standard_normal(len(arrivals))
    free: list[tuple[int, int]] = []  # by how quick their full calls are, then by number
    replicas = [group for group in groups for _ in range(group.count)]
    order = sorted(range(len(replicas)), key=lambda number: replicas[number].curve.seconds(1))
    rank = {number: place for place, number in enumerate(order)}
    for number in order:
        heapq.heappush(free, (rank[number], number))
    ends: list[tuple[float, int]] = []
    waiting: collections.deque[float] = collections.deque()
    latencies: list[float] = []
    now, following, busy, calls = 0.0, 0, 0.0, 0
    while following < len(arrivals) or waiting:
        while free and waiting:
            _, number = free[0]
            group = replicas[number]
            if len(waiting) < group.batch_rows and now < waiting[0] + wait_seconds - 1e-12:
                break
            heapq.heappop(free)
            rows = min(len(waiting), group.batch_rows)
            seconds = group.curve.seconds(rows) * math.exp(group.curve.sigma * swings[calls])
            latencies.extend(now + seconds - waiting.popleft() + overhead for _ in range(rows))
            heapq.heappush(ends, (now + seconds, number))
            busy, calls = busy + seconds, calls + 1
        moments = [arrivals[following]] if following < len(arrivals) else []
        if ends:
            moments.append(ends[0][0])
        if free and waiting:
            moments.append(waiting[0] + wait_seconds)
        now = max(now, min(moments)) if moments else now
        while ends and ends[0][0] <= now:
            _, number = heapq.heappop(ends)
            heapq.heappush(free, (rank[number], number))
        while following < len(arrivals) and arrivals[following] <= now:
            waiting.append(arrivals[following])
            following += 1
    latencies.sort()
    span = max(now, 1e-12) * max(1, len(replicas))
    return QueueForecast(
        p50=latencies[len(latencies) // 2],
        p99=latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        busy=min(1.0, busy / span),
        mean_rows=len(latencies) / max(1, calls),
    )
