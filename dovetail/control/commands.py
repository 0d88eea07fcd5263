"""How other processes reach a running controller: a Unix socket, one line of JSON each way.

Only this user can: the socket lies in a private directory. Its path is noted in the store's lock, since a
store's own path may be longer than a socket's name can be.
"""

import contextlib
import json
import os
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.store import holder
from dovetail.vocabulary import StoreError

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    # Beyond the default of 5 that wait to be accepted, the kernel refuses (EAGAIN) whoever asks with a timeout.
    request_queue_size = 128


class CommandServer:
    """Answers commands on a thread of its own until closed; `answer` must be safe to call from there.

    >>> with contextlib.closing(CommandServer(lambda request: {"heard": request["do"]})) as server:
    ...     ask_socket(server.path, {"do": "status"})
    {'heard': 'status'}
    """

    def __init__(self, answer: Answer) -> None:
        self._folder = tempfile.mkdtemp(prefix="dovetail-")  # mode 0700
        self.path = os.path.join(self._folder, "control")

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    reply = answer(json.loads(self.rfile.readline()))
                    self.wfile.write(json.dumps(reply).encode() + b"\n")

        self._server = _Server(self.path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        for remove, path in ((os.unlink, self.path), (os.rmdir, self._folder)):
            with contextlib.suppress(OSError):
                remove(path)


def ask_socket(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to a socket and give its answer."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(10)
        channel.connect(path)
        channel.sendall(json.dumps(request).encode() + b"\n")
        with channel.makefile() as lines:
            reply: dict[str, Any] = json.loads(lines.readline())
            return reply


def ask(home: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the controller of the store at `home`."""
    found = holder(home)
    if not found or "socket" not in found:
        raise StoreError(f"a controller must be running on {home} to take commands; none is. Start one: dovetail run.")
    try:
        return ask_socket(found["socket"], request)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the controller of {home}, process {found['process']}, must answer; found: {error}."
        ) from error
