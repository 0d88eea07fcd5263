"""Requests that come close together become one call: up to so many rows, the oldest waits for no longer than so long.

Knows arrays with rows and workers that answer a call; nothing of HTTP or models.
"""

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy

from dovetail.serve.server.replica import Answered
from dovetail.vocabulary import DovetailError

# Of what calls take, how much the newest one counts.
_NEWEST = 0.1
# The margin before a deadline, as a share of the time allowed: at first, and at most; for each answer that comes later
# than foretold by more than it, so much is added; the share of answers that may. Large is cheap: a shorter queue
# answers as many. It begins with the most, because calls take longer when a rush begins, and what was taken by then
# cannot be refused any more.
_MARGIN, _CORRECTION, _LATE = 0.5, 0.1, 0.002


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
    answer: asyncio.Future[Answered]
    came: float
    deadline: float
    tries: int = 0

    @property
    def rows(self) -> int:
        """The number of rows that this request asks about."""
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
        self._takers: collections.deque[asyncio.Future[None]] = collections.deque()
        self._rows = self._under_way = 0
        self._recent_rows = self._recent_seconds = 0.0
        self._margin = _MARGIN
        self.asked = 0
        self.replicas = 1
        self.is_closed = False

    @property
    def rows_waiting(self) -> int:
        """The rows of all requests that wait."""
        return self._rows

    def expected_seconds(self, rows: int) -> float:
        """How long so many rows more would wait for their answer, by what calls took so far."""
        row_seconds = self._recent_seconds / self._recent_rows if self._recent_rows else 0.0
        return (self._rows + self._under_way + rows) * row_seconds / max(1, self.replicas)

    def learn(self, rows: int, seconds: float) -> None:
        """Learn that a call of so many rows took so long, the way there and back included."""
        self._recent_rows += _NEWEST * (rows - self._recent_rows)
        self._recent_seconds += _NEWEST * (seconds - self._recent_seconds)

    def refuse_late(self, rows: int, *, within: float) -> float:
        """When so many rows more should be answered, in seconds. Raises `Overloaded` where that may be too late, or
        where nothing is taken any more."""
        expected = self.expected_seconds(rows)
        if self.is_closed or (self._waiting and expected > (1 - self._margin) * within):
            self.asked += 1  # replicas are planned for what comes, not for what is taken
            raise Overloaded(
                f"{self._rows} rows wait, for about {expected:.2g} s, too close to the {within:.2g} s that an answer "
                f"may take.",
                retry_after=max(0.0, expected - within / 2),
            )
        return expected

    async def ask(self, arrays: list[numpy.ndarray], *, within: float) -> Answered:
        """The answer to these rows. Raises `Overloaded` at once where it would come too late, and `TimeoutError`
        where it does."""
        expected = self.refuse_late(len(arrays[0]), within=within)
        self.asked += 1
        now = self._clock()
        request = PendingRequest(arrays, asyncio.get_running_loop().create_future(), now, now + within)
        self._add(request, first=False)
        try:
            async with asyncio.timeout(within):
                return await request.answer
        finally:
            self._correct((self._clock() - now - expected) / within)

    def _correct(self, excess: float) -> None:
        """An answer took longer than foretold by this share of the time allowed: the margin follows what nearly all
        keep to. Half of the time is the most, or nothing would be taken."""
        step = _CORRECTION * ((1 - _LATE) if excess > self._margin else -_LATE)
        self._margin = min(max(0.0, self._margin + step), _MARGIN)

    def put_back(self, requests: Sequence[PendingRequest]) -> None:
        """Put requests whose replica was lost to the front: they have waited longest."""
        for request in reversed(requests):
            request.tries += 1
            self._add(request, first=True)

    def _add(self, request: PendingRequest, *, first: bool) -> None:
        (self._waiting.appendleft if first else self._waiting.append)(request)
        self._rows += request.rows
        if len(self._waiting) == 1 or self._rows >= self.batch_rows:
            self._wake()

    def _wake(self) -> None:
        """Wake one of those that wait for requests, to look again."""
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    async def take(self, *, is_retired: Callable[[], bool] = lambda: False) -> list[PendingRequest]:
        """The next requests for one call, as soon as they are enough or the oldest has waited long enough; none when
        the queue is closed, or whoever takes is retired. Whoever takes says when with `release`."""
        while True:
            if is_retired():
                self._wake()  # this one may have been woken for something that another is to take now
                return []
            if not self._waiting:
                if self.is_closed:
                    return []
                await self._await_wake(None)
                continue
            left = self._waiting[0].came + self.wait_seconds - self._clock()
            if self._rows < self.batch_rows and left > 0 and not self.is_closed:
                await self._await_wake(left)
            elif found := self._take_now():
                self._under_way += sum(each.rows for each in found)
                if self._waiting:
                    self._wake()
                return found

    def release(self, requests: Sequence[PendingRequest]) -> None:
        """Count these requests as under way no more: they are answered, or were put back."""
        self._under_way -= sum(each.rows for each in requests)

    async def _await_wake(self, seconds: float | None) -> None:
        """Return when there may be something to take, or after so many seconds."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            async with asyncio.timeout(seconds):
                await taker
        except TimeoutError:
            pass

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

    def close(self) -> None:
        """Take nothing more; what waits is still answered."""
        self.is_closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Let all that wait for requests look again: one of them may be retired."""
        for _ in range(len(self._takers)):
            self._wake()
