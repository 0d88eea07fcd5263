"""What calls take where they are served: through a replica's process, pipe included."""

import time
from collections.abc import Callable, Sequence

from dovetail.planning.serving import LatencyCurve
from dovetail.serve.server.replica import Answering, Replica
from dovetail.serve.server.schema import Schema

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_TIMES, _MOST_SECONDS = 15, 1.5


def measure_latency(
    load: Callable[[], Answering], schema: Schema, *, threads: int = 1, rows: Sequence[int] = _ROWS
) -> LatencyCurve:
    """The latencies of calls by their rows, on a replica that is started for it. Where a call takes long, fewer are
    made."""
    replica = Replica(load, threads=threads)
    try:
        replica.wait_ready()
        samples: dict[int, list[float]] = {}
        for count in rows:
            arrays = schema.example(count)
            replica.ask(arrays, within=60.0)
            samples[count], began = [], time.perf_counter()
            while len(samples[count]) < _TIMES and (
                len(samples[count]) < 3 or time.perf_counter() - began < _MOST_SECONDS
            ):
                sent = time.perf_counter()
                replica.ask(arrays, within=60.0)
                samples[count].append(time.perf_counter() - sent)
        return LatencyCurve.measured(samples)
    finally:
        replica.stop()
