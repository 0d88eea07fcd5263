"""A client that asks at moments drawn beforehand, whether answers have come or not, and takes little of the machine:
plain connections that are kept, requests made before the clock starts, answers read by their length.

Counts what a server does, on the same two cores, so that a client of several hundred microseconds a request would be
what is measured.
"""

import asyncio
import gc
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy


def poisson(rate: float, seconds: float, *, seed: int) -> numpy.ndarray:
    """Moments independent of one another, at this rate."""
    draw = numpy.random.default_rng(seed)
    moments = numpy.cumsum(draw.exponential(1 / rate, int(rate * seconds * 1.5) + 10))
    return moments[moments < seconds]


def ask_all(address: str, moments: Sequence[float], rows: numpy.ndarray) -> list[dict[str, Any]]:
    """What came of a request at each moment: its number, status, what was said, and seconds. Status 0 is none."""
    import uvloop

    gc.collect()
    gc.freeze()  # a collection takes 200 ms, and the server would be charged for them
    return uvloop.run(ask_at(address, moments, rows))


async def ask_at(address: str, moments: Sequence[float], rows: numpy.ndarray) -> list[dict[str, Any]]:
    """The same, within a loop."""
    host, port = address.removeprefix("http://").split(":")
    requests = [_request(row) for row in rows]
    loop = asyncio.get_running_loop()
    free: list[_Connection] = []
    found: list[dict[str, Any]] = []
    finished = loop.create_future()

    def came(number: int, sent: float, status: int, body: bytes) -> None:
        found.append({"number": number, "status": status, "said": body, "seconds": time.perf_counter() - sent})
        if len(found) == len(moments):
            finished.set_result(None)

    async def connect(number: int, sent: float) -> None:
        try:
            _, connection = await loop.create_connection(lambda: _Connection(free, came), host, int(port))
            connection.ask(number, sent, requests[number % len(requests)])
        except OSError as error:
            came(number, sent, 0, str(error).encode())

    connecting = set()
    began = time.perf_counter()
    for number, moment in enumerate(moments):
        left = began + moment - time.perf_counter()
        if left > 0:
            await asyncio.sleep(left)
        sent = began + moment  # what a busy client sends late counts as waited for
        if free:
            free.pop().ask(number, sent, requests[number % len(requests)])
        else:
            connecting.add(asyncio.ensure_future(connect(number, sent)))
    await finished
    for each in free:
        each.close()
    for each in found:
        each["said"] = json.loads(each["said"]) if each["status"] else each["said"].decode()
    return found


def _request(row: numpy.ndarray) -> bytes:
    body = json.dumps({"inputs": [row.tolist()]}).encode()
    return (
        b"POST /predict HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, free: list["_Connection"], came: Any) -> None:
        self._free, self._came = free, came
        self._number: int | None = None
        self._sent, self._data = 0.0, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, number: int, sent: float, request: bytes) -> None:
        self._number, self._sent, self._data = number, sent, b""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end or self._number is None:
            return
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(body) >= length:
            number, self._number = self._number, None
            self._free.append(self)
            self._came(number, self._sent, int(head[9:12]), body)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._free:
            self._free.remove(self)
        if self._number is not None:
            self._came(self._number, self._sent, 0, str(error).encode())

    def close(self) -> None:
        self._transport.close()
