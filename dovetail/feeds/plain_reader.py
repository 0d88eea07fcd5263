"""A feed read in the thread that asks for its batches: slow and true. What workers give is compared with this.

Global generators are as before between two batches.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.feeds.assembly import Assembled, BatchAssembler, FeedPosition, alignment, item_stages
from dovetail.feeds.definition import Feed
from dovetail.feeds.item_order import shuffled_stream
from dovetail.feeds.keyed_draws import as_before, one_thread, seed_global
from dovetail.feeds.keys import mix
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, StageChain
from dovetail.vocabulary import ProgramError


class PlainReader:
    """Reads a definition epoch after epoch: each `iter` goes on where `load_state_dict` said, or begins the next epoch.

    >>> from dovetail.feeds.definition import feed
    >>> reader = PlainReader(feed(range(3)).batch(2))
    >>> [batch.tolist() for batch in reader], reader.state_dict()["index"]
    ([[0, 1], [2]], 2)
    """

    def __init__(self, definition: Feed) -> None:
        self.definition = definition
        self._chain = StageChain(definition)
        self._order = definition.order()
        self._item_stages = item_stages(definition)
        self._inner: dict[str, Any] = {"at": FeedPosition(), "begun": False}

    def __len__(self) -> int:
        return len(self.definition)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: epoch and position."""
        return self._position.state(self._length())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the next `iter` where this state was taken."""
        at = FeedPosition.of_state(dict(state), self._length() if state["items"] is not None else None)
        self._inner = {"at": at, "begun": False}

    def __iter__(self) -> Iterator[Any]:
        if self._inner["begun"]:
            self._inner["at"] = FeedPosition(epoch=self._position.epoch + 1)
        self._inner["begun"] = True
        return self._read(self._position)

    @property
    def _position(self) -> FeedPosition:
        found: FeedPosition = self._inner["at"]
        return found

    def _length(self) -> int | None:
        return len(self.definition.source) if isinstance(self.definition.source, ItemSource) else None

    def _read(self, begin: FeedPosition) -> Iterator[Any]:
        entries = self._entries(begin)
        while True:
            with as_before(), one_thread():
                entry = next(entries)
                values = self._finish(entry)
            self._inner["at"] = entry.after
            if entry.after.ended:
                return
            yield from values

    def _finish(self, entry: Assembled) -> list[Any]:
        """What is given in the end: one value, or none where a filter drops it."""
        if entry.items is not None:
            last = len(self._chain.stages)
            if self._item_stages < last:
                self._chain.run(entry.items, self._item_stages, last, owns_generators=True)
            if not entry.items.faults:
                return entry.items.values or []
            entry.fault = entry.items.faults[0]
        if entry.fault is not None:
            raise ProgramError(entry.fault.message)
        return []

    def _entries(self, begin: FeedPosition) -> Iterator[Assembled]:
        assembler = BatchAssembler(self.definition, begin)
        for items, ends in self._parts(begin):
            self._chain.run(items, 0, self._item_stages, owns_generators=True)
            yield from assembler.add(items, ends=ends)

    def _parts(self, begin: FeedPosition) -> Iterator[tuple[ItemRun, bool]]:
        """The items of an epoch from a position on, in parts, and whether each is the last."""
        aligned = alignment(self.definition)
        batch = self.definition.batch_stage()
        size = aligned if batch is None else -(-batch.size // aligned) * aligned
        start = begin.place // aligned * aligned
        source = self.definition.source
        if not isinstance(source, ItemSource):
            yield from self._stream_parts(begin.epoch, start, size)
            return
        length = len(source)
        while True:
            stop = min(start + size, length)
            numbers = self._order.indices(begin.epoch, start, stop, length=length) if start < stop else []
            yield ItemRun(begin.epoch, list(range(start, start + len(numbers))), numbers), stop >= length
            if stop >= length:
                return
            start = stop

    def _stream_parts(self, epoch: int, start: int, size: int) -> Iterator[tuple[ItemRun, bool]]:
        items = shuffled_stream(self._stream(epoch), self._order, epoch)
        for _ in itertools.islice(items, start):
            pass
        while True:
            found = list(itertools.islice(items, size))
            places = list(range(start, start + len(found)))
            numbers, values = [number for number, _ in found], [value for _, value in found]
            yield ItemRun(epoch, places, numbers, values), len(found) < size
            if len(found) < size:
                return
            start += size

    def _stream(self, epoch: int) -> Iterator[Any]:
        draws, base = self._chain.drawing[0] is True, self._chain.draw_key(0, epoch)
        number = 0
        if draws:
            seed_global(base)
        items = iter(self.definition.source)  # type: ignore[arg-type]
        while True:
            if draws:
                seed_global(mix(base, number))
            try:
                yield next(items)
            except StopIteration:
                return
            number += 1
