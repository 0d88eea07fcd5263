"""How long a worker's device computes while an order runs, whatever for, and how much is held there at most.

Of a CPU it is the processor time and the memory of this process; of an accelerator, what its driver says (NVML: the
share of the last moments in which a kernel ran) and what torch has reserved. A thread looks a few times a second. Where
the driver cannot be asked, nothing is said.
"""

import contextlib
import ctypes
import threading
import time
from typing import Any

import psutil

_LOOK_SECONDS = 0.25


class DeviceLoad:
    """The load of one order: begins when it is made.

    >>> load = DeviceLoad("cpu")
    >>> _ = sum(range(100_000))
    >>> load.end() > 0, load.held_bytes > 0
    (True, True)
    """

    def __init__(self, processor: str) -> None:
        self._began, self._used = time.monotonic(), time.process_time()
        self._shares: list[float] = []
        self._held = 0
        self._ended = threading.Event()
        self._ask = _asking_nvml() if processor == "cuda" else None
        self._is_cpu = processor == "cpu"
        threading.Thread(target=self._look, daemon=True).start()

    @property
    def held_bytes(self) -> int:
        """The most that was seen to be held."""
        self._held = max(self._held, self._holds())
        return self._held

    def end(self) -> float | None:
        """The seconds for which the device computed, of several cores all together; None where nobody knows."""
        self._ended.set()
        if self._is_cpu:
            return time.process_time() - self._used
        if not self._shares:
            return None
        return sum(self._shares) / len(self._shares) * (time.monotonic() - self._began)

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._held = max(self._held, self._holds())
            if self._ask is not None and (share := self._ask()) is not None:
                self._shares.append(share)

    def _holds(self) -> int:
        if self._is_cpu:
            return int(psutil.Process().memory_info().rss)
        import torch

        return torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0


class _NvmlUtilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def _asking_nvml() -> Any:
    """A function that gives the share of the first visible device's time in which it computes; None without NVML."""
    with contextlib.suppress(OSError, AttributeError):
        nvml, device, rates = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), _NvmlUtilization()
        import torch

        # By its own name: numbers depend on who counts.
        name = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device)) == 0:

            def ask() -> float | None:
                failed = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
                return None if failed else rates.gpu / 100

            return ask
    return None
