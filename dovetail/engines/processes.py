"""A worker process on this machine, as seen by the process that started it: its socket, its log, and how it ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.describe.installed import standard_paths
from dovetail.engines.base import order_log
from dovetail.engines.worker_handle import WorkerHandle, cores_of, threads_of
from dovetail.vocabulary import Cluster, dumps

LOG_TAIL_BYTES = 3000
# What reading a workload may change without a worker that started before it being another: it is told. The last two
# libraries set that come with scikit-learn.
_HARMLESS = {"PYTHONPATH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}


class WorkerProcess(WorkerHandle):
    """A worker bound to its devices. It outlives orders: starting one takes seconds, because it imports torch.

    One that is started without a `log` imports torch at once, and must be given `configure` before its first order.
    """

    def __init__(self, devices: tuple[str, ...], *, cluster: Cluster, log: Path | None = None) -> None:
        self.devices, self.log = devices, log or Path(os.devnull)
        self.order = ""  # the name of the order that it carries out
        self.doing = "starting"
        self.killed_because = ""  # the engine's reason, if it killed this process
        self.harmless = set(_HARMLESS)  # variables that may change without this worker being another
        self.heard_at = time.monotonic()
        self._log_from, self._buffer = 0, b""
        self._order_log: Path | None = None
        self._cluster, self._folder, self._environment = cluster, os.getcwd(), _environment(devices, cluster)
        cores = [str(cluster.device(device).index) for device in cores_of(devices, cluster)]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"))
            self.channel, theirs = socket.socketpair()
            stack.enter_context(theirs)
            undone = stack.enter_context(contextlib.ExitStack())
            undone.callback(self.channel.close)
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dovetail.engines.worker", str(theirs.fileno()), *cores],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # the terminal's Ctrl-C is not for workers
            )
            undone.pop_all()
        if log is None:  # the first optimizer that is made imports this, for a second
            self.preload("torch._dynamo")

    @property
    def is_current(self) -> bool:
        """Whether it is alive and has the environment and folder that a worker started now would have."""
        now = _environment(self.devices, self._cluster)
        changed = {name for name, _ in now.items() ^ self._environment.items()}
        return self.process.poll() is None and changed <= self.harmless and os.getcwd() == self._folder

    def configure(self, log: Path) -> None:
        """Have the worker write to this log from now on, and import from wherever this process can by now."""
        self.log, self.heard_at = log, time.monotonic()
        now = _environment(self.devices, self._cluster)
        variables = {name: now[name] for name in self.harmless & now.keys()}
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
        self._order_log = None
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
        """The messages that can be read from its socket now; None once the socket has ended."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self.heard_at = time.monotonic()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
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
            return f"{name} was killed by {signal.Signals(-code).name}{hint}"
        return f"{name} exited with code {code}"

    def ending(self) -> str:
        """How the process ended by its own doing. What others send to end one (the kernel, where memory runs out; an
        operator) is not."""
        code = self.process.poll()
        if self.killed_because or code is None or -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            return ""
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    def log_tail(self) -> str:
        """The end of what the worker wrote since its order began, to the order's own log and to that of the worker."""
        found = _tail(self._order_log, 0) if self._order_log is not None else ""
        return (found + _tail(self.log, self._log_from))[-LOG_TAIL_BYTES:]


def _tail(log: Path, since: int) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(since, log.stat().st_size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


def _environment(devices: tuple[str, ...], cluster: Cluster) -> dict[str, str]:
    found = cluster.device(devices[0])
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = str(threads_of(devices, cluster))
    # What the controller can import, its workers can; but what lies in the user's folders is never taken for the
    # standard library by what a worker itself imports.
    paths = dict.fromkeys([*standard_paths(), *(path or os.getcwd() for path in sys.path)])
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Ranks are all on this machine: what they say to one another need not leave it.
    if loopback := [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]:
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        environment.setdefault("NCCL_SOCKET_IFNAME", loopback[0])
    if cluster.kind(found.kind).processor == "cuda":
        indices = [str(cluster.device(device).index) for device in devices]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(indices)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which they were detected
        # Without it the allocator loses several GiB of a 24 GiB budget between its blocks: a spilled model of 6.9
        # billion parameters did not fit its trial. The variable has an older name, too.
        if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys():
            environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return environment
