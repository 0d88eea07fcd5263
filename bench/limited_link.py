"""Nodes whose ports pass only so many bytes a second, over real sockets: a server of files, and fsspec's way to it.

`limited://host:port/path` reads and writes files that the server holds in memory. What a node sends passes its port,
and so does what it receives, each at the server's rate however many connections share it: as with a real port, two that
are open at once have half of it each. A process is on the node that the variable `LIMITED_NODE` of its environment
names, unless it says another. Processes that are to reach the server import this module.
"""

import json
import os
import socket
import socketserver
import threading
import time
from collections import defaultdict
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

NODE = "LIMITED_NODE"
_CHUNK = 1 << 16


class Port:
    """One direction of a node's port: bytes pass one chunk after another, whoever's they are.

    >>> port = Port(1e6)
    >>> began = time.monotonic()
    >>> for _ in range(3):
    ...     port.take(50_000)
    >>> time.monotonic() - began > 0.14
    True
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Return once so many bytes have passed, behind those that came before."""
        with self._lock:
            until = self._free_at = max(self._free_at, time.monotonic()) + count / self._bytes_per_second
        time.sleep(max(0.0, until - time.monotonic()))


class LimitedLink:
    """Serves files to nodes with ports of a rate, from threads of this process, until it is closed."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.files: dict[str, bytes] = {}
        self.passed_bytes = 0
        self._lock = threading.Lock()
        self._ports: defaultdict[tuple[str, str], Port] = defaultdict(lambda: Port(bytes_per_second))
        link = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                link._answer(self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        host, port = self._server.server_address[:2]
        self.url = f"limited://{host!s}:{port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def nodes(self) -> set[str]:
        """The nodes that bytes went from or to."""
        with self._lock:
            return {node for node, _ in self._ports}

    def _answer(self, handler: socketserver.StreamRequestHandler) -> None:
        asked = json.loads(handler.rfile.readline())
        path, body, port = asked["path"].strip("/"), b"", self._port(asked["node"], "sends")
        while len(body) < asked["size"]:
            part = handler.rfile.read(min(_CHUNK, asked["size"] - len(body)))
            port.take(len(part))
            body += part
        found, content = self._do(asked["do"], path, body)
        handler.wfile.write(json.dumps({"found": found, "size": len(content)}).encode() + b"\n")
        port = self._port(asked["node"], "receives")
        for start in range(0, len(content), _CHUNK):
            part = content[start : start + _CHUNK]
            port.take(len(part))
            handler.wfile.write(part)
        self.passed_bytes += len(body) + len(content)

    def _port(self, node: str, direction: str) -> Port:
        with self._lock:
            return self._ports[node, direction]

    def _do(self, what: str, path: str, body: bytes) -> tuple[Any, bytes]:
        with self._lock:
            if what == "put":
                self.files[path] = body
                return True, b""
            if what == "get":
                return path in self.files, self.files.get(path, b"")
            if what == "size":
                return len(self.files[path]) if path in self.files else None, b""
            inside = [name for name in self.files if name == path or name.startswith(f"{path}/")]
            if what == "find":
                return sorted(inside), b""
            if what == "remove":
                for name in inside:
                    del self.files[name]
                return bool(inside), b""
            children = {name.removeprefix(f"{path}/").partition("/")[0] for name in inside if name != path}
            return sorted(children), b""


def ask(what: str, path: str, body: bytes = b"", *, node: str = "") -> tuple[Any, bytes]:
    """One call of the server that a path names, `host:port/...`, from this process's node or another."""
    place, _, rest = path.removeprefix("limited://").partition("/")
    host, _, port = place.rpartition(":")
    head = {"do": what, "path": rest, "size": len(body), "node": node or os.environ.get(NODE, "")}
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        connection.sendall(json.dumps(head).encode() + b"\n" + body)
        with connection.makefile("rb") as answer:
            head = json.loads(answer.readline())
            return head["found"], answer.read(head["size"])


class LimitedFileSystem(AbstractFileSystem):
    """What fsspec needs of it."""

    protocol = "limited"
    cachable = False

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        found, content = ask("get", path)
        if not found:
            raise FileNotFoundError(path)
        return content[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        ask("put", path, value)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found, _ = ask("list", path)
        if not found:
            raise FileNotFoundError(path)
        return [self.info(f"{path}/{name}") if detail else f"{path}/{name}" for name in found]

    def find(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> list[str]:
        place = path.removeprefix("limited://").partition("/")[0]
        return [f"{place}/{name}" for name in ask("find", path)[0]]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        found, _ = ask("size", path)
        if found is None and not ask("list", path)[0]:
            raise FileNotFoundError(path)
        return {"name": path, "size": found or 0, "type": "directory" if found is None else "file"}

    def rm_file(self, path: str) -> None:
        if not ask("remove", path)[0]:
            raise FileNotFoundError(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.rm_file(path)


fsspec.register_implementation("limited", LimitedFileSystem, clobber=True)
