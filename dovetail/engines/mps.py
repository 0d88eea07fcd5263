"""NVIDIA's Multi-Process Service, by which kernels of several processes run on one device at the same moment; without
it they take turns. A daemon of our own serves our workers alone, and ends with us, however we end."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

from dovetail.engines.private_folder import PrivateFolder
from dovetail.vocabulary import DovetailError, FrozenDict

_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# So long the daemon may take to answer for the first time, and to end.
_START_SECONDS, _END_SECONDS = 10.0, 5.0
_PR_SET_PDEATHSIG = 1


def is_mps_installed() -> bool:
    """Whether this machine has the service.

    >>> is_mps_installed() == (shutil.which("nvidia-cuda-mps-control") is not None)
    True
    """
    return shutil.which(_CONTROL) is not None


class Mps:
    """The service: ours, or the one that a user runs already. `environment` makes a process its client."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = FrozenDict()
        self._folder: PrivateFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    @staticmethod
    def start() -> "Mps | None":
        """A service that answers; None where there is none to be had."""
        found = Mps.begin()
        return found if found is not None and found.answers() else None

    @staticmethod
    def begin() -> "Mps | None":
        """A service that may not answer yet; None where there is none to be had."""
        found = Mps()
        if _PIPES in os.environ:  # a user's own: workers inherit where it is
            return found
        if not is_mps_installed():
            return None
        try:
            found._start()
        except (OSError, DovetailError):  # it cannot run, or has no folder of its own
            found.close()
            return None
        return found

    def answers(self) -> bool:
        """Whether it answers, after waiting for it if it is ours and just begun; one that does not is ended."""
        until = self._began + (_START_SECONDS if self._process is not None else 0.0)
        while self.is_alive:
            if self._obeys("get_server_list"):
                return True
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        self.close()
        return False

    @property
    def is_alive(self) -> bool:
        """Whether it can be had, as far as this process can tell."""
        return self._process is None or self._process.poll() is None

    def close(self) -> None:
        """End the service, if it is ours. May be called twice."""
        if self._process is not None:
            if not self._obeys("quit -t 1"):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _start(self) -> None:
        # Its sockets' paths must be short, and nobody else may get at them.
        self._folder = PrivateFolder("mps-")
        self.environment = FrozenDict(dict.fromkeys((_PIPES, _LOGS), str(self._folder.path)))
        libc = ctypes.CDLL(None)
        # Its clients number devices among those that it sees: all of them, in the order in which they were detected.
        given = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._process = subprocess.Popen(
            [_CONTROL, "-f"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**given, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **self.environment},
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )

    def _obeys(self, command: str) -> bool:
        """Whether the daemon took a command; one that has only just begun takes none."""
        try:
            said = subprocess.run(
                [_CONTROL],
                input=command.encode(),
                env={**os.environ, **self.environment},
                timeout=_END_SECONDS,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return said.returncode == 0
