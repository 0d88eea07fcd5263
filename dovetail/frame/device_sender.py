"""Arrays of the host sent to a CUDA device by several threads.

Each thread copies into a few places of pinned memory of its own, which the device fetches while they are still in the
processor's caches. To copy everything into pinned memory first costs the host's memory three times what the link
carries: 0.21 to 0.26 s for 8 GiB where the link takes 0.16, and 0.17 so.
"""

import ctypes
import functools
import threading
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy

from dovetail.frame.once import once
from dovetail.native import cached_library

# Larger or more places leave the caches, smaller ones take longer to hand over than to fetch: of a link of 55 GB/s
# 4 MiB give 51, 1 MiB 46, 8 MiB 42.
_PLACE_BYTES, _PLACES = 4 << 20, 2
# What one thread sends before it takes what is next.
_SENT_AT_ONCE = 24 << 20

_CUDA_OUT_OF_MEMORY = 2


def begin_sending(array: numpy.ndarray, target: Any, threads: Executor) -> "list[Future[Any]]":
    """Fill a tensor of a device with an array. Each part gives the event after which it is there. Memory of the tensor
    must be free once what the current stream has been given is done."""
    import torch

    send = _send_through()  # before threads ask for it
    free: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    free.record()
    step = max(1, len(array) * _SENT_AT_ONCE // max(1, array.nbytes))
    parts = [slice(start, start + step) for start in range(0, len(array), step)]
    return [threads.submit(_send, send, array[part], target[part], free) for part in parts]


def _send(send: Any, array: numpy.ndarray, target: Any, free: Any) -> Any:
    import torch

    with torch.cuda.device(target.device):
        held = _places_of(target.device.index)
        held.stream.wait_event(free)
        array = numpy.ascontiguousarray(array)
        if send is None:  # without a compiler
            with torch.cuda.stream(held.stream):
                target.copy_(torch.from_numpy(array if array.flags.writeable else array.copy()))
        else:
            held.send(send, array, target)
        there: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record(held.stream)
        return there


class _PinnedPlaces:
    """A thread's places in pinned memory, and its stream."""

    def __init__(self) -> None:
        import torch

        # torch has 32 streams of each priority, given out in turn: those of normal priority come round to who computes.
        self.stream: Any = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self._places = torch.empty(_PLACE_BYTES * _PLACES, dtype=torch.uint8, pin_memory=True)
        self._events: list[Any] = [torch.cuda.Event() for _ in range(_PLACES)]  # type: ignore[no-untyped-call]
        for event in self._events:
            event.record(self.stream)
        self._handles = (ctypes.c_void_p * _PLACES)(*(event.cuda_event for event in self._events))
        self._turn = ctypes.c_long(0)

    def send(self, send_through: Any, array: numpy.ndarray, target: Any) -> None:
        error = send_through(
            self._places.data_ptr(), _PLACE_BYTES, _PLACES, self._handles, ctypes.byref(self._turn),
            self.stream.cuda_stream, array.ctypes.data, target.data_ptr(), array.nbytes, *_driver_functions(),
        )  # fmt: skip
        if error:
            what = "out of memory" if error == _CUDA_OUT_OF_MEMORY else f"error {error} of the driver"
            raise RuntimeError(f"CUDA error: {what}, where {array.nbytes} bytes were sent to {target.device}")


_of_thread = threading.local()


def _places_of(device: int) -> _PinnedPlaces:
    kept: dict[int, _PinnedPlaces] = _of_thread.__dict__.setdefault("of_devices", {})
    if device not in kept:
        kept[device] = _PinnedPlaces()
    return kept[device]


@once
def _send_through() -> Any:
    library = cached_library(Path(__file__).with_suffix(".c").read_text())
    if library is None:
        return None
    pointer, size, signed = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
    library.send_through.argtypes = [
        pointer, size, signed, pointer, pointer, pointer, pointer, ctypes.c_ulonglong, size, pointer, pointer, pointer
    ]  # fmt: skip
    return library.send_through


@functools.cache
def _driver_functions() -> "tuple[ctypes.c_void_p, ...]":
    driver = ctypes.CDLL("libcuda.so.1")
    found = (driver.cuMemcpyHtoDAsync_v2, driver.cuEventRecord, driver.cuEventSynchronize)
    return tuple(ctypes.cast(function, ctypes.c_void_p) for function in found)
