"""Where the ranks of orders over several nodes meet: each host serves its own workers at a socket, and what they say
lies with the host of the first rank, to which the others carry it by calls of Ray, under its token.

A worker's own process knows nothing of Ray (`train/meeting_store`). Who leads a meeting the engine says.
"""

import base64
import contextlib
import json
import socketserver
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from dovetail.engines.ray.core_borrowing import GROUP

# How long the answer to one question may take: whoever asked asks again.
WAIT_SECONDS = 2.0
# Until a host has heard of a meeting whose order has come already: by another call, which may come later.
HEAR_SECONDS = 30.0


class Meetings:
    """The meetings of a host: of some it keeps what is said, of others it knows which host does.

    >>> from dovetail.engines.private_folder import PrivateFolder
    >>> folder = PrivateFolder("meetings-")
    >>> meetings = Meetings(folder.path)
    >>> meetings.begin("order")
    >>> meetings.answer("order", "set", "a", b"1"), meetings.answer("order", "wait", "a", b"")
    (b'', b'1')
    >>> meetings.close(), folder.close()
    (None, None)
    """

    def __init__(self, folder: Path) -> None:
        self._said: dict[str, dict[str, bytes]] = {}
        self._leaders: dict[str, Any] = {}
        self._changed = threading.Condition()
        self.address = str(folder / "meet")
        self._server = _Server(self.address, _Handler, self)
        threading.Thread(target=self._server.serve_forever, name="meetings", daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def begin(self, order: str, *, leader: Any = None) -> None:
        """Ranks of this order are to meet, at the host `leader` of another node, or here where there is none."""
        with self._changed:
            if leader is not None:
                self._leaders[order] = leader
            else:
                self._said[order] = {}
            self._changed.notify_all()

    def end(self, order: str) -> None:
        """Nobody meets there any more."""
        with self._changed:
            self._said.pop(order, None)
            self._leaders.pop(order, None)
            self._changed.notify_all()

    def answer(self, order: str, word: str, key: str, value: bytes) -> bytes | None:
        """What was said under a key, after a moment's `wait` if need be, or the new count after `add`; None where it
        was not said. Raises `LookupError` where there is no such meeting here."""
        with self._changed:
            until = time.monotonic() + (WAIT_SECONDS if word == "wait" else 0.0)
            while word == "wait" and key not in self._of(order) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            said = self._of(order)
            if word in ("wait", "get"):
                return said.get(key)
            said[key] = value if word == "set" else str(int(said.get(key, b"0")) + int(value)).encode()
            self._changed.notify_all()
            return b"" if word == "set" else said[key]

    def pass_on(self, order: str, word: str, key: str, value: bytes) -> bytes | None:
        """The same of a meeting wherever it lies."""
        with self._changed:
            self._changed.wait_for(lambda: order in self._said or order in self._leaders, HEAR_SECONDS)
            leader = self._leaders.get(order)
        if leader is None:
            return self.answer(order, word, key, value)
        import ray

        call = leader.meet.options(concurrency_group=GROUP).remote(order, word, key, value)
        found: bytes | None = ray.get(call)
        return found

    def _of(self, order: str) -> dict[str, bytes]:
        if order not in self._said:
            raise LookupError(f"nobody meets for {order} any more")
        return self._said[order]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, handler: type[socketserver.StreamRequestHandler], meetings: Meetings) -> None:
        super().__init__(address, handler)
        self.meetings = meetings


class _Handler(socketserver.StreamRequestHandler):
    """One question of a worker, a line of JSON, and its answer."""

    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(self.rfile.readline())
            try:
                value = base64.b64decode(said["value"])
                found = self.server.meetings.pass_on(said["meeting"], said["do"], said["key"], value)
                answer = {"value": None if found is None else base64.b64encode(found).decode()}
            except Exception as error:  # Ray's own, too: whoever asked is told, and gives up
                answer = {"error": " ".join(str(error).split())[:300] or type(error).__name__}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def interface_of(address: str) -> str:
    """The interface of this machine that has an address; empty where none has.

    >>> interface_of("203.0.113.1")
    ''
    """
    named = psutil.net_if_addrs().items()
    return next((name for name, found in named if any(each.address == address for each in found)), "")
