"""Idle cores of a node for the feeds of others: lent as long as no order of this node wants them.

A core that is lent is a process that the feed's own process server forks here, bound to that core; its messages pass
through, as bytes, by whoever calls. All of a node's cores are reserved for the run in Ray, so that nobody else has
them; among the run's own orders this decides: an order that begins on a core takes it back at once, and whoever had
borrowed it reads again elsewhere what was under way. Knows processes and channels; knows nothing of Ray.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    from dovetail.feeds.process_server import ProcessServer
    from dovetail.feeds.transport import Channel

Passed = tuple[bytes, list[Any]]
"""A message as `feeds.transport.encode` gives it, with its buffers as arrays of bytes, which Ray does not copy."""


@dataclasses.dataclass(slots=True)
class _LentCore:
    core: int
    server: str  # the digest of its stages
    channel: "Channel | None" = None  # None until its process is there
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class CoreLender:
    """Lends the cores of a node. `idle` gives the numbers of those that no order has now; `code` is where this node's
    copy of the shipped code lies. May be called from any thread."""

    def __init__(self, idle: Callable[[], Collection[int]], *, code: Path) -> None:
        self._idle, self._code = idle, code
        self._lock = threading.Lock()
        self._lent: dict[int, _LentCore] = {}
        self._servers: dict[str, ProcessServer] = {}
        self._numbers = itertools.count(1)

    def idle_cores(self) -> int:
        """How many cores could be lent now."""
        with self._lock:
            return len(self._free())

    def lend(self, path: Sequence[str], code: str, pickled: bytes) -> tuple[int, str]:
        """A process with these stages on an idle core: its number here, or 0 where none is idle, with the reason where
        that cannot be the next time either. `path` is where its borrower imports from, with its shipped code at
        `code`."""
        digest = hashlib.sha256(pickled).hexdigest()
        with self._lock:
            free = self._free()
            if not free:
                return 0, ""
            number = next(self._numbers)
            lent = self._lent[number] = _LentCore(free[0], digest)
            server = self._server(digest, path, code, pickled)
        try:
            pid, channel = server.fork()
        except DovetailError as error:
            self.release(number)
            return 0, str(error)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, {lent.core})
        with self._lock:
            if number in self._lent:
                lent.channel = channel
                return number, ""
        channel.close()
        return 0, ""  # it was taken back

    def send(self, number: int, message: bytes, buffers: Sequence[Any]) -> bool:
        """Pass a message on to a process; whether it is there."""
        lent = self._lent.get(number)
        if lent is None or lent.channel is None:
            return False
        try:
            with lent.sending:
                lent.channel.send_encoded(message, buffers)
        except OSError:
            return False
        return True

    def receive(self, number: int) -> Passed | None:
        """Wait for the next message of a process; None where it is gone."""
        lent = self._lent.get(number)
        if lent is None or lent.channel is None:
            return None
        try:
            return as_passed(*lent.channel.receive_encoded())
        except (OSError, EOFError):
            with lent.sending:
                lent.channel.close()
            return None

    def release(self, number: int) -> None:
        """A core is not wanted any more. May be called twice."""
        with self._lock:
            self._end([number])

    def reclaim(self) -> None:
        """Take back what is not idle any more: an order has begun."""
        with self._lock:
            idle = set(self._idle())
            self._end([number for number, lent in self._lent.items() if lent.core not in idle])

    def _free(self) -> list[int]:
        taken = {lent.core for lent in self._lent.values()}
        return [core for core in self._idle() if core not in taken]

    def _server(self, digest: str, path: Sequence[str], code: str, pickled: bytes) -> "ProcessServer":
        from dovetail.feeds.process_server import ProcessServer  # imports torch, for which a host has no other use

        if digest not in self._servers:
            found = [str(self._code) + each.removeprefix(code) if each.startswith(code) else each for each in path]
            self._servers[digest] = ProcessServer(pickled, path=found)
        return self._servers[digest]

    def _end(self, numbers: Collection[int]) -> None:
        for number in numbers:
            lent = self._lent.pop(number, None)
            if lent is not None and lent.channel is not None:
                lent.channel.shut()  # whoever waits for it is told, and its process ends
        unused = self._servers.keys() - {lent.server for lent in self._lent.values()}
        for digest in unused:
            self._servers.pop(digest).close()


def as_passed(message: Any, buffers: Sequence[Any]) -> Passed:
    """What `receive_encoded` of a channel gave, ready for Ray."""
    return bytes(message), [numpy.frombuffer(buffer, dtype=numpy.uint8) for buffer in buffers]
