"""Host memory that the device's copy engine can reach, and files that stand in for memory.

torch's own pinned allocator rounds every size up to a power of two, which for a large model is tens of gigabytes, so
plain memory is registered with the driver instead, to the byte.
"""

import concurrent.futures
import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Self

import torch

from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.units import show_bytes

# So many tensors may wait to be written.
_BEHIND = 4


class HostMemory:
    """Buffers of one session; `close` gives them back.

    >>> memory = HostMemory(torch.device("cpu"))
    >>> memory.take(8).dtype, memory.bytes
    (torch.uint8, 8)
    """

    def __init__(self, device: torch.device) -> None:
        self._pins = device.type == "cuda"
        self._taken: dict[int, torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        """How many bytes are taken."""
        return sum(buffer.nbytes for buffer in self._taken.values())

    def take(self, size: int) -> torch.Tensor:
        """A buffer of zeros, pinned where there is a device to copy to."""
        buffer = torch.zeros(size, dtype=torch.uint8)
        if self._pins and size:
            error = torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), size, 0)
            if int(error) != 0:
                raise DovetailError(
                    f"host memory that the device reads must be pinned; pinning {show_bytes(size)} more failed with "
                    f"{error} after {show_bytes(self.bytes)}. Raise the limit on locked memory (ulimit -l), or give "
                    f"spill a smaller host budget."
                )
        if size:
            self._taken[buffer.data_ptr()] = buffer
        return buffer

    def scalar(self, dtype: torch.dtype) -> torch.Tensor:
        """Room for one number, as `take` gives it but never given back before the end."""
        return torch.zeros((), dtype=dtype, pin_memory=self._pins)

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back. Copies from and to it must be over."""
        if self._pins and buffer.nbytes:
            torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())
        self._taken.pop(buffer.data_ptr(), None)

    def close(self) -> None:
        """Give everything back. May be called twice."""
        for buffer in list(self._taken.values()):
            self.give(buffer)


class DiskMemory:
    """Tensors in unlinked files, read ahead and written behind when told to.

    What was written is flushed by a thread and then dropped from memory. Left to the kernel it stays, and where nearly
    all memory is taken, pages that are not on disk yet are what a process is killed for.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     disk = DiskMemory(Path(folder))
    ...     moved = disk.move(torch.arange(3.0))
    ...     disk.expect([moved])
    ...     disk.forget([moved])
    >>> disk.close()
    >>> moved
    tensor([0., 1., 2.])
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # A tensor holds its map, and a map its file: what nobody uses any more is gone.
        self._maps: weakref.WeakValueDictionary[int, _File] = weakref.WeakValueDictionary()
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="dovetail-disk")
        self._room, self._error = threading.BoundedSemaphore(_BEHIND), None

    _error: BaseException | None

    @property
    def bytes(self) -> int:
        """How many bytes are on disk."""
        return sum(map(len, self._maps.values()))

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to disk; gives the copy."""
        moved = self.zeros_like(tensor)
        moved.copy_(tensor)
        self.forget([moved])
        return moved

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """As many zeros of the same type, on disk; they take no memory before they are used."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._directory) as file:
            os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # a full disk says so here, and not by a signal later
            mapped = _File(file.fileno(), tensor.nbytes)
        made = torch.frombuffer(mapped, dtype=tensor.dtype).view(tensor.shape)
        self._maps[made.data_ptr()] = mapped
        return made

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies here."""
        return tensor.data_ptr() in self._maps

    def expect(self, tensors: list[torch.Tensor]) -> None:
        """Read these tensors ahead, since they are needed soon."""
        for tensor in tensors:
            if mapped := self._maps.get(tensor.data_ptr()):
                mapped.madvise(mmap.MADV_WILLNEED)

    def forget(self, tensors: list[torch.Tensor]) -> None:
        """These are not needed for a while: write them behind, then let go of their memory.

        Waits where too much is still to be written. Raises what writing raised before.
        """
        for tensor in tensors:
            if mapped := self._maps.get(tensor.data_ptr()):
                self._room.acquire()
                self._writer.submit(mapped.drop).add_done_callback(self._write_behind)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread once everything is written. May be called twice."""
        self._writer.shutdown()

    def _write_behind(self, done: "concurrent.futures.Future[None]") -> None:
        self._error = done.exception() or self._error
        self._room.release()


class _File(mmap.mmap):
    """A map that can be written out and let go of; the file is gone with it."""

    def __new__(cls, number: int, size: int) -> Self:
        found = super().__new__(cls, number, size)
        found.number = os.dup(number)
        return found

    number: int

    def drop(self) -> None:
        """Write what is new, then forget all of it. What is being written meanwhile is not lost: it stays in memory."""
        os.fdatasync(self.number)
        self.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_DONTNEED)

    def __del__(self) -> None:
        os.close(self.number)
