"""How other processes reach a running controller: one line of JSON each way, on a Unix socket or on loopback.

Only this user can: the socket lies in a private directory, and whoever comes over loopback must say a token first, in a
line of its own. Both are noted in the store's lock, which only this user can read. What comes is data, never code; it
is bounded in bytes, in time and in number, so that no client holds up another one, and none the controller.
"""

import contextlib
import functools
import hmac
import json
import os
import secrets
import selectors
import shutil
import socket
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
# Who comes over loopback has so long and so many bytes for the token, and so many may be at it.
TOKEN_SECONDS = 2.0
TOKEN_BYTES = 256
VISITORS = 256
# How many may wait to be let in: beyond these the kernel refuses (EAGAIN) whoever asks with a timeout.
BACKLOG = 128
# How long an answer may take: the controller may be in the middle of planning.
PATIENCE_SECONDS = 120.0
# A Unix socket's name may have 107 bytes, on some systems 103.
NAME_BYTES = 100

STRANGER = (
    "a request over loopback must begin with the token that the store's lock holds, in a line of its own, as clients "
    "of this version send it"
)
UNKNOWN = "a command must be what 'dovetail' itself would send; carrying it out gave"


class _Visitor:
    """A connection over loopback that has not said the token yet, what came of it so far, and until when it may."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.said, self.due = channel, b"", time.monotonic() + TOKEN_SECONDS


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
        self.note: dict[str, Any] = {}
        self.folder: Path | None = None
        self._answer, self._token = answer, b""
        if port is None:
            self.folder = make_scratch(home.resolve(), prefix="control-")
            try:
                self._listener = _listen_beside(self.folder / "socket")
                self.note = {"socket": str(self.folder / "socket")}
            except OSError:  # file systems over a network may have none, or its name is too long
                self._remove()
        if not self.note:
            token = secrets.token_urlsafe(32)
            self._listener, self._token = _listen_on_loopback(port or 0), token.encode()
            self.note = {"port": self._listener.getsockname()[1], "token": token}
        self._slots = threading.BoundedSemaphore(CLIENTS)
        self._visitors: dict[socket.socket, _Visitor] = {}  # the oldest first
        self._bell, ear = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (self._listener, ear):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ, each)
        self._thread = threading.Thread(target=self._serve, args=(ear,), daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        """Where it listens, for people."""
        return str(self.note.get("socket") or f"127.0.0.1:{self.note['port']}")

    def close(self) -> None:
        """Stop answering and remove the socket. May be called twice."""
        self._bell.close()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _serve(self, ear: socket.socket) -> None:
        """Let clients in until the bell is closed. This one thread serves all who have not said the token: they cost a
        socket and a short line each, and take no thread and no slot of those who have."""
        with self._selector, self._listener, ear:
            while ear not in (found := [key.data for key, _ in self._selector.select(self._left_seconds())]):
                for each in found:
                    if each is self._listener:
                        self._accept()
                    elif each.channel in self._visitors:  # and was not dismissed for another one just now
                        self._hear(each)
                for visitor in [each for each in self._visitors.values() if each.due < time.monotonic()]:
                    self._dismiss(visitor)
            for visitor in list(self._visitors.values()):
                self._dismiss(visitor)

    def _left_seconds(self) -> float | None:
        oldest = next(iter(self._visitors.values()), None)
        return None if oldest is None else max(0.0, oldest.due - time.monotonic())

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:  # gone already, or there are too many files: those who wait are not lost by waiting
            time.sleep(0.01)
            return
        if not self._token:  # only this user reaches the socket
            self._admit(channel, b"")
            return
        # Whoever knows the token sends it at once: in a crowd, who came first and has not is who does not.
        if len(self._visitors) >= VISITORS:
            self._dismiss(next(iter(self._visitors.values())))
        channel.setblocking(False)
        self._visitors[channel] = _Visitor(channel)
        self._selector.register(channel, selectors.EVENT_READ, self._visitors[channel])

    def _hear(self, visitor: _Visitor) -> None:
        try:
            part = visitor.channel.recv(TOKEN_BYTES)
        except OSError:
            part = b""
        visitor.said += part
        line, ended, rest = visitor.said.partition(b"\n")
        if part and not ended and len(visitor.said) < TOKEN_BYTES:
            return
        # In constant time, so that nobody can guess it letter by letter.
        if ended and hmac.compare_digest(line, self._token):
            self._forget(visitor)
            self._admit(visitor.channel, rest)
            return
        with contextlib.suppress(OSError):
            visitor.channel.send(_line({"error": STRANGER}))
        self._dismiss(visitor)

    def _forget(self, visitor: _Visitor) -> None:
        self._selector.unregister(visitor.channel)
        del self._visitors[visitor.channel]

    def _dismiss(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.channel.close()

    def _admit(self, channel: socket.socket, begun: bytes) -> None:
        """Hear a client on a thread of its own, up to a number of them; the rest are told to come again."""
        if not self._slots.acquire(blocking=False):
            with channel, contextlib.suppress(OSError):
                channel.settimeout(0.1)
                channel.sendall(_line({"error": f"at most {CLIENTS} clients are heard at once; try again"}))
            return
        try:
            threading.Thread(target=self._attend, args=(channel, begun), daemon=True).start()
        except RuntimeError:  # no more threads: this client is not heard, others will be
            self._slots.release()
            channel.close()

    def _attend(self, channel: socket.socket, begun: bytes) -> None:
        try:
            with channel, contextlib.suppress(OSError):
                reply = self._reply(_read_line(channel, begun))
                channel.settimeout(LINE_SECONDS)
                channel.sendall(reply)
        finally:
            self._slots.release()

    def _reply(self, line: bytes) -> bytes:
        """The answer to what a client sent; whatever that raises is the answer."""
        try:
            return _line(self._answer(_read_request(line)))
        except ValueError as error:
            return _line({"error": str(error)})
        except Exception as error:
            return _line({"error": f"{UNKNOWN} {error!r}"})


def ask_server(
    note: dict[str, Any], request: dict[str, Any], *, patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, Any]:
    """Send one request to the server that left this note; its answer must come within `patience_seconds`."""
    line = _line(request)
    _check_size(len(line))
    if "token" in note:  # first, in a line of its own
        line = f"{note['token']}\n".encode() + line
    with _connected(note, patience_seconds) as channel:
        # A server with too many clients answers before it is asked.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.sendall(line)
        with channel.makefile("rb") as lines:
            line = lines.readline()
        if not line:
            raise ConnectionError("it ended before it answered")
        reply: dict[str, Any] = json.loads(line)
        return reply


def ask(home: Path, request: dict[str, Any], *, patience_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Send one request to the controller of the store at `home`; its answer must come within `patience_seconds`."""
    found = holder(home)
    if not found or not ("socket" in found or "port" in found):
        raise StoreError(
            f"a controller must be running on {home} to take commands; none is. "
            f"Start one: dovetail daemon, or dovetail run."
        )
    check_private(home)  # whom its lock names is whom one talks to
    try:
        return ask_server(found, request, patience_seconds=patience_seconds)
    except InvalidRecord:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(
            f"the controller of {home}, process {found['process']}, must answer; found: {error}."
        ) from error


