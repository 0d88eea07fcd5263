"""The examples behind a training's batches, by number: the items of a map-style dataset.

A `DataLoader` or a feed says how items become batches; which ones are read, and in which order, is for whoever asks.
Knows datasets, loaders and feeds; knows nothing of models.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from dovetail.feeds import Feed
from dovetail.feeds.loaders import direct
from dovetail.feeds.sources import ItemSource, SelectedSource
from dovetail.vocabulary import ProgramError

_HINT = "Give Training.batches a DataLoader, or a dt.feed, over a dataset with a length and items by number."


class Examples(abc.ABC):
    """Examples by number, and batches of them."""

    def __init__(self, *, batch_size: int, drops_last: bool) -> None:
        self.batch_size, self.drops_last = batch_size, drops_last

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many examples there are."""

    @abc.abstractmethod
    def read(self, numbers: Sequence[int], *, epoch: int = 0) -> Any:
        """The batch of these examples, in this order; `epoch` keys what a feed's stages draw."""


class _LoaderExamples(Examples):
    def __init__(self, loader: "DataLoader[Any]") -> None:
        super().__init__(batch_size=int(loader.batch_size or 1), drops_last=loader.drop_last)
        self._data: Any = loader.dataset
        # One loader for all batches, whose order is the one batch that is asked for: to make one takes longer than to
        # read a small batch.
        self._order: list[list[int]] = [[]]
        self._loader = direct(DataLoader(self._data, batch_sampler=self._order, collate_fn=loader.collate_fn))

    def __len__(self) -> int:
        return len(self._data)

    def read(self, numbers: Sequence[int], *, epoch: int = 0) -> Any:
        self._order[0] = list(numbers)
        return next(iter(self._loader))


class _FeedExamples(Examples):
    def __init__(self, feed: Feed) -> None:
        batching = feed.batch_stage()
        assert batching is not None
        super().__init__(batch_size=batching.size, drops_last=batching.drop_last)
        assert isinstance(feed.source, ItemSource)
        self._source, self._feed = feed.source, feed

    def __len__(self) -> int:
        return len(self._source)

    def read(self, numbers: Sequence[int], *, epoch: int = 0) -> Any:
        stages = [
            dataclasses.replace(stage, size=len(numbers), drop_last=False) if stage.operation == "batch" else stage
            for stage in self._feed.stages
            if stage.operation not in ("shuffle", "cache")  # the order is given, and each batch is a feed of its own
        ]
        source = SelectedSource(self._source, numbers)
        return next(dataclasses.replace(self._feed, source=source, stages=tuple(stages)).epoch(epoch))


def examples_of(batches: Any) -> Examples:
    """The examples that a training's batches are made of. Raises `ProgramError` where they cannot be numbered.

    >>> from dovetail.feeds import feed
    >>> examples = examples_of(feed(range(10)).map(lambda x: x * x).shuffle(10).batch(4))
    >>> len(examples), examples.read([3, 1]).tolist()
    (10, [9, 1])
    """
    if isinstance(batches, Feed):
        _check_feed(batches)
        return _FeedExamples(batches)
    if isinstance(batches, DataLoader):
        _check_loader(batches)
        return _LoaderExamples(batches)
    raise ProgramError(
        f"examples are chosen by their number in a dataset; batches of type {type(batches).__name__} have none. {_HINT}"
    )


def _check_feed(feed: Feed) -> None:
    if not isinstance(feed.source, ItemSource):
        raise ProgramError(f"examples are chosen by their number; the items of a {feed.source.describe()} have none.")
    if feed.batch_stage() is None:
        raise ProgramError("a feed whose examples are chosen must put them into batches; end it with .batch(size).")
    if feed.varies():
        raise ProgramError(
            "a feed whose examples are chosen must give every item; this one filters or skips some. Filter the dataset "
            "before dt.feed."
        )


def _check_loader(loader: "DataLoader[Any]") -> None:
    data: Any = loader.dataset
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ProgramError(
            f"examples are chosen by their number; a {type(data).__name__} gives its items in an order of its own, "
            f"without numbers. {_HINT}"
        )
    order = loader.batch_sampler
    if type(order) is not BatchSampler or type(order.sampler) not in (RandomSampler, SequentialSampler):
        drawn = type(order.sampler if type(order) is BatchSampler else order or loader.sampler).__name__
        raise ProgramError(
            f"examples are chosen from all of a dataset, and put into batches of one size; a loader whose {drawn} does "
            f"that itself leaves nothing to choose. Give the program a parameter that leaves it out, and choose with "
            f"that."
        )
