"""What a feed's stages gave, kept for later epochs: in memory up to a number of bytes, then in a file up to another.

Every epoch reads everything once, so what was kept first is as good as what comes later, and nothing is thrown out.
What is kept cannot be changed by whoever was given it: each time it is unpickled anew. The file has no name and goes
with the process.
"""

import os
import tempfile
import threading
from typing import Any

from dovetail.feeds.transport import decode, encode


class DroppedItem:
    """What is kept of an item that a filter has dropped: this class itself."""


class ItemCache:
    """Items by number. May be used by several threads.

    >>> cache = ItemCache(memory_bytes=1000, disk_bytes=1000)
    >>> cache.put(3, "three")
    >>> cache.get(3), cache.get(4)
    (('three',), None)
    >>> cache.close()
    """

    def __init__(self, *, memory_bytes: int, disk_bytes: int) -> None:
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Any, list[Any]]] = {}
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._file: Any = None
        self.memory_used = self.disk_used = 0

    def get(self, number: int) -> tuple[Any] | None:
        """The item of this number in a tuple of its own, or None where it is not kept."""
        with self._lock:
            kept, places = self._kept.get(number), self._places.get(number)
        if places is not None:
            parts = [bytearray(os.pread(self._file.fileno(), size, start)) for start, size in places]
            kept = parts[0], parts[1:]
        if kept is None:
            return None
        message, buffers = kept
        return (decode(message, [bytearray(each) for each in buffers]),)

    def put(self, number: int, value: Any) -> None:
        """Keep an item, where there is room."""
        if number in self._kept or number in self._places:
            return
        message, buffers = encode(value)
        parts = [message, *(bytes(each) for each in buffers)]
        size = sum(map(len, parts)) + 200
        with self._lock:
            if self.memory_used + size <= self._memory_bytes:
                self.memory_used += size
                self._kept[number] = parts[0], parts[1:]
                return
            start = self.disk_used
            if start + size > self._disk_bytes:
                return
            self.disk_used += size
        self._write(number, parts, start)

    def close(self) -> None:
        """Forget all cached items and close the file that they lie in."""
        with self._lock:
            self._kept, self._places = {}, {}
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, number: int, parts: list[bytes], start: int) -> None:
        places = []
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="dovetail-feed-")  # noqa: SIM115  # closed with the cache
        for part in parts:
            try:
                os.pwrite(self._file.fileno(), part, start)
            except OSError:  # a full disk: what is not kept is read again
                self._disk_bytes = 0
                return
            places.append((start, len(part)))
            start += len(part)
        with self._lock:
            self._places[number] = places
