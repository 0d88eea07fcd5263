"""A process that imports torch and whatever else workers will need, once, and forks them: workers that import for
themselves keep everybody waiting for seconds.

A fork copies one thread and no device, so there is one for machines without accelerators only, it computes nothing, and
where a package has started a thread as it was imported, workers are started as usual. Started as `python -P -m
dovetail.engines.fork_server FILE_DESCRIPTOR CORE`; on one core, since libraries decide when they are imported how many
threads they use.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.engines.origin import Origin
from dovetail.engines.worker import die_with_parent, prepare, serve
from dovetail.vocabulary import Cluster, dumps

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_MESSAGE_BYTES = 1 << 16
PRELOADED = "torch"


class AdoptedProcess:
    """A process that a fork server has forked and this process has adopted, with what we use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, as `Popen.poll` has it."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in this process waits for all children
                pid, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                select.select([handle], [], [], timeout)
            finally:
                os.close(handle)
        found = self.poll()
        if found is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it is there."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server as seen by the process that started it. It forks workers of single cores."""

    def __init__(self, cluster: Cluster) -> None:
        device = cluster.devices[0]
        self.origin = Origin((device.name,), cluster)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                words = [str(theirs.fileno()), str(device.index)]
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "dovetail.engines.fork_server", *words],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self.origin.environment,
                    start_new_session=True,
                )
            except OSError:
                self._channel.close()
                raise
        self.preload(PRELOADED)

    @property
    def is_current(self) -> bool:
        """Whether it is alive, and what it forks is what would be started now."""
        return self.process.poll() is None and self.origin.is_current()

    def preload(self, module: str) -> None:
        """Ask it to import a module; while it does not listen, that is left out."""
        with contextlib.suppress(OSError):
            self._channel.send(dumps({"do": "import", "module": module}).encode(), socket.MSG_DONTWAIT)

    def fork(self, theirs: socket.socket, cores: Sequence[int], *, seconds: float = 60.0) -> AdoptedProcess | None:
        """A worker that has imported all that was asked for so far, on these cores, with its end of a socket to its
        engine. None where it cannot be forked."""
        try:
            with _adopting():
                socket.send_fds(
                    self._channel, [dumps({"do": "fork", "cores": list(cores)}).encode()], [theirs.fileno()]
                )
                self._channel.settimeout(seconds)
                answer = json.loads(self._channel.recv(_MESSAGE_BYTES) or b"{}")
        except OSError:
            self.process.kill()  # an answer that comes late would be taken for the next one's
            return None
        return AdoptedProcess(answer["pid"]) if answer.get("pid") else None

    def close(self) -> None:
        """End it; the workers that it has forked stay."""
        self.process.kill()
        self.process.wait()
        self._channel.close()


def can_fork() -> bool:
    """Whether this system lets one process adopt what another has forked.

    >>> can_fork() == sys.platform.startswith("linux")
    True
    """
    return sys.platform.startswith("linux")


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Within, processes below this one that lose their parent become its own children."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _listen(channel: socket.socket) -> None:
    while True:
        line, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
        if not line:
            return
        message = json.loads(line)
        if message["do"] == "import":
            _import(message["module"])
        else:
            (descriptor,) = descriptors
            pid = _fork(channel, descriptor, message["cores"]) if len(os.listdir("/proc/self/task")) == 1 else None
            os.close(descriptor)
            channel.send(dumps({"pid": pid}).encode())


def _import(module: str) -> None:
    """Import a module that orders will probably need. An error is left to the order that imports it again."""
    with contextlib.suppress(BaseException):
        import dovetail.engines.runner  # noqa: F401

        importlib.import_module(module)


def _fork(channel: socket.socket, descriptor: int, cores: list[int]) -> int:
    """Fork a worker by way of a process that ends at once, so that it is adopted; gives its number."""
    gc.freeze()  # what was imported stays, and its pages are shared
    reader, writer = os.pipe()
    between = os.fork()
    if between:
        os.close(writer)
        with open(reader, "rb") as pipe:
            number = int(pipe.read())
        os.waitpid(between, 0)
        return number
    parent = os.getpid()  # of the one in between, asked for before it can be gone
    if pid := os.fork():
        os.write(writer, str(pid).encode())
        os._exit(0)
    try:
        for each in (reader, writer, channel.fileno()):
            os.close(each)
        os.setsid()
        while os.getppid() == parent:  # its end must not take us along
            time.sleep(0.0005)
        die_with_parent()
        serve(socket.socket(fileno=descriptor), cores)
    finally:
        os._exit(1)


def main() -> None:
    """Run a fork server: the entry point of its process."""
    prepare()
    os.sched_setaffinity(0, [int(sys.argv[2])])
    channel: Any = socket.socket(fileno=int(sys.argv[1]))
    del sys.argv[1:]
    _listen(channel)
    os._exit(0)


if __name__ == "__main__":
    main()