def _read_request(line: bytes) -> dict[str, Any]:
    _check_size(len(line))
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a request must be one line of JSON; found: {error}") from None
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise ValueError('a request must be an object with a command, such as {"do": "list"}')
    return request


def _read_line(channel: socket.socket, begun: bytes) -> bytes:
    """One line, of which `begun` is here already; of one that is too long no more than shows it."""
    due, size, parts = time.monotonic() + LINE_SECONDS, len(begun), [begun]
    while size <= LIMIT_BYTES and not parts[-1].endswith(b"\n"):
        channel.settimeout(max(due - time.monotonic(), 1e-3))
        if not (part := channel.recv(1 << 16)):
            break
        size += len(part)
        parts.append(part)
    return b"".join(parts)


def _check_size(size: int) -> None:
    if size > LIMIT_BYTES:
        raise InvalidRecord(
            f"a request must be at most {show_bytes(LIMIT_BYTES)}; this one is longer. Send it in parts."
        )


class Encoded(dict[str, Any]):
    """Plain data in a list of `tasks` that is not changed once it is made, so that what it is in JSON is kept.

    >>> Encoded(task="a").text
    '{"task": "a"}'
    """

    @functools.cached_property
    def text(self) -> str:
        """This in JSON."""
        return json.dumps(self)


def _line(message: dict[str, Any]) -> bytes:
    tasks = message.get("tasks")
    if not tasks or not isinstance(tasks[0], Encoded):
        return json.dumps(message).encode() + b"\n"
    # Most rows of a long list were sent before.
    rest = json.dumps({name: value for name, value in message.items() if name != "tasks"})
    return f'{rest[:-1]}, "tasks": [{", ".join([row.text for row in tasks])}]}}\n'.encode()


def _connected(note: dict[str, Any], patience_seconds: float = PATIENCE_SECONDS) -> socket.socket:
    if "port" in note:
        return socket.create_connection(("127.0.0.1", note["port"]), timeout=patience_seconds)
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(patience_seconds)
        with _named_shortly(Path(note["socket"])) as name:
            channel.connect(name)
    except BaseException:
        channel.close()
        raise
    return channel


def _listen_beside(path: Path) -> socket.socket:
    with contextlib.ExitStack() as undone:
        listener = undone.enter_context(socket.socket(socket.AF_UNIX))
        with _named_shortly(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(BACKLOG)
        undone.pop_all()
    return listener


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


def _listen_on_loopback(port: int) -> socket.socket:
    try:
        with contextlib.ExitStack() as undone:
            listener = undone.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
            undone.pop_all()
    except (OSError, OverflowError) as error:
        raise StoreError(f"port {port} must be free on loopback; found: {error}. Use another, or 0 for any.") from error
    return listener
