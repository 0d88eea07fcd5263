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
    names = list(numbers)
    rounds = [
        pairs
        for distance in range(1, min(len(names) // 2, _DISTANCES) + 1)
        if (pairs := [pair for pair in _pairs_apart(names, distance) if frozenset(pair) not in known])
    ]
    if not rounds:
        return ()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray, secret = installed(), secrets.token_bytes(16)
    remote = ray.remote(_NodeProbe)
    probes = {
        name: remote.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(numbers[name], soft=False)
        ).remote(name, secret)
        for name in {name: None for pairs in rounds for pair in pairs for name in pair}
    }
    try:
        places = dict(
            zip(probes, ray.get([each.listen.remote() for each in probes.values()], timeout=PROBE_SECONDS), strict=True)
        )
        found: list[Link] = []
        for pairs in rounds:
            calls = [probes[source].measure.remote(target, places[target]) for source, target in pairs]
            found += ray.get(calls, timeout=PROBE_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise DovetailError(
            f"the links between {len(probes)} nodes must be measured within {PROBE_SECONDS:.0f} s; they were not. "
            f"Look whether all nodes answer (dovetail cluster --engine ray)."
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise DovetailError(str(error.cause)) from error
    finally:
        for probe in probes.values():
            ray.kill(probe)
    return tuple(found)


def begin_measuring(numbers: Mapping[str, str], *, newcomer: str) -> Any:
    """Have the links between a node and others measured, without waiting: Ray's call, for `finish_measuring`."""
    known = [frozenset(pair) for pair in itertools.combinations(numbers, 2) if newcomer not in pair]
    return installed().remote(measure_links).options(num_cpus=0).remote(dict(numbers), known=known)


def finish_measuring(call: Any) -> tuple[Link, ...]:
    """What a call that was begun has measured; raises as `measure_links` does."""
    ray = installed()
    try:
        found: tuple[Link, ...] = ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise DovetailError(str(error.cause)) from error
    return found


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
