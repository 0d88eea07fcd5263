"""A feed's stream, read a unit at a time: one reader after another, each from where the last one stopped."""

import collections
import itertools
from collections.abc import Iterator
from typing import Any

from dovetail.feeds.definition import Feed
from dovetail.feeds.item_order import shuffled_stream
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.units import FeedUnit


class StreamUnits:
    """Fills units with a stream's items. Called by one worker at a time, for which its owner sees."""

    def __init__(self, definition: Feed) -> None:
        self._definition = definition
        self._items: Iterator[tuple[int, Any]] | None = None

    def begin(self) -> None:
        """Begin anew: the next unit is found from the beginning of its epoch."""
        self._items = None

    def fill(self, unit: FeedUnit) -> None:
        """Read a unit's items. Where there are fewer than it was to have, its epoch ends with it; what the stream
        raises stays with it."""
        unit.reads_stream = False
        count, found = unit.stop - unit.start, list[tuple[int, Any]]()
        try:
            if self._items is None:
                source = self._definition.source
                assert not isinstance(source, ItemSource)
                self._items = shuffled_stream(iter(source), self._definition.order(), unit.epoch)
                collections.deque(itertools.islice(self._items, unit.start), maxlen=0)
            for each in itertools.islice(self._items, count):
                found.append(each)
        except BaseException as error:
            unit.error = error
        unit.stop = unit.start + len(found)
        unit.items.places = list(range(unit.start, unit.stop))
        unit.items.numbers, unit.items.values = [each[0] for each in found], [each[1] for each in found]
        unit.ends_epoch = len(found) < count and unit.error is None
        if unit.ends_epoch:
            self._items = None
