"""How other processes reach a running controller: one line of JSON each way, on a Unix socket or on loopback.

Only this user can: the socket lies in a private directory, and whoever comes over loopback must know a token. Both
are noted in the store's lock, which only this user can read. What comes is data, never code; it is bounded in bytes, in
time and in number, so that no client holds up another one, and none the controller.
"""

import contextlib
import hmac
import json
import os
import secrets
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dovetail.store import check_private, holder, make_scratch
from dovetail.vocabulary import InvalidRecord, StoreError
from dovetail.vocabulary.units import show_bytes

Answer = Callable[[dict[str, Any]], dict[str, Any]]

# Ten thousand tasks are about 4 MB.
LIMIT_BYTES = 16 << 20
# How long a client may take over its line, and how many may be at it at once.
LINE_SECONDS = 10.0
CLIENTS = 64
# How long an answer may take: the controller may be in the middle of planning.
PATIENCE_SECONDS = 120.0
# A Unix socket's name may have 107 bytes, on some systems 103.
NAME_BYTES = 100


class _Server(socketserver.ThreadingMixIn):
    daemon_threads = True
    # Beyond the default of 5 that wait to be accepted, the kernel refuses (EAGAIN) whoever asks with a timeout.
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(CLIENTS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each client, up to a number of them; the rest are told to come again."""
        if not self._slots.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0.1)
                request.sendall(_line({"error": f"at most {CLIENTS} clients are heard at once; try again"}))
            self.shutdown_request(request)  # type: ignore[attr-defined]
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One client's."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


class _UnixServer(_Server, socketserver.UnixStreamServer):
    pass


class _LoopbackServer(_Server, socketserver.TCPServer):
    allow_reuse_address = True


class CommandServer:
    """Answers commands on threads of its own until closed; `answer` must be safe to call from there.

    With `port` it listens there on loopback (0: on any free one) instead of on a Unix socket in a folder of its own in
    the scratch of the store at `home`; also where no socket can be made there. `note` is how clients find it, for the
    store's lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with contextlib.closing(CommandServer(lambda request: {"heard": request["do"]}, home=Path(home))) as server:
    ...         ask_server(server.note, {"do": "status"})
    {'heard': 'status'}
    """

    def __init__(self, answer: Answer, *, home: Path, port: int | None = None) -> None:
        self._server: _UnixServer | _LoopbackServer
        self.note: dict[str, Any] = {}
        self.folder: Path | None = None
        if port is None:
            self.folder = make_scratch(home.resolve(), prefix="control-")
            try:
                self._server = _beside(self.folder / "socket", _handler(answer, ""))
                self.note = {"socket": str(self.folder / "socket")}
            except OSError:  # file systems over a network may have none, or its name is too long
                self._remove()
        if not self.note:
            token = secrets.token_urlsafe(32)
            self._server = _listening(port or 0, _handler(answer, token))
            self.note = {"port": self._server.server_address[1], "token": token}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        """Where it listens, for people."""
        return str(self.note.get("socket") or f"127.0.0.1:{self.note['port']}")

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._remove()

    def _remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def ask_server(note: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the server that left this note, and give its answer."""
    line = _line({**request, "token": note["token"]} if "token" in note else request)
    _check_size(len(line))
    with _connected(note) as channel:
        with contextlib.suppress(BrokenPipeError):  # a server with too many clients answers before it is asked
            channel.sendall(line)
        with channel.makefile("rb") as lines:
            line = lines.readline()
        if not line:
            raise ConnectionError("it ended before it answered")
        reply: dict[str, Any] = json.loads(line)
        return reply


def ask(home: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the controller of the store at `home`."""
    found = holder(home)
    if not found or not ("socket" in found or "port" in found):
        raise StoreError(
            f"a controller must be running on {home} to take commands; none is. "
            f"Start one: dovetail daemon, or dovetail run."
        )
    check_private(home)  # whom its lock names is whom one talks to
    try:
        return ask_server(found, request)
    except InvalidRecord:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the controller of {home}, process {found['process']}, must answer; found: {error}."
        ) from error


def _handler(answer: Answer, token: str) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                try:
                    reply = answer(_request(_read_line(self.request), token))
                except ValueError as error:
                    reply = {"error": str(error)}
                self.request.settimeout(LINE_SECONDS)
                self.request.sendall(_line(reply))

    return Handler


def _request(line: bytes, token: str) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a request must be one line of JSON; found: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise ValueError('a request must be an object with a command, such as {"do": "list"}')
    given = request.pop("token", "")
    # In constant time, so that nobody can guess it letter by letter.
    if token and not (isinstance(given, str) and hmac.compare_digest(given.encode(), token.encode())):
        raise ValueError("a request over loopback must carry the token that the store's lock holds")
    return request


def _read_line(channel: socket.socket) -> bytes:
    due, size = time.monotonic() + LINE_SECONDS, 0
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        channel.settimeout(max(due - time.monotonic(), 1e-3))
        part = channel.recv(1 << 16)
        size += len(part)
        _check_size(size)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _check_size(size: int) -> None:
    if size > LIMIT_BYTES:
        raise InvalidRecord(
            f"a request must be at most {show_bytes(LIMIT_BYTES)}; this one is longer. Send it in parts."
        )


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _connected(note: dict[str, Any]) -> socket.socket:
    if "port" in note:
        return socket.create_connection(("127.0.0.1", note["port"]), timeout=PATIENCE_SECONDS)
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(PATIENCE_SECONDS)
        with _named_shortly(Path(note["socket"])) as name:
            channel.connect(name)
    except BaseException:
        channel.close()
        raise
    return channel


def _beside(path: Path, handler: type[socketserver.BaseRequestHandler]) -> _UnixServer:
    with _named_shortly(path) as name:
        server = _UnixServer(name, handler)
    path.chmod(0o600)
    return server


@contextlib.contextmanager
def _named_shortly(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough, however far down it lies: by way of its open folder, where the system
    shows those."""
    if len(os.fsencode(path)) <= NAME_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _listening(port: int, handler: type[socketserver.BaseRequestHandler]) -> _LoopbackServer:
    try:
        return _LoopbackServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise StoreError(f"port {port} must be free on loopback; found: {error}. Use another, or 0 for any.") from error
