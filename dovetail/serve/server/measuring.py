"""What requests take where they are served: a server with one replica, asked over HTTP, so many rows at once that each
time they are one call. Its process is measured in seconds of CPU, calls by the clock."""

import asyncio
import contextlib
import http.client
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import NamedTuple

import numpy
import orjson

from dovetail.planning.serving import FrontEnd, LatencyCurve
from dovetail.serve.server.batching import RequestQueue
from dovetail.serve.server.model_server import http_server, listen, run_loop
from dovetail.serve.server.replica import Answering
from dovetail.serve.server.replica_pool import ReplicaPool
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_TIMES, _AT_ONCE, _MOST_SECONDS = 15, 3, 1.5
# How long a call waits for the rest of its rows, and a request for its answer: longer than either takes.
_TOGETHER_SECONDS, _WITHIN_SECONDS, _LONG_SECONDS = 5.0, 60.0, 5.0


class ServerMeasures(NamedTuple):
    """What calls take by their rows, and the process that reads requests for each request and each call."""

    curve: LatencyCurve
    front: FrontEnd


def measure_server(
    load: Callable[[], Answering],
    schema: Schema,
    *,
    threads: int = 1,
    rows: Sequence[int] = _ROWS,
    cores: float = math.inf,
) -> ServerMeasures:
    """By a server that is started for it. Where a call takes long, fewer are made. `cores` are those that replicas
    share with the process that reads requests, where they compute on cores, each on `threads` of them."""
    samples, cpu_seconds = run_loop(_measure(load, schema, threads, rows))
    # A call's seconds in the server's process are those beside what grows with the requests in it. They are told by the
    # calls of few, so what a fit misses counts by its share.
    costs = numpy.array(list(cpu_seconds.values()))
    request, call = numpy.polyfit(list(cpu_seconds), costs, 1, w=1 / costs) if len(samples) > 1 else (0.0, 0.0)
    front = FrontEnd(
        request_seconds=max(0.0, float(request)), call_seconds=max(0.0, float(call)), cores=(cores - 1) / threads + 1
    )
    # That process sends and receives a call itself: it counts once.
    beside = {count: [max(each - front.call_seconds, each / 2) for each in found] for count, found in samples.items()}
    return ServerMeasures(LatencyCurve.measured(beside), front)


async def _measure(
    load: Callable[[], Answering], schema: Schema, threads: int, rows: Sequence[int]
) -> tuple[dict[int, list[float]], dict[int, float]]:
    """By rows of a call: the seconds of some calls, and the seconds of CPU of this thread, the server's, for one."""
    from dovetail.serve.server.model_app import ModelApp

    queue = RequestQueue(batch_rows=1, wait_seconds=_TOGETHER_SECONDS)
    pool = ReplicaPool(load, queue=queue, threads=threads)
    await pool.start()
    listener = listen("127.0.0.1", 0)
    server = http_server(ModelApp(pool, queue, schema, within=_WITHIN_SECONDS))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    samples: dict[int, list[float]] = {}
    cpu_seconds: dict[int, float] = {}
    try:
        with _connections(listener.getsockname()[1], max(rows)) as connections:
            for count in rows:
                queue.batch_rows = count
                ask = _Asking(connections[:count], schema, pool)
                await asyncio.to_thread(ask.time_call)
                samples[count], costs = [], list[float]()
                until = time.perf_counter() + _MOST_SECONDS
                while len(costs) < _TIMES // _AT_ONCE and (not costs or time.perf_counter() < until):
                    began = time.thread_time()
                    samples[count] += await asyncio.to_thread(ask.time_calls, _AT_ONCE)
                    costs.append((time.thread_time() - began) / _AT_ONCE)
                cpu_seconds[count] = statistics.median(costs)  # now and then a thread collects garbage
                if min(samples[count]) > _LONG_SECONDS:  # nobody waits for larger ones
                    break
    finally:
        server.should_exit = True
        await serving
        await pool.close()
    return samples, cpu_seconds


class _Asking:
    """A client in a thread of its own: a request on each connection, then their answers."""

    def __init__(self, connections: Sequence[http.client.HTTPConnection], schema: Schema, pool: ReplicaPool) -> None:
        self._connections, self._pool = connections, pool
        arrays = dict(zip((field.name for field in schema.fields), schema.example(1), strict=True))
        inputs = next(iter(arrays.values())) if schema.kind == "one" else arrays
        self._body = orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)

    def time_call(self) -> float:
        """Send all requests at once; gives the seconds of the model's call that they became."""
        before = self._pool.counts.call_seconds
        for connection in self._connections:
            connection.request("POST", "/predict", self._body)
        for connection in self._connections:
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
            if answer.status != HTTPStatus.OK:
                raise DovetailError(
                    f"a model that is served must answer the first row of its batches; this one: {said}"
                )
        return self._pool.counts.call_seconds - before

    def time_calls(self, count: int) -> list[float]:
        """So many calls, one after another; gives the seconds of each."""
        return [self.time_call() for _ in range(count)]


@contextlib.contextmanager
def _connections(port: int, count: int) -> Iterator[list[http.client.HTTPConnection]]:
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)))
            for _ in range(count)
        ]
