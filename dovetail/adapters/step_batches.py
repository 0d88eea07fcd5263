"""Batches that come with their place in training: the number of the batch, the epoch, the count of a step's items, and
what a batch weighs where an epoch ends with less than a whole step of them.

A loss knows its batch and nothing else, so whatever else it needs travels with the batch. Knows loaders; knows nothing
of trainers.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from dovetail.adapters.drawn_order import reorder
from dovetail.feeds.loaders import indices_only


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlace:
    """Where a batch stands: its number in the epoch, the epoch, the step that it is part of, and how many batches that
    step really has. One that only fills up the last step of an epoch does not count."""

    batch_idx: int
    epoch: int
    step: int
    step_batches: int
    counts: bool


Extras = Callable[[Sequence[Any], BatchPlace], Mapping[str, Any]]
"""What a batch is given along: of the batches of its step, and its place. Called once for each batch."""


class StepBatches:
    """A loader's batches as pairs of batch and extras, each epoch filled up to whole steps of `accumulate` batches.

    It goes on by its position; batches that were passed are not read again where the loader's order can be drawn.

    >>> batches = StepBatches([10, 20, 30], accumulate=2, extras=lambda step, place: {"counts": place.counts})
    >>> list(batches)
    [(10, {'counts': True}), (20, {'counts': True}), (30, {'counts': True}), (30, {'counts': False})]
    """

    def __init__(self, loader: Any, *, accumulate: int, extras: Extras) -> None:
        self.loader, self._accumulate, self._extras = loader, accumulate, extras
        self._epoch, self._index = 0, 0
        self._passed_epochs = 0

    def __len__(self) -> int:
        return math.ceil(len(self.loader) / self._accumulate) * self._accumulate

    def __iter__(self) -> Iterator[Any]:
        self._pass_epochs()
        for batches in self._steps():
            for number in range(self._accumulate):
                counts = number < len(batches)
                place = BatchPlace(
                    batch_idx=self._index,
                    epoch=self._epoch,
                    step=self._step(),
                    step_batches=len(batches),
                    counts=counts,
                )
                self._index += 1  # before it is handed out, so that a state taken after it leads to the next
                yield batches[number if counts else 0], self._extras(batches, place)
        self._epoch, self._index = self._epoch + 1, 0
        self._passed_epochs = self._epoch

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the number of the next batch in it."""
        return {"epoch": self._epoch, "index": self._index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the batch at which this state was taken."""
        self._epoch, self._index = state["epoch"], state["index"]

    def _pass_epochs(self) -> None:
        """Go through earlier epochs where an order is drawn from a generator that is carried from one to the next."""
        if not _takes_epochs(self.loader):
            for _ in range(self._passed_epochs, self._epoch):
                for _ in indices_only(self.loader) if isinstance(self.loader, DataLoader) else self.loader:
                    pass
        self._passed_epochs = self._epoch

    def _step(self) -> int:
        number = self._index // self._accumulate
        try:
            return self._epoch * (len(self) // self._accumulate) + number
        except TypeError:  # no length, so no epoch of known steps
            return number

    def _steps(self) -> Iterator[list[Any]]:
        step: list[Any] = []
        for batch in _remaining_batches(self.loader, epoch=self._epoch, start=self._index):
            step.append(batch)
            if len(step) == self._accumulate:
                yield step
                step = []
        if step:
            yield step


def _remaining_batches(loader: Any, *, epoch: int, start: int) -> Iterator[Any]:
    """An epoch's batches from one on."""
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
        batches: Iterator[Any] = iter(loader)
        for _ in range(start):
            next(batches, None)
        return batches
    for each in _orders(loader):
        if hasattr(each, "set_epoch"):
            each.set_epoch(epoch)
    return iter(reorder(loader, _Rest(loader.batch_sampler, start)) if start else loader)


def _takes_epochs(loader: Any) -> bool:
    return any(hasattr(each, "set_epoch") or type(each) is SequentialSampler for each in _orders(loader))


def _orders(loader: Any) -> tuple[Any, ...]:
    order = getattr(loader, "batch_sampler", None)
    return order, getattr(order, "sampler", None)


class _Rest(BatchSampler):
    """An order without its first batches."""

    def __init__(self, order: Any, start: int) -> None:
        self._order, self._start = order, start

    def __len__(self) -> int:
        return max(0, len(self._order) - self._start)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._order)
        for _ in range(self._start):
            next(batches, None)
        yield from batches


def weight_of(place: BatchPlace, weight: float) -> torch.Tensor:
    """What a batch weighs in its step, as a tensor: plain numbers that change would part steps into other forms.

    >>> weight_of(BatchPlace(batch_idx=3, epoch=0, step=1, step_batches=1, counts=False), 1.0)
    tensor(0.)
    """
    return torch.tensor(weight if place.counts else 0.0)
