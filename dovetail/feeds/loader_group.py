"""Loaders of one dataset whose order happens to be the same: one of them reads, and all have what it has read.

Each training draws its loader's order itself, as it would alone. What a batch is follows from its items' numbers and
from where torch's generator stands for it; where these are equal for a whole epoch, and dataset and collate are the
very same objects, the batches are. A loader whose order differs, or that stands elsewhere, is read by workers of its
own. For one thread.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.feeds.kept_batches import KeptBatches
from dovetail.feeds.loader_feed import RunningLoader


class LoaderGroup:
    """Some running loaders; each is told that it is in this group. `together` batches may be taken of one before the
    others' are.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.arange(4))
    >>> with RunningLoader(DataLoader(data, batch_size=2)) as one, RunningLoader(DataLoader(data, batch_size=2)) as two:
    ...     group = LoaderGroup([one, two])
    ...     first, second = (iter(each.make_reading(lambda index: None)) for each in (one, two))
    ...     next(first)[0].tolist(), next(second)[0].tolist(), two.stats().batches
    ([0, 1], [0, 1], 0)
    """

    def __init__(self, loaders: Sequence[RunningLoader], *, together: int = 1) -> None:
        self._loaders = list(loaders)
        self._most_behind = 2 * together + 1
        self._readings: list[_GroupReading] = []
        for loader in loaders:
            loader.read_from = self.read

    def read(self, loader: RunningLoader, place: int) -> Iterator[Any]:
        """What workers give of a loader's epoch from a place on."""
        reading = next((each for each in self._readings if each.has(loader.order, place)), None)
        for number in range(place, len(loader.order)):
            if reading is None or not reading.serves(number):
                reading = self._begin(loader, number)
            yield reading.take(loader, number)

    def _begin(self, loader: RunningLoader, place: int) -> "_GroupReading":
        for each in self._readings:
            each.is_open = each.is_open and each.loader is not loader
        kept = KeptBatches(self._loaders, first=place, most_behind=self._most_behind)
        # Of one that a loader has left, others may want the last batches; of older ones nobody wants anything.
        self._readings = [*self._readings[1 - 2 * len(self._loaders) :], _GroupReading(loader, place, kept)]
        return self._readings[-1]


class _GroupReading:
    """One loader's epoch, read for all whose epoch is the same."""

    def __init__(self, loader: RunningLoader, place: int, kept: KeptBatches) -> None:
        self.loader, self._order, self._kept = loader, loader.order, kept
        self._batches, self._next = loader.read_alone(place), place
        self.is_open = True
        """Whether its loader still reads this epoch, and nothing else."""

    def has(self, order: Sequence[Any], place: int) -> bool:
        """Whether these batches are its own, and it serves this place."""
        return self.serves(place) and self._order == order

    def serves(self, place: int) -> bool:
        """Whether what comes at a place is kept, or read next."""
        return place in self._kept or (self.is_open and place == self._next)

    def take(self, loader: RunningLoader, place: int) -> Any:
        """What a worker has read for this place."""
        if place not in self._kept:
            self._kept.put(place, next(self._batches))
            self._next = place + 1
        return self._kept.take(loader, place)
