"""Where a training stands in its batches, and how to stand there again in another process.

Batches that have `state_dict` and `load_state_dict` resume through them, feeds among them. Others are iterated anew
and skipped to their position, all earlier epochs included, since an iterable may carry a generator from epoch to
epoch; a digest of the first batches of the epoch tells when an iterable does not repeat itself. Knows batches; knows
nothing of models or checkpoints.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from dovetail.feeds.definition import Feed
from dovetail.feeds.loader_feed import LoaderEpoch, RunningLoader
from dovetail.feeds.loaders import direct, indices_only
from dovetail.feeds.plain_reader import PlainReader
from dovetail.feeds.shards import ShardReader, Shards
from dovetail.vocabulary import ProgramError

DIGESTED_BATCHES = 2
DIGESTED_BYTES = 1 << 20


class Cursor:
    """Takes batches one step's worth at a time, epoch after epoch.

    `before_draw(epoch, index)` is called before an epoch begins (index -1) and before each batch, so that what
    an iterable draws from the global generators depends on its position alone.

    >>> cursor = Cursor([1, 2, 3], before_draw=lambda epoch, index: None)
    >>> cursor.take(2), cursor.take(2)  # what is left of an epoch and too little for a step is dropped
    ([1, 2], [1, 2])
    """

    def __init__(self, batches: Any, *, before_draw: Callable[[int, int], None]) -> None:
        # A definition has no position; whoever reads it has. One that workers read comes as a `RunningFeed`.
        batches = PlainReader(batches) if isinstance(batches, Feed) else batches
        self._batches = batches = ShardReader(batches) if isinstance(batches, Shards) else batches
        self._direct = direct(batches)
        if isinstance(batches, RunningLoader):
            self._batches, self._direct = batches.loader, batches.make_reading(self._before_batch)
        self._before_draw = before_draw
        self._iterator: Iterator[Any] | None = None
        self._digests: list[str] = []
        self.epoch = 0
        self.index = 0
        self.waited_seconds = 0.0
        """For how long whoever takes batches has waited for them."""

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the first batches of this epoch."""
        return tuple(self._digests)

    def take(self, count: int) -> list[Any]:
        """The next `count` batches, all of one epoch."""
        taken = self._take_up_to(count)
        if len(taken) < count:
            self._begin(self.epoch + 1)
            taken = self._take_up_to(count)
        if len(taken) < count:
            raise ProgramError(
                f"batches must give at least {count} each time they are iterated; epoch {self.epoch} gave "
                f"{len(taken)}. "
                f"A generator runs once only: use a list, a DataLoader, or a class with __iter__."
            )
        return taken

    def state(self) -> dict[str, Any]:
        """Where this cursor stands, as plain data and tensors."""
        own = self._batches.state_dict() if _is_stateful(self._batches) else None
        return {"epoch": self.epoch, "index": self.index, "digests": list(self._digests), "batches": own}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` was taken, with batches as they were made. Raises `ProgramError` if they do not repeat
        themselves."""
        self.epoch, self.index, self._digests, self._iterator = 0, 0, [], None
        self.follow(state)

    def follow(self, state: Mapping[str, Any]) -> None:
        """Go on to where another cursor over the same data stood, which is not behind. Raises as `restore` does."""
        if state["batches"] is not None and _is_stateful(self._batches):
            self._batches.load_state_dict(state["batches"])
            self._begin(state["epoch"])
            self.index, self._digests = state["index"], list(state["digests"])
            return
        if state["epoch"] > self.epoch or self._iterator is None:
            if self._iterator is not None:
                while self._take_up_to(1, keep=False):
                    pass
                self.epoch += 1
            for epoch in range(self.epoch, state["epoch"]):
                self._pass_epoch(epoch)
            self._begin(state["epoch"])
        skipped = self._pass_batches(state["index"])
        if skipped < state["index"] or self._digests != list(state["digests"]):
            raise ProgramError(
                f"batches must repeat themselves when they are iterated again; epoch {self.epoch} did not: "
                f"{skipped} of {state['index']} batches passed, the first ones were {self._digests} and not "
                f"{list(state['digests'])}. "
                f"Seed their order from the task's seed, or give them state_dict and load_state_dict. "
                f"(Data that was drawn on another kind of processor differs here in its last bits: keep it in files.)"
            )

    def _before_batch(self, index: int) -> None:
        self._before_draw(self.epoch, index)

    def _pass_batches(self, until: int) -> int:
        """Pass batches of this epoch up to a number; gives how many were passed from its beginning."""
        if isinstance(self._iterator, LoaderEpoch) and until > max(self.index, DIGESTED_BATCHES):
            self._iterator.is_passed = True
            self._take_up_to(DIGESTED_BATCHES - self.index, keep=False)
            self._iterator.is_passed = False
            self.index += self._iterator.skip(until - self.index)
        return self.index + len(self._take_up_to(until - self.index, keep=False))

    def _begin(self, epoch: int) -> None:
        self.epoch, self.index, self._digests = epoch, 0, []
        self._before_draw(epoch, -1)
        self._iterator = iter(self._direct)

    def _take_up_to(self, count: int, *, keep: bool = True) -> list[Any]:
        if self._iterator is None:
            self._begin(self.epoch)
        assert self._iterator is not None
        taken: list[Any] = []
        while len(taken) < count:
            self._before_draw(self.epoch, self.index)
            asked = time.perf_counter()
            try:
                batch = next(self._iterator)
            except StopIteration:
                return taken
            self.waited_seconds += time.perf_counter() - asked
            if self.index < DIGESTED_BATCHES and not _is_stateful(self._batches):
                self._digests.append(digest(batch))
            self.index += 1
            taken.append(batch if keep else None)
        return taken

    def _pass_epoch(self, epoch: int) -> None:
        if isinstance(self._batches, list | tuple):
            return  # nothing is carried from epoch to epoch
        batches = indices_only(self._batches) if isinstance(self._batches, DataLoader) else self._batches
        self._before_draw(epoch, -1)
        iterator = iter(batches)
        index = 0
        while True:
            self._before_draw(epoch, index)
            try:
                next(iterator)
            except StopIteration:
                return
            index += 1


def digest(batch: Any) -> str:
    """A short digest of what is in a batch, up to a megabyte of each tensor.

    >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    found = hashlib.blake2b(digest_size=8)
    _digest_into(batch, found)
    return found.hexdigest()


def _digest_into(batch: Any, found: "hashlib.blake2b") -> None:
    if isinstance(batch, torch.Tensor):
        found.update(f"{batch.dtype}{tuple(batch.shape)}".encode())
        flat = batch.detach().cpu().contiguous().flatten()
        found.update(flat[: max(1, DIGESTED_BYTES // max(1, flat.element_size()))].view(torch.uint8).numpy().tobytes())
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            found.update(str(key).encode())
            _digest_into(value, found)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _digest_into(value, found)
    elif hasattr(batch, "tobytes"):
        found.update(batch.tobytes()[:DIGESTED_BYTES])
    elif isinstance(batch, str | bytes | int | float | bool) or batch is None:
        found.update(repr(batch).encode())
    else:  # objects of the user's own: their text may hold an address, so only the type counts
        found.update(type(batch).__qualname__.encode())


def _is_stateful(batches: Any) -> bool:
    return hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
