"""Replicas that take calls from one queue: a lost one is replaced and its requests are asked again, all are exchanged
for those of another model without a request between."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy

from dovetail.serve.server.batching import Overloaded, PendingRequest, RequestQueue
from dovetail.serve.server.replica import Answered, Answering, Replica, ReplicaLost
from dovetail.vocabulary import DovetailError

# Seconds for one call, after which a replica counts as lost; and how often the same rows are asked again.
_CALL_SECONDS, _TRIES = 60.0, 2


@dataclasses.dataclass(slots=True)
class PoolCounts:
    """How many calls and rows a pool has answered so far, and how many replicas it has lost or swapped."""

    calls: int = 0
    rows: int = 0
    replicas_lost: int = 0
    swaps: int = 0
    compute_seconds: float = 0.0
    call_seconds: float = 0.0


@dataclasses.dataclass(slots=True, eq=False)
class _WorkingReplica:
    replica: Replica
    is_retired: bool = False
    task: asyncio.Task[None] | None = None


class ReplicaPool:
    """So many replicas of a model, each with `threads` to compute."""

    def __init__(
        self, load: Callable[[], Answering], *, queue: RequestQueue, replicas: int = 1, threads: int = 1
    ) -> None:
        self._load, self._queue, self._count, self._threads = load, queue, replicas, threads
        self._running: list[_WorkingReplica] = []
        self._is_closing = False
        self.counts = PoolCounts()

    @property
    def ready(self) -> int:
        """How many replicas answer."""
        return sum(each.replica.process.is_alive() for each in self._running)

    @property
    def processes(self) -> list[int]:
        """The process numbers of the replicas."""
        return [each.replica.process.pid or 0 for each in self._running]

    async def start(self) -> None:
        """Return when all replicas have loaded the model."""
        self._running = await self._start_replicas(self._load, self._count)
        self._queue.replicas = self._count

    async def swap(self, load: Callable[[], Answering]) -> None:
        """Answer by another model from now on: it is loaded beside, then takes over; calls under way are finished.
        Where it cannot be loaded, nothing changes."""
        fresh = await self._start_replicas(load, self._count)
        before, self._running, self._load = self._running, fresh, load
        self.counts.swaps += 1
        await self._retire(before)

    async def resize(self, count: int) -> None:
        """More replicas, or fewer; calls under way are finished."""
        more = count - len(self._running)
        self._count = self._queue.replicas = count
        if more > 0:
            self._running += await self._start_replicas(self._load, more)
        elif more < 0:
            retired, self._running = self._running[more:], self._running[:more]
            await self._retire(retired)

    async def close(self) -> None:
        """Answer the requests that wait, then end all replicas."""
        self._is_closing = True
        self._queue.close()
        tasks = [each.task for each in self._running if each.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._retire(self._running)
        self._running = []

    async def _start_replicas(self, load: Callable[[], Answering], count: int) -> list[_WorkingReplica]:
        loop = asyncio.get_running_loop()
        made = [Replica(load, threads=self._threads) for _ in range(count)]
        ready = [loop.create_task(asyncio.to_thread(replica.wait_ready)) for replica in made]
        try:
            await asyncio.gather(*ready)
        except BaseException:
            await asyncio.gather(*ready, return_exceptions=True)
            for replica in made:
                replica.stop()
            raise
        found = [_WorkingReplica(replica) for replica in made]
        for each in found:
            each.task = loop.create_task(self._work(each))
        return found

    async def _retire(self, retired: Sequence[_WorkingReplica]) -> None:
        for each in retired:
            each.is_retired = True
        self._queue.wake_all()
        await asyncio.gather(*(each.task for each in retired if each.task is not None), return_exceptions=True)
        for each in retired:
            each.replica.stop()

    async def _work(self, each: _WorkingReplica) -> None:
        """Let a replica answer requests of the queue until it is retired."""
        while requests := await self._queue.take(is_retired=lambda: each.is_retired):
            try:
                await self._call(each.replica, requests)
            except ReplicaLost:
                self._queue.release(requests)
                await self._replace(each, requests)
                return
            self._queue.release(requests)

    async def _call(self, replica: Replica, requests: Sequence[PendingRequest]) -> None:
        arrays = [numpy.concatenate(parts) for parts in zip(*(each.arrays for each in requests), strict=True)]
        began = time.perf_counter()  # a loop's own clock may count milliseconds
        try:
            answers, seconds = await replica.call(arrays, within=_CALL_SECONDS)
        except ReplicaLost:
            raise
        except DovetailError as error:
            if len(requests) == 1:
                _settle(requests[0], error)
                return
            for request in requests:  # one of them is to blame, the others are not
                await self._call(replica, [request])
            return
        rows = len(arrays[0])
        taken = time.perf_counter() - began  # with what passing it there and back takes
        self._queue.learn(rows, taken)
        self.counts.calls += 1
        self.counts.rows += rows
        self.counts.compute_seconds += seconds
        self.counts.call_seconds += taken
        at = 0
        for request in requests:
            _settle(request, answers.part(at, request.rows))
            at += request.rows

    async def _replace(self, lost: _WorkingReplica, requests: Sequence[PendingRequest]) -> None:
        """Start another replica for one that was lost; its rows are asked again, not more often than twice in all."""
        self.counts.replicas_lost += 1
        again = [each for each in requests if each.tries + 1 < _TRIES]
        for each in requests:
            if each not in again:
                _settle(each, Overloaded("the replicas that were asked were lost.", retry_after=1.0))
        self._queue.put_back(again)
        if lost in self._running:
            self._running.remove(lost)
        lost.replica.stop()
        if self._is_closing or lost.is_retired:
            return
        self._running += await self._start_replicas(self._load, 1)


def _settle(request: PendingRequest, found: Answered | Exception) -> None:
    if request.answer.done():
        return
    if isinstance(found, Exception):
        request.answer.set_exception(found)
    else:
        request.answer.set_result(found)
