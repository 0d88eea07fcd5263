"""The order in which a feed reads its items: shuffling as numbers, before anything is read.

Every stage before a batch works on each item for itself, so to shuffle behind a stage gives what shuffling in front of
it gives, and holding numbers takes no memory where holding decoded images would. The order depends on seed and epoch
only, and any part of it is found without the parts before.
"""

import collections
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import numpy.typing

from dovetail.feeds.keys import key

Numbers = numpy.typing.NDArray[numpy.int64]
_KEPT_BLOCKS = 4


class ItemOrder:
    """Which item stands at which place of an epoch.

    A window shuffles within blocks of its size, which begin at another place in each epoch, so that neighbours do not
    stay neighbours; one that is as large as the source shuffles all of it.

    >>> order = ItemOrder(windows=(4,), seed=0)
    >>> sorted(order.indices(0, 0, 10, length=10)) == list(range(10))
    True
    >>> order.indices(0, 3, 6, length=10) == order.indices(0, 0, 10, length=10)[3:6]
    True
    """

    def __init__(self, *, windows: Sequence[int], seed: int) -> None:
        self._windows, self._seed = tuple(windows), seed
        self._blocks: collections.OrderedDict[tuple[int, int, int, int], Numbers] = collections.OrderedDict()
        self._lock = threading.Lock()

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows that shuffle, in their order."""
        return self._windows

    def indices(self, epoch: int, start: int, stop: int, *, length: int) -> list[int]:
        """The numbers of the items at the places from `start` to `stop` of an epoch."""
        if not self._windows:
            return list(range(start, stop))
        places = numpy.arange(start, stop)
        for level in reversed(range(len(self._windows))):
            places = self._permute(epoch, level, places, length)
        return [int(place) for place in places]

    def block_sizes(self, epoch: int, level: int) -> Iterator[int]:
        """The sizes of a stream's blocks, without end."""
        window = self._windows[level]
        if offset := self._offset(epoch, level):
            yield offset
        while True:
            yield window

    def block(self, epoch: int, level: int, number: int, size: int) -> Numbers:
        """How the items of a block are permuted."""
        wanted = (epoch, level, number, size)
        with self._lock:
            if wanted in self._blocks:
                return self._blocks[wanted]
        seed = key(self._seed, "order", *wanted)
        # NumPy promises that these numbers stay what they are from version to version; of newer generators it does not.
        found = numpy.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).permutation(size).astype(numpy.int64)
        with self._lock:
            self._blocks[wanted] = found
            while len(self._blocks) > _KEPT_BLOCKS * len(self._windows):
                self._blocks.popitem(last=False)
        return found

    def _permute(self, epoch: int, level: int, places: Numbers, length: int) -> Numbers:
        """What a window puts at these places."""
        window = self._windows[level]
        if window >= length:
            return self.block(epoch, level, 0, length)[places]
        offset, found = self._offset(epoch, level), places.copy()
        numbers = numpy.where(places >= offset, (places - offset) // window + 1, 0)
        for number in map(int, numpy.unique(numbers)):
            first = offset + (number - 1) * window if number else 0
            size = min(window if number else offset, length - first)
            inside = numbers == number
            found[inside] = first + self.block(epoch, level, number, size)[places[inside] - first]
        return found

    def _offset(self, epoch: int, level: int) -> int:
        """Where the second block begins; 0 where there is no shorter first one."""
        return key(self._seed, "offset", epoch, level) % self._windows[level]


def shuffled_stream(items: Iterator[Any], order: ItemOrder, epoch: int) -> Iterator[tuple[int, Any]]:
    """The items of a stream with their numbers, shuffled by holding a block of each window.

    >>> order = ItemOrder(windows=(4,), seed=0)
    >>> sorted(shuffled_stream(iter("abcdef"), order, 0)) == list(enumerate("abcdef"))
    True
    """
    found: Iterator[tuple[int, Any]] = enumerate(items)
    for level in range(len(order.windows)):
        found = _shuffle_blocks(found, order, epoch, level)
    return found


def _shuffle_blocks(
    items: Iterator[tuple[int, Any]], order: ItemOrder, epoch: int, level: int
) -> Iterator[tuple[int, Any]]:
    for number, size in enumerate(order.block_sizes(epoch, level)):
        block = list(itertools.islice(items, size))
        for place in order.block(epoch, level, number, len(block)):
            yield block[place]
        if len(block) < size:
            return
