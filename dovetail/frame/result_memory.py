"""Memory that results of a device lie in, lent again once they are let go of.

The system fills new memory with zeros first, for several gigabytes a result at no more than what a link carries, and a
link cannot write there by itself. Memory that comes back has neither fault: it is there, and when it is lent once more
it is pinned, so that results arrive without being copied by the host.
"""

import contextlib
import math
import sys
import weakref
from collections import deque
from typing import Any

import numpy

from dovetail.frame.device_link import is_cut_off
from dovetail.native.host_memory import host_memory_bytes

# Smaller ones lie beside other things, and are new soon enough.
LEAST_BYTES = 64 << 20
# What is kept for later, pinned or not, is missed by everybody else.
_PARTS_OF_HOST = 16


class ResultMemory:
    """Lends arrays, and keeps the memory of those that nobody has any more, within a limit.

    >>> memory = ResultMemory(most_bytes=1 << 30)
    >>> first, by_itself = memory.lend((LEAST_BYTES,), numpy.uint8, pin=False)
    >>> where = first.ctypes.data
    >>> del first
    >>> memory.lend((LEAST_BYTES // 8,), numpy.float64, pin=False)[0].ctypes.data == where
    True
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most_bytes = host_memory_bytes() // _PARTS_OF_HOST if most_bytes is None else most_bytes
        self._pinned: weakref.WeakSet[_Block] = weakref.WeakSet()
        self._kept: deque[_Block] = deque()  # the latest last; arrays end in any thread, within any line of this class

    def lend(self, shape: tuple[int, ...], dtype: Any, *, pin: bool = True) -> tuple[numpy.ndarray, bool]:
        """An array of anything, and whether a device may write there by itself."""
        size = math.prod(shape) * numpy.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return numpy.empty(shape, dtype), False
        block = self._take(size)
        if block is None:
            block = _Block(size)
        elif pin and size + sum(each.memory.nbytes for each in list(self._pinned)) <= self._most_bytes:
            block.pin()
            self._pinned.add(block)
        lent = numpy.asarray(_Lent(block, self))
        return lent.view(dtype).reshape(shape), block.pinned

    def _take(self, size: int) -> "_Block | None":
        for block in list(self._kept):
            with contextlib.suppress(ValueError):  # another thread was there first
                if block.memory.nbytes == size:
                    self._kept.remove(block)
                    return block
        return None

    def give_back(self, block: "_Block") -> None:
        """Keep what an array lay in, and drop what was kept longest where that is too much."""
        self._kept.append(block)
        while sum(each.memory.nbytes for each in list(self._kept)) > self._most_bytes:
            with contextlib.suppress(IndexError):
                self._kept.popleft()


class _Block:
    def __init__(self, size: int) -> None:
        self.pinned = self._was_refused = False
        # NumPy asks for huge pages, as torch does not: new memory is written twice as fast.
        self.memory = numpy.empty(size, numpy.uint8)

    def pin(self) -> None:
        if not (self.pinned or self._was_refused):
            import torch

            error = torch.cuda.cudart().cudaHostRegister(self.memory.ctypes.data, self.memory.nbytes, 0)  # type: ignore[no-untyped-call]
            self.pinned, self._was_refused = int(error) == 0, int(error) != 0
            if self._was_refused:  # or the next kernel of this thread would be told of it
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device="cuda").add_(1)

    def __del__(self) -> None:
        if self.pinned and not sys.is_finalizing() and not is_cut_off():
            import torch

            torch.cuda.cudart().cudaHostUnregister(self.memory.ctypes.data)  # type: ignore[no-untyped-call]


class _Lent:
    """What an array keeps alive; its end is the end of the array and of all its views."""

    def __init__(self, block: _Block, memory: ResultMemory) -> None:
        self.__array_interface__ = block.memory.__array_interface__
        self._block, self._memory = block, memory

    def __del__(self) -> None:
        self._memory.give_back(self._block)
