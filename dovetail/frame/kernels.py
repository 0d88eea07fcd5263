"""Compiled loops: asked for once, compiled in the background, called without the interpreter's lock.

One thread of a process compiles, one loop after another. Until a kernel is
ready, and where it never will be (no compiler, one that fails or hangs), callers interpret.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.frame.c_source import FLAGS, c_group_source, c_source
from dovetail.frame.loops import Loop
from dovetail.frame.placement import PlaceSeconds
from dovetail.native import cached_library

_EXIT_SECONDS = 2.0


class Kernel:
    """One compiled loop. `state` goes from `compiling` to `ready` or `failed`, once."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.state = "compiling"
        self.compile_seconds = 0.0
        self.places: dict[int, PlaceSeconds] = {}
        """What its loop took at each place, by the number of bits of how many elements it had."""
        self.place = "host"
        self._run: Any = None
        self._done = threading.Event()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is compiled, or cannot be; whether it is ready."""
        self._done.wait(seconds)
        return self.state == "ready"

    def compile(self) -> None:
        began = time.perf_counter()
        library = cached_library(self.source, FLAGS) if _arrays_are_as_expected() else None
        if library is not None:
            self._run = library.run
            self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        self.compile_seconds = time.perf_counter() - began
        self.state = "failed" if library is None else "ready"
        self._done.set()

    def run(
        self, arrays: Sequence[numpy.ndarray], numbers: Sequence[float], shape: tuple[int, ...], threads: int
    ) -> None:
        """Carry the loop out: inputs, outputs and reduced numbers in this order, all held by the caller."""
        pointers = (ctypes.c_void_p * len(arrays))(*map(id, arrays))
        doubles = (ctypes.c_double * len(numbers))(*numbers) if numbers else None
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        if self._run(pointers, doubles, len(shape), sizes, threads):
            raise MemoryError("there must be memory for a loop's partial sums; there was none.")


def kernel_of(loop: Loop) -> Kernel:
    """The kernel of a loop, which begins to be compiled where nobody has asked before."""
    return _COMPILER.kernel(c_source(loop))


def group_kernel_of(loop: Loop, *, masked: bool) -> Kernel:
    """The kernel of a group-by's loop, likewise."""
    return _COMPILER.kernel(c_group_source(loop, masked))


class _Compiler:
    """The thread that compiles, and all kernels of this process."""

    def __init__(self) -> None:
        self._kernels: dict[str, Kernel] = {}
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Kernel | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def kernel(self, source: str) -> Kernel:
        with self._lock:
            found = self._kernels.get(source)
            if found is None:
                found = self._kernels[source] = Kernel(source)
                self._queue.put(found)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="frame compiler", daemon=True)
                    self._thread.start()
                    atexit.register(self._stop)
            return found

    def _work(self) -> None:
        while kernel := self._queue.get():
            kernel.compile()

    def _stop(self) -> None:
        """A process that ends leaves no half-made files: what is being compiled is waited for, for a moment."""
        with contextlib.suppress(RuntimeError):
            self._queue.put(None)
            if self._thread:
                self._thread.join(_EXIT_SECONDS)


def _start_anew() -> None:
    """A forked child has no thread that compiles, and perhaps a lock that nobody will open."""
    global _COMPILER
    _COMPILER = _Compiler()


_COMPILER = _Compiler()
os.register_at_fork(after_in_child=_start_anew)


@functools.cache
def _arrays_are_as_expected() -> bool:
    """Whether an array's fields lie where generated code reads them, as they do in every CPython and NumPy so far."""
    sample = numpy.zeros((2, 3))[:, ::2]
    here = id(sample) + object.__basicsize__
    data, dimensions = ctypes.c_void_p.from_address(here).value, ctypes.c_int.from_address(here + 8).value
    sizes = (ctypes.c_int64 * 2).from_address(ctypes.c_void_p.from_address(here + 16).value or 0)
    strides = (ctypes.c_int64 * 2).from_address(ctypes.c_void_p.from_address(here + 24).value or 0)
    found = (data, dimensions, tuple(sizes), tuple(strides))
    return found == (sample.ctypes.data, 2, sample.shape, sample.strides)
