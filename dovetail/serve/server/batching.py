"""Requests that come close together become one call: up to so many rows, the oldest waits for no longer than so long.

Knows arrays with rows and workers that answer a call; nothing of HTTP or models.
"""

import asyncio
import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy

from dovetail.vocabulary import DovetailError

# Of what a call takes, how much the newest one counts.
_NEWEST = 0.1


class Overloaded(DovetailError):
    """More is asked than is answered in time; `retry_after` says in how many seconds to ask again.

    >>> Overloaded("busy", retry_after=2.0).retry_after
    2.0
    """

    def __init__(self, text: str, *, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@dataclasses.dataclass(slots=True, eq=False)
class PendingRequest:
    """Rows that wait for their answer. `tries` counts calls that were lost with their replica."""

    arrays: list[numpy.ndarray]
    answer: asyncio.Future[numpy.ndarray]
    came: float
    deadline: float
    tries: int = 0

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.arrays[0])

    @property
    def fits(self) -> tuple[tuple[int, ...], ...]:
        """Requests with the same can be one call."""
        return tuple(array.shape[1:] for array in self.arrays)


class RequestQueue:
    """Requests in the order they came. Replicas take from it as they are free, so that the quicker ones take more."""

    def __init__(self, *, batch_rows: int, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.batch_rows, self.wait_seconds, self._clock = batch_rows, wait_seconds, clock
        self._waiting: collections.deque[PendingRequest] = collections.deque()
        self._changed = asyncio.Condition()
        self._rows = 0
        self._row_seconds = 0.0
        self.asked = 0
        self.replicas = 1
        self.is_closed = False

    @property
    def rows_waiting(self) -> int:
        """Of all requests."""
        return self._rows

    def expected_seconds(self, rows: int) -> float:
        """How long so many rows more would wait for their answer, by what calls took so far."""
        return (self._rows + rows) * self._row_seconds / max(1, self.replicas)

    def learn(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long."""
        found = seconds / rows
        self._row_seconds += _NEWEST * (found - self._row_seconds) if self._row_seconds else found

    async def ask(self, arrays: list[numpy.ndarray], *, within: float) -> numpy.ndarray:
        """The answer to these rows. Raises `Overloaded` at once where it would come too late, and `TimeoutError`
        where it does."""
        rows = len(arrays[0])
        self.asked += 1
        expected = self.expected_seconds(rows)
        if self.is_closed or (self._waiting and expected > within):
            raise Overloaded(
                f"{self._rows} rows wait, for about {expected:.2g} s, longer than the {within:.2g} s that an answer "
                f"may take.",
                retry_after=max(0.0, expected - within / 2),
            )
        now = self._clock()
        request = PendingRequest(arrays, asyncio.get_running_loop().create_future(), now, now + within)
        await self._add(request, first=False)
        return await asyncio.wait_for(request.answer, within)

    async def put_back(self, requests: Sequence[PendingRequest]) -> None:
        """Requests whose replica was lost, to the front: they have waited longest."""
        for request in reversed(requests):
            request.tries += 1
            await self._add(request, first=True)

    async def _add(self, request: PendingRequest, *, first: bool) -> None:
        async with self._changed:
            (self._waiting.appendleft if first else self._waiting.append)(request)
            self._rows += request.rows
            self._changed.notify_all()

    async def take(self) -> list[PendingRequest]:
        """The next requests for one call, as soon as they are enough or the oldest has waited long enough; none when
        the queue is closed."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting or self.is_closed)
                if not self._waiting:
                    return []
                left = self._waiting[0].came + self.wait_seconds - self._clock()
                if self._rows < self.batch_rows and left > 0 and not self.is_closed:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), left)
                    continue
                if found := self._take_now():
                    return found

    def _take_now(self) -> list[PendingRequest]:
        found: list[PendingRequest] = []
        rows, now = 0, self._clock()
        while self._waiting:
            first = self._waiting[0]
            is_late = first.answer.done() or first.deadline <= now
            if not is_late and found and (rows + first.rows > self.batch_rows or first.fits != found[0].fits):
                break
            self._waiting.popleft()
            self._rows -= first.rows
            if not is_late:  # whoever asked has gone
                found.append(first)
                rows += first.rows
        return found

    async def close(self) -> None:
        """Take nothing more; what waits is still answered."""
        async with self._changed:
            self.is_closed = True
            self._changed.notify_all()
