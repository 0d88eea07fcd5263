"""What the links between nodes carry, measured: each node sends to another at once, as a gang's ranks do.

A process on each node listens for a moment, on the address that the others know it by; who does not say the measuring's
secret first is not listened to. All pairs a given distance apart are measured at the same time, so that what a port has
for all of them is what is found. What was measured of two nodes lately is not measured again; of many nodes, pairs that
are far apart are not measured at all, and `Cluster.link` foresees them.
"""

import contextlib
import itertools
import secrets
import socket
import statistics
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dovetail.engines.ray.connection import installed
from dovetail.vocabulary import DovetailError, Link

_BYTES = 32 << 20
_PINGS = 20
# Every pair of up to 17 nodes; of more not every pair is measured, but so many neighbours of each on both sides.
_DISTANCES = 8
PROBE_SECONDS = 45.0
_CONNECT_SECONDS = 10.0


def measure_links(numbers: Mapping[str, str], *, known: Collection[frozenset[str]] = ()) -> tuple[Link, ...]:
    """The links between these nodes, given by name with Ray's numbers, but those between two names that are `known`.
    Raises `DovetailError` naming two nodes that cannot reach each other by TCP."""
    with contextlib.closing(LinkMeasurement(numbers, known=known)) as measurement:
        if (links := measurement.poll(PROBE_SECONDS)) is None:
            raise DovetailError(
                f"the links between {len(numbers)} nodes must be measured within {PROBE_SECONDS:.0f} s; they were not. "
                f"Look whether all nodes answer (dovetail cluster --engine ray)."
            )
        return links


class LinkMeasurement:
    """The same while it is under way: `poll` takes the next step, if it is time to, and `close` ends it."""

    def __init__(self, numbers: Mapping[str, str], *, known: Collection[frozenset[str]] = ()) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, names, secret = installed(), list(numbers), secrets.token_bytes(16)
        self._rounds = [
            pairs
            for distance in range(1, min(len(names) // 2, _DISTANCES) + 1)
            if (pairs := [pair for pair in _pairs_apart(names, distance) if frozenset(pair) not in known])
        ]
        remote = self._ray.remote(_NodeProbe)
        self._probes = {
            name: remote.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(numbers[name], soft=False)
            ).remote(name, secret)
            for name in dict.fromkeys(itertools.chain.from_iterable(itertools.chain(*self._rounds)))
        }
        self._places: dict[str, Any] = {}
        self._links: list[Link] = []
        self._calls = [each.listen.remote() for each in self._probes.values()]

    def poll(self, seconds: float = 0.0) -> tuple[Link, ...] | None:
        """The links, once all are measured; waits up to `seconds` for each round. Raises as `measure_links`."""
        while self._calls:
            _, silent = self._ray.wait(self._calls, num_returns=len(self._calls), timeout=seconds)
            if silent:
                return None
            try:
                found = self._ray.get(self._calls)
            except self._ray.exceptions.RayTaskError as error:
                raise DovetailError(str(error.cause)) from error
            if self._places:
                self._links += found
            else:
                self._places = dict(zip(self._probes, found, strict=True))
            pairs = self._rounds.pop(0) if self._rounds else []
            self._calls = [self._probes[name].measure.remote(other, self._places[other]) for name, other in pairs]
        return tuple(self._links)

    def close(self) -> None:
        """End the processes on the nodes. May be called twice."""
        for probe in self._probes.values():
            self._ray.kill(probe)
        self._probes.clear()


def _pairs_apart(names: Sequence[str], distance: int) -> list[tuple[str, str]]:
    """Each with the one so far behind it in a ring, each pair once."""
    pairs = [(name, names[(at + distance) % len(names)]) for at, name in enumerate(names)]
    return pairs[: len(names) // 2] if 2 * distance == len(names) else pairs


class _NodeProbe:
    """One node's end of its links; lives there."""

    def __init__(self, name: str, secret: bytes) -> None:
        self._name, self._secret = name, secret

    def listen(self) -> tuple[str, int]:
        """Take what others send, from now on; where."""
        address = installed().util.get_node_ip_address()
        server = socket.create_server((address, 0), backlog=16)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return address, server.getsockname()[1]

    def measure(self, node: str, there: tuple[str, int]) -> Link:
        """The link to another node, which listens there."""
        try:
            with socket.create_connection((there[0], there[1]), timeout=_CONNECT_SECONDS) as line:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.sendall(self._secret)
                pings = [_ping(line) for _ in range(_PINGS)]
                began = time.perf_counter()
                line.sendall(bytes(_BYTES))
                _read(line, 1)
                seconds = time.perf_counter() - began
        except OSError as error:
            raise DovetailError(
                f"nodes must reach one another by TCP; from {self._name} on {socket.gethostname()} to {node} at "
                f"{there[0]} port {there[1]}: {error}. Open the ports between the nodes (a firewall?)."
            ) from error
        latency = statistics.median(pings) / 2
        return Link(
            source=self._name,
            target=node,
            bytes_per_second=_BYTES / max(seconds - 2 * latency, 1e-9),
            latency_seconds=latency,
            between_nodes=True,
            measured_seconds=time.time(),
        )

    def _accept(self, server: socket.socket) -> None:
        while True:
            line, _ = server.accept()
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):  # whoever measures says what went wrong
            line.settimeout(_CONNECT_SECONDS)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not secrets.compare_digest(_read(line, len(self._secret)), self._secret):
                return
            for _ in range(_PINGS):
                line.sendall(_read(line, 1))
            _skip(line, _BYTES)
            line.sendall(b".")


def _ping(line: socket.socket) -> float:
    began = time.perf_counter()
    line.sendall(b".")
    _read(line, 1)
    return time.perf_counter() - began


def _read(line: socket.socket, count: int) -> bytes:
    """So many bytes."""
    found = b""
    while len(found) < count:
        found += _receive(line, count - len(found))
    return found


def _skip(line: socket.socket, count: int) -> None:
    """Let so many bytes come."""
    while count > 0:
        count -= len(_receive(line, min(count, 1 << 20)))


def _receive(line: socket.socket, most: int) -> bytes:
    part = line.recv(most)
    if not part:
        raise ConnectionError("it was closed")
    return part
