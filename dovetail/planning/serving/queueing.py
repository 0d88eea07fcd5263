"""What requests wait where replicas take calls from one queue: an event by event simulation of the server."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import Literal

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
class FrontEnd:
    """The one process that reads requests and writes answers: seconds of a core that it takes for each request, half of
    them before its call, and for each call; and the cores that it shares with replicas, which step back for it. Those
    on devices of their own share none.

    >>> FrontEnd(request_seconds=0.0005).rate
    2000.0
    """

    request_seconds: float = 0.0
    call_seconds: float = 0.0
    cores: float = math.inf

    @property
    def rate(self) -> float:
        """Requests a second that it can pass on."""
        return 1 / self.request_seconds if self.request_seconds else math.inf


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
    front: FrontEnd = FrontEnd(),  # noqa: B008
    seed: int = 0,
) -> QueueForecast:
    """Requests of a row each at these moments. A replica that is free takes the oldest requests, up to what it may, as
    soon as they fill its call or the oldest has waited `wait_seconds`; the `front` end does one thing after another, in
    the order that they come; `overhead` is what a request takes beside.

    >>> one = ReplicaGroup("cpu", 1, 1, LatencyCurve(((1, 0.1),)))
    >>> seen = forecast([one], [0.0, 0.0, 1.0])
    >>> round(seen.p50, 3), round(seen.p99, 3)
    (0.1, 0.2)
    """
    swings = np.random.default_rng(seed).standard_normal(len(arrivals))
    server = _SimulatedServer(groups, front, wait_seconds, [float(each) for each in swings])
    server.run(arrivals)
    latencies = sorted(each + overhead for each in server.latencies)
    span = max(server.now, 1e-12) * max(1, len(server.replicas))
    return QueueForecast(
        p50=latencies[len(latencies) // 2],
        p99=latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        busy=min(1.0, server.busy_seconds / span),
        mean_rows=len(latencies) / max(1, server.calls),
    )


# What the front end does: a request came, a replica has answered a call, an answer is written.
_Job = tuple[Literal["request", "answer", "reply"], float, int, list[float]]


class _SimulatedServer:
    """Moves from one event to the next. Calls under way all go at one speed, that of the cores which the front end
    leaves them, so that what they have done is one number (`_done`) and each ends where that reaches its own."""

    def __init__(
        self, groups: Sequence[ReplicaGroup], front: FrontEnd, wait_seconds: float, swings: Sequence[float]
    ) -> None:
        self.replicas = [group for group in groups for _ in range(group.count)]
        self._front, self._wait_seconds, self._swings = front, wait_seconds, swings
        order = sorted(range(len(self.replicas)), key=lambda number: self.replicas[number].curve.seconds(1))
        self._rank = {number: place for place, number in enumerate(order)}
        self._free = [(place, number) for number, place in sorted(self._rank.items(), key=lambda each: each[1])]
        self._under_way: list[tuple[float, int, list[float]]] = []
        self._waiting: collections.deque[float] = collections.deque()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._job_ends: float | None = None
        self._done = 0.0
        self.now, self.busy_seconds, self.calls = 0.0, 0.0, 0
        self.latencies: list[float] = []

    def run(self, arrivals: Sequence[float]) -> None:
        """Until all are answered."""
        following = 0
        while len(self.latencies) < len(arrivals):
            self._advance(min(self._next(), arrivals[following] if following < len(arrivals) else math.inf))
            while self._under_way and self._under_way[0][0] <= self._done + 1e-9:
                _, number, taken = heapq.heappop(self._under_way)
                self._jobs.append(("answer", self._front.call_seconds, number, taken))
            while following < len(arrivals) and arrivals[following] <= self.now:
                self._jobs.append(("request", self._front.request_seconds / 2, 0, [arrivals[following]]))
                following += 1
            self._do_jobs()
            self._call()

    @property
    def _speed(self) -> float:
        left = self._front.cores - (self._job_ends is not None)
        return min(1.0, max(0.0, left) / max(1, len(self._under_way)))

    def _next(self) -> float:
        """When something happens next, but for requests that come."""
        found = math.inf if self._job_ends is None else self._job_ends
        if self._under_way and self._speed > 0:
            found = min(found, self.now + max(0.0, self._under_way[0][0] - self._done) / self._speed)
        if self._free and self._waiting:
            found = min(found, self._waiting[0] + self._wait_seconds)
        return found

    def _advance(self, moment: float) -> None:
        moment = max(self.now, moment)
        self._done += self._speed * (moment - self.now)
        self.now = moment

    def _do_jobs(self) -> None:
        """Those that are finished by now; the next is begun."""
        while self._jobs:
            if self._job_ends is None:
                self._job_ends = self.now + self._jobs[0][1]
            if self._job_ends > self.now + 1e-12:
                return
            self._job_ends = None
            self._finish(*self._jobs.popleft())

    def _finish(self, kind: str, seconds: float, number: int, moments: list[float]) -> None:
        if kind == "request":
            self._waiting.extend(moments)
        elif kind == "reply":
            self.latencies.append(self.now - moments[0])
        else:
            heapq.heappush(self._free, (self._rank[number], number))
            self._jobs.extend(("reply", self._front.request_seconds / 2, 0, [moment]) for moment in moments)

    def _call(self) -> None:
        """Have free replicas take what waits."""
        while self._free and self._waiting:
            _, number = self._free[0]
            group = self.replicas[number]
            is_full = len(self._waiting) >= group.batch_rows
            if not is_full and self.now < self._waiting[0] + self._wait_seconds - 1e-12:
                return
            heapq.heappop(self._free)
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), group.batch_rows))]
            seconds = group.curve.seconds(len(taken)) * math.exp(group.curve.sigma * self._swings[self.calls])
            heapq.heappush(self._under_way, (self._done + seconds, number, taken))
            self.busy_seconds, self.calls = self.busy_seconds + seconds, self.calls + 1
