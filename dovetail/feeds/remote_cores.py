"""Idle cores of other nodes, as seen by the process that reads a feed: a socket on this machine, behind which somebody
who knows the other nodes lends their cores.

A core that is borrowed is a process there that runs the same stages in the same way as one here, and what comes to the
socket are the messages of its channel. Whoever lends a core may take it back at any time: then the channel ends. Knows
sockets and channels; knows nothing of nodes.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator

from dovetail.feeds.transport import Channel

# A node that does not answer for so long is not worth waiting for.
_ASK_SECONDS = 10.0
# Until a process is there that has imported what the stages need.
_BORROW_SECONDS = 120.0


class NoIdleCore(Exception):
    """No core of another node could be borrowed; the words say why. `is_lasting` where it will be so the next time."""

    def __init__(self, why: str, *, is_lasting: bool = False) -> None:
        super().__init__(why)
        self.is_lasting = is_lasting


class RemoteCores:
    """Cores of other nodes that may be borrowed through the socket at `address`. May be called from any thread."""

    def __init__(self, address: str) -> None:
        self._address = address

    def count_idle(self) -> int:
        """How many cores could be borrowed now; 0 where nobody answers."""
        try:
            with self._open_channel(_ASK_SECONDS) as channel:
                channel.send(("idle",))
                return int(channel.receive())
        except (OSError, EOFError):
            return 0

    def round_trip(self, size: int, *, times: int = 1) -> list[tuple[float, float]]:
        """How many seconds it takes to send a few bytes to another node and have `size` bytes back, as a batch comes
        back, and how many of them on a core here; so many times. Raises `NoIdleCore` where nobody answers."""
        found = []
        try:
            with self._open_channel(_BORROW_SECONDS) as channel:
                for _ in range(times):
                    began, busy = time.perf_counter(), time.thread_time()
                    channel.send(("echo", size))
                    channel.receive_encoded()
                    found.append((time.perf_counter() - began, time.thread_time() - busy))
                return found
        except (OSError, EOFError) as error:
            raise NoIdleCore(f"the other node does not answer: {error or 'it is gone'}") from error

    def borrow(self, pickled: bytes) -> Channel:
        """A channel to a process on another node that has these stages. Raises `NoIdleCore`."""
        try:
            channel = self._connect(_BORROW_SECONDS)
            try:
                channel.send(("borrow", list(sys.path), pickled))
                is_lent, why = channel.receive()
            except BaseException:
                channel.close()
                raise
        except (OSError, EOFError) as error:
            raise NoIdleCore(f"nobody lends one: {error or 'the other side is gone'}") from error
        if not is_lent:
            channel.close()
            raise NoIdleCore(why or "none is idle", is_lasting=bool(why))
        return channel

    @contextlib.contextmanager
    def _open_channel(self, seconds: float) -> Iterator[Channel]:
        with self._connect(seconds) as channel:
            yield channel

    def _connect(self, seconds: float) -> Channel:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds)
            connection.connect(self._address)
        except OSError:
            connection.close()
            raise
        return Channel(connection)
