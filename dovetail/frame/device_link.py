"""What the link to a CUDA device carries, measured once in a process, in the background.

Nothing waits for it: until it is measured, and where there is no device, the host computes. A machine without CUDA's
library never loads torch for it.
"""

import ctypes
import dataclasses
import functools
import os
import sys
import threading
import time
from typing import Any

_PROBE_BYTES = 64 << 20
_ROUNDS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second to the device and back, through pinned memory, and the seconds that a call of a kernel takes."""

    there: float
    back: float
    call_seconds: float

    def least_seconds(self, bytes_there: int, bytes_back: int, calls: int) -> float:
        """What a function takes in any case: both ways at once, and its calls.

        >>> LinkRates(there=10e9, back=5e9, call_seconds=1e-5).least_seconds(10**9, 10**9, 10)
        0.2001
        """
        return max(bytes_there / self.there, bytes_back / self.back) + calls * self.call_seconds


class _LinkProbe:
    def __init__(self) -> None:
        self.rates: LinkRates | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._measure, name="frame link", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        self.start()
        assert self._thread is not None
        self._thread.join()

    def _measure(self) -> None:
        import torch

        if not torch.cuda.is_available():
            return
        host = torch.empty(_PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cuda")
        small = torch.zeros(1, device="cuda")

        def seconds(work: Any, times: int = 1) -> float:
            found = []
            for _ in range(_ROUNDS):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(times):
                    work()
                torch.cuda.synchronize()
                found.append((time.perf_counter() - began) / times)
            return min(found)

        self.rates = LinkRates(
            there=_PROBE_BYTES / seconds(lambda: device.copy_(host, non_blocking=True)),
            back=_PROBE_BYTES / seconds(lambda: host.copy_(device, non_blocking=True)),
            call_seconds=seconds(lambda: small.add_(1), times=100),
        )


_PROBE = _LinkProbe()


_cut_off = False


def _cut_off_child() -> None:
    global _cut_off
    _cut_off = "torch.cuda" in sys.modules and sys.modules["torch.cuda"]._is_in_bad_fork()


os.register_at_fork(after_in_child=_cut_off_child)


def is_cut_off() -> bool:
    """Whether this process was forked from one that had begun to use its devices, which CUDA does not allow.

    >>> is_cut_off()
    False
    """
    return _cut_off


def link_rates(*, wait: bool = False) -> LinkRates | None:
    """What the link carries, or None as long as that is not known or where there is no device.

    >>> link_rates() is None or link_rates().there > 0
    True
    """
    if _cut_off or not _has_driver():
        return None
    if wait:
        _PROBE.wait()
    elif _PROBE.rates is None:
        _PROBE.start()
    return _PROBE.rates


@functools.cache
def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
