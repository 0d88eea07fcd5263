"""S3's protocol on this machine: moto's server in a process of its own, and a proxy in front of it that does what
networks and busy servers do. Shared by `bench/object_store.py` and the tests.
"""

import collections
import contextlib
import dataclasses
import http.client
import http.server
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

BUCKET = "dovetail-test"
KEYS = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "its-secret", "AWS_DEFAULT_REGION": "us-east-1"}
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
    b"</Message><RequestId>0</RequestId></Error>"
)
# Those that belong to one connection, and what the proxy says anew.
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}


def environment(endpoint: str) -> dict[str, str]:
    """What s3fs and everything else that speaks S3 reads of a server and its keys."""
    return {**KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}


@contextlib.contextmanager
def serve_s3() -> Iterator[str]:
    """A server with one bucket, for as long as the context lasts; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    # In a file that nobody has to read: a full pipe would stop it.
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | KEYS)
        try:
            _wait_for(process, port, log)
            make_bucket(address, BUCKET)
            yield address
        finally:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Any, *, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        if process.poll() is not None or time.monotonic() > until:
            log.seek(0)
            raise RuntimeError(f"moto's server must start within {seconds:.0f} s; it said: {log.read()[-2000:]!r}.")
        time.sleep(0.05)


def make_bucket(address: str, name: str) -> None:
    """Make a bucket, without signing: moto asks for no keys unless it is told to."""
    with urllib.request.urlopen(urllib.request.Request(f"{address}/{name}", method="PUT"), timeout=30):
        pass


def require_keys(address: str, *, required: bool) -> None:
    """From now on have moto check keys, of which it knows none; or check none again."""
    ask = urllib.request.Request(f"{address}/moto-api/reset-auth", data=b"0" if required else b"inf")
    ask.add_header("Content-Type", "text/plain")
    with urllib.request.urlopen(ask, timeout=30):
        pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """How often a request meets what, as a share of requests, one at most each; and for how long a key that was written
    is missing from listings."""

    slow: float = 0.0
    slow_down: float = 0.0
    request_cut: float = 0.0
    answer_cut: float = 0.0
    slow_seconds: float = 0.5
    lag_seconds: float = 0.0

    @classmethod
    def share(cls, share: float, **others: float) -> "Faults":
        """All four alike."""
        return cls(slow=share / 4, slow_down=share / 4, request_cut=share / 4, answer_cut=share / 4, **others)

    def draw(self, generator: random.Random) -> str:
        """What the next request meets; empty for nothing."""
        kinds = ("slow", "slow_down", "request_cut", "answer_cut")
        drawn = generator.random()
        for kind in kinds:
            drawn -= getattr(self, kind)
            if drawn < 0:
                return kind
        return ""


class FaultyProxy:
    """An HTTP server that passes on requests to another and spoils some. Set `faults` at any time; `is_out` cuts all
    connections at once. `counts` says how often each happened, and `requests` how many came.

    What is cut on its way there never arrives whole; of what is cut on its way back the server has done all: the two
    ways in which a client does not know what became of its request.
    """

    def __init__(self, upstream: str, faults: Faults, *, seed: int = 0) -> None:
        self.upstream, self.faults, self.is_out = upstream, faults, False
        self.counts: collections.Counter[str] = collections.Counter()
        self.requests = 0
        self._upstream = urllib.parse.urlsplit(upstream).netloc
        self._generator, self._lock = random.Random(seed), threading.Lock()
        self._written: dict[str, float] = {}
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FaultyProxy":
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def written_keys(self) -> list[str]:
        """What was written through it, as `/bucket/key`."""
        with self._lock:
            return list(self._written)

    def draw(self) -> str:
        """What the request that has come now meets."""
        with self._lock:
            self.requests += 1
            fault = "outage" if self.is_out else self.faults.draw(self._generator)
            if fault:
                self.counts[fault] += 1
        return fault

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """What the server answers, with listings as they lag."""
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        place = urllib.parse.urlsplit(path)
        if method == "PUT" and answer.status == 200:
            with self._lock:  # the first time: who overwrites a key that is listed does not make it vanish
                self._written.setdefault(urllib.parse.unquote(place.path), time.monotonic())
        if method == "GET" and "list-type=" in place.query and answer.status == 200:
            content = self._lag(place.path, content)
        return answer.status, dict(answer.getheaders()), content

    def _lag(self, bucket: str, content: bytes) -> bytes:
        """A listing without what was written a moment ago."""
        now = time.monotonic()
        with self._lock:
            ages = {name: now - at for name, at in self._written.items()}
        root, hidden = ElementTree.fromstring(content), 0
        for tag, within in (("Contents", "Key"), ("CommonPrefixes", "Prefix")):
            for entry in root.findall(f"{{{_NAMESPACE}}}{tag}"):
                key = f"{bucket.rstrip('/')}/{urllib.parse.unquote(entry.findtext(f'{{{_NAMESPACE}}}{within}') or '')}"
                known = [age for name, age in ages.items() if name == key or (key[-1] == "/" and name.startswith(key))]
                if known and max(known) < self.faults.lag_seconds:
                    root.remove(entry)
                    hidden += 1
        if not hidden:
            return content
        with self._lock:
            self.counts["lagging_list"] += 1
        ElementTree.register_namespace("", _NAMESPACE)
        return ElementTree.tostring(root)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Nothing: who asks may be killed at any moment, and then its connection is reset."""


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _handle(self) -> None:
        fault = self.proxy.draw()
        if fault == "outage":
            return self._cut()
        size = int(self.headers.get("Content-Length") or 0)
        if fault == "request_cut":
            self.rfile.read(size // 2)
            return self._cut()
        body = self.rfile.read(size) if size else self._chunks()
        if fault == "slow_down":
            return self._answer(503, {"Content-Type": "application/xml"}, _SLOW_DOWN)
        if fault == "slow":
            time.sleep(self.proxy.faults.slow_seconds)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS | {"expect"}}
        try:
            status, answered, content = self.proxy.ask(self.command, self.path, headers, body)
        except (OSError, http.client.HTTPException):  # the server itself has hung up
            self.proxy.counts["server_gone"] += 1
            return self._cut()
        return self._answer(status, answered, content, cut=fault == "answer_cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _chunks(self) -> bytes:
        """A body that comes in chunks, without their sizes."""
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return b""
        found = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(found)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        head = self.command == "HEAD"
        length = next((value for name, value in headers.items() if name.lower() == "content-length"), None)
        try:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length if head and length is not None else len(content)))
            if cut and (head or not content):
                return self._cut()  # before the first byte: there is no body to be cut in
            self.end_headers()
            self.wfile.write(b"" if head else content[: len(content) // 2] if cut else content)
            if cut:
                self._cut()
        except OSError:  # who asked has gone, or was killed
            self.close_connection = True

    def _cut(self) -> None:
        """End the connection as a network does, without a word."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""
