"""A worker process on this machine, as seen by the process that started it: its socket, its log, and how it ended."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from dovetail.describe.installed import is_dovetail, is_installed
from dovetail.engines.base import order_log
from dovetail.engines.fork_server import PRELOADED, ForkServer
from dovetail.engines.origin import Origin, environment_of
from dovetail.engines.worker_handle import WorkerHandle, cores_of
from dovetail.engines.worker_messages import MessageReader
from dovetail.vocabulary import Cluster, FrozenDict, dumps

LOG_TAIL_BYTES = 3000
# What is read of it for that, and for where a process was when it ended.
_LAST_BYTES = 1 << 15
# What `read_printed` gives at once, at most.
_PRINTED_BYTES = 1 << 18
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class WorkerProcess(WorkerHandle):
    """A worker bound to its devices. It outlives orders: starting one takes seconds, because it imports torch; or one
    is forked by a `server` that has.

    One that is started without a `log` imports torch at once, and must be given `configure` before its first order.
    `variables` are added to its environment.
    """

    def __init__(
        self,
        devices: tuple[str, ...],
        *,
        cluster: Cluster,
        log: Path | None = None,
        server: ForkServer | None = None,
        lane: int = 0,
        variables: Mapping[str, str] = FrozenDict(),
    ) -> None:
        self.devices, self.lane, self.log = devices, lane, log or Path(os.devnull)
        self.order = ""  # the name of the order that it carries out
        self.doing = "starting"
        self.killed_because = ""  # the engine's reason, if it killed this process
        self.heard_at = time.monotonic()
        self._log_from, self._reader = 0, MessageReader()
        self._order_log: Path | None = None
        self._printed = 0  # how much of it was read
        self._cluster, self.origin = cluster, server.origin if server else Origin(devices, cluster)
        cores = [cluster.device(device).index for device in cores_of(devices, cluster)]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(
                open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab")
            )
            self.channel, theirs = socket.socketpair()
            stack.enter_context(theirs)
            undone = stack.enter_context(contextlib.ExitStack())
            undone.callback(self.channel.close)
            self.process: Any = (server and server.fork(theirs, cores)) or subprocess.Popen(
                [sys.executable, "-P", "-m", "dovetail.engines.worker", str(theirs.fileno()), *map(str, cores)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment_of(devices, cluster), **variables},
                start_new_session=True,  # the terminal's Ctrl-C is not for workers
            )
            undone.pop_all()
        if log is None:
            self.preload(PRELOADED)
        elif server is not None:
            self.configure(log)

    @property
    def is_current(self) -> bool:
        """Whether it is alive and has the environment and folder that a worker started now would have."""
        return self.process.poll() is None and self.origin.is_current()

    def configure(self, log: Path) -> None:
        """Have the worker write to this log from now on, and import from wherever this process can by now."""
        self.log, self.heard_at = log, time.monotonic()
        now = environment_of(self.devices, self._cluster)
        variables = {name: now[name] for name in self.origin.harmless & now.keys()}
        self.send(
            {"do": "configure", "log": str(log), "paths": now["PYTHONPATH"].split(os.pathsep), "variables": variables}
        )

    def preload(self, module: str) -> None:
        """Ask the worker to import a module while it is idle; one that does not listen misses it."""
        with contextlib.suppress(OSError):  # so short a line is sent whole or not at all
            self.channel.send(dumps({"do": "import", "module": module}).encode() + b"\n", socket.MSG_DONTWAIT)

    def begin(self, order: str, message: dict[str, Any]) -> None:
        """Hand the worker an order."""
        assert not self.order, f"{self.devices} are busy with {self.order}"
        self.order, self.doing = order, "starting"
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        self._order_log, self._printed = None, 0
        if message["order"]["purpose"] == "train":  # what is built and measured besides is not of one task
            rank = (message["ranks"] or {"rank": 0})["rank"]
            self._order_log = order_log(self.log.parent, order, rank=rank)
            message = {**message, "log": str(self._order_log)}
        self.send(message)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message as a line of JSON. A dead worker is noticed by the end of its socket, not here."""
        with contextlib.suppress(OSError):
            self.channel.sendall(dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that can be read from its socket now; None once the socket has ended, or has brought what is no
        message: then the worker is killed."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self.heard_at = time.monotonic()
        try:
            messages = self._reader.take(data)
        except (ValueError, RecursionError) as error:
            self.kill(f"what it sent cannot be read: {error}")
            return None
        self.doing = next((each["doing"] for each in reversed(messages) if "doing" in each), self.doing)
        return messages

    def kill(self, why: str) -> None:
        """Kill the process and whatever its programs started."""
        self.killed_because = self.killed_because or why
        self.process.kill()
        self._end_children()

    def exited(self, seconds: float) -> bool:
        """Wait up to `seconds` for the process to exit; whether it has."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        self._end_children()
        return True

    def _end_children(self) -> None:
        """Kill its process group, so that nothing its programs started keeps memory or a device."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def private_bytes(self) -> int:
        """What it holds of the host's memory for itself; libraries that others have mapped as well are not counted."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.process.pid).memory_info()
            return int(found.rss - found.shared)
        return 0

    def reason(self) -> str:
        """How the worker ended, as a sentence for people."""
        code = self.process.poll()
        name = f"worker process {self.process.pid} on {', '.join(self.devices)}"
        if self.killed_because:
            return f"{name} was killed: {self.killed_because}"
        if code is None:
            return f"{name} closed its socket"
        if code < 0:
            hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
            # What others send to end it ends it anywhere.
            place = "" if -code in _FROM_OUTSIDE else last_place(self._last_written())
            return f"{name} was killed by {signal.Signals(-code).name}{hint}{place}"
        return f"{name} exited with code {code}{last_place(self._last_written())}"

    def ending(self) -> str:
        """How the process ended by its own doing. What others send to end one (the kernel, where memory runs out; an
        operator) is not."""
        code = self.process.poll()
        if self.killed_because or code is None or -code in _FROM_OUTSIDE:
            return ""
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    def read_printed(self) -> tuple[int, bytes]:
        """What its order has printed to a log of its own since this was last asked for, and where in the log."""
        start = self._printed
        if self._order_log is not None:
            with contextlib.suppress(OSError), open(self._order_log, "rb") as file:
                file.seek(start)
                found = file.read(_PRINTED_BYTES)
                self._printed += len(found)
                return start, found
        return start, b""

    def log_tail(self) -> str:
        """The end of what the worker wrote since its order began, to the order's own log and to that of the worker."""
        return self._last_written()[-LOG_TAIL_BYTES:]

    def _last_written(self) -> str:
        found = _tail(self._order_log, 0) if self._order_log is not None else ""
        # A crash also names every extension that was loaded, in one line of some thousand letters.
        return re.sub(r"Extension modules: .*\n", "", found + _tail(self.log, self._log_from))


def last_place(log: str) -> str:
    """Where a process was when it ended, by the last stack in its log, of the thread that ended it: the innermost line
    of the user's own.

    >>> last_place('''Stack (most recent call first):
    ...   File "/venv/lib/site-packages/torch/nn/functional.py", line 9 in linear
    ...   File "/home/me/sweep.py", line 13 in loss
    ... ''')
    ' at sweep.py:13 in loss'
    >>> last_place('''Current thread 0x00007f01 (most recent call first):
    ...   File "/home/me/sweep.py", line 7 in read
    ... Thread 0x00007f00 (most recent call first):
    ...   File "/home/me/sweep.py", line 13 in loss
    ... ''')
    ' at sweep.py:7 in read'
    >>> last_place("nothing of the kind")
    ''
    """
    stacks = re.findall(r"(?:Current thread|Stack)[^\n]*\(most recent call first\):\n((?:  File .*\n?)+)", log)
    lines = re.findall(r'File "(.*)", line (\d+) in (.*)', stacks[-1]) if stacks else []
    own = [each for each in lines if not is_installed(each[0]) and not is_dovetail(each[0])]
    path, line, function = own[0] if own else ("", "", "")
    return f" at {Path(path).name}:{line} in {function}" if own else ""


def _tail(log: Path, since: int) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(since, log.stat().st_size - _LAST_BYTES))
        return file.read().decode(errors="replace")
    return ""
