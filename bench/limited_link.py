"""A link that passes only so many bytes a second, over real sockets: a server of files, and fsspec's way to it.

`limited://host:port/path` reads and writes files that the server holds in memory; each connection passes no more than
the server's rate, in either direction. Processes that are to reach it import this module.
"""

import json
import socket
import socketserver
import threading
import time
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

_CHUNK = 1 << 16


class LimitedLink:
    """Serves files at a rate, from threads of this process, until it is closed."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.files: dict[str, bytes] = {}
        self.passed_bytes = 0
        self._lock = threading.Lock()
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

    def _answer(self, handler: socketserver.StreamRequestHandler) -> None:
        asked = json.loads(handler.rfile.readline())
        path, body = asked["path"].strip("/"), b""
        began = time.monotonic()
        while len(body) < asked["size"]:
            body += handler.rfile.read(min(_CHUNK, asked["size"] - len(body)))
            self._pace(len(body), began)
        found, content = self._do(asked["do"], path, body)
        handler.wfile.write(json.dumps({"found": found, "size": len(content)}).encode() + b"\n")
        began = time.monotonic()
        for start in range(0, len(content), _CHUNK):
            handler.wfile.write(content[start : start + _CHUNK])
            self._pace(start + _CHUNK, began)
        self.passed_bytes += len(body) + len(content)

    def _pace(self, count: int, began: float) -> None:
        time.sleep(max(0.0, began + count / self.bytes_per_second - time.monotonic()))

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
            if what == "remove":
                for name in inside:
                    del self.files[name]
                return bool(inside), b""
            children = {name.removeprefix(f"{path}/").partition("/")[0] for name in inside if name != path}
            return sorted(children), b""


def ask(what: str, path: str, body: bytes = b"") -> tuple[Any, bytes]:
    """One call of the server that a path names, `host:port/...`."""
    place, _, rest = path.removeprefix("limited://").partition("/")
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        connection.sendall(json.dumps({"do": what, "path": rest, "size": len(body)}).encode() + b"\n" + body)
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
        return [{"name": f"{path}/{name}"} if detail else f"{path}/{name}" for name in found]

    def size(self, path: str) -> int:
        found, _ = ask("size", path)
        if found is None:
            raise FileNotFoundError(path)
        return int(found)

    def rm_file(self, path: str) -> None:
        if not ask("remove", path)[0]:
            raise FileNotFoundError(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.rm_file(path)


fsspec.register_implementation("limited", LimitedFileSystem, clobber=True)
