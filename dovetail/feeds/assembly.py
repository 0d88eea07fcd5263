"""Items in their order, put together to what a feed gives: batches, single items, faults, the end of an epoch.

Counts what is left out and where to go on after each. Knows nothing of who has read the items.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from dovetail.feeds.definition import Feed
from dovetail.feeds.stage_chain import ItemFault, ItemRun
from dovetail.vocabulary import ProgramError


@dataclasses.dataclass(slots=True)
class FeedPosition:
    """Where a feed stands: in which epoch, after how many batches, before which place of the epoch's order, and how
    many of the epoch's items were left out so far."""

    epoch: int = 0
    index: int = 0
    place: int = 0
    skipped: int = 0
    ended: bool = False

    def copy(self, *, ended: bool = False) -> "FeedPosition":
        """A copy of this position, which later steps of the feed do not change."""
        return FeedPosition(self.epoch, self.index, self.place, self.skipped, ended)

    def state(self, items: int | None) -> dict[str, Any]:
        """As plain data, with how many items the source has."""
        found = {"epoch": self.epoch, "index": self.index, "position": self.place, "skipped": self.skipped}
        return {**found, "items": items}

    @classmethod
    def of_state(cls, state: dict[str, Any], items: int | None) -> "FeedPosition":
        """Where `state` was taken. Raises `ProgramError` where the source has another number of items now."""
        before = state["items"]
        if before is not None and items is not None and before != items:
            raise ProgramError(
                f"a feed's source must have the items that it had when its position was saved; it had {before} and has "
                f"{items} now. Restore them, or begin a task of another name."
            )
        return cls(
            epoch=int(state["epoch"]),
            index=int(state["index"]),
            place=int(state["position"]),
            skipped=int(state["skipped"]),
        )


@dataclasses.dataclass(slots=True)
class Assembled:
    """One thing that a feed gives: the items of a batch to be made, or a value, or what went wrong, or neither at the
    end of an epoch; and where the feed stands after it."""

    after: FeedPosition
    items: ItemRun | None = None
    fault: ItemFault | None = None


class BatchAssembler:
    """Takes items of one epoch in order, and gives what becomes of them.

    >>> from dovetail.feeds.definition import feed
    >>> assembler = BatchAssembler(feed([1, 2, 3]).batch(2), FeedPosition())
    >>> given = list(assembler.add(ItemRun(0, [0, 1, 2], [0, 1, 2], list("abc")), ends=True))
    >>> [(each.items and each.items.values, each.after.place) for each in given]
    [(['a', 'b'], 2), (['c'], 3), (None, 3)]
    """

    def __init__(self, definition: Feed, begin: FeedPosition) -> None:
        self._stage, self._skip = definition.batch_stage(), definition.skip
        self._at = begin.copy()
        self._first = begin.place
        self._waiting: list[tuple[int, int, Any]] = []

    @property
    def waiting_values(self) -> list[Any]:
        """The items that wait for others of their batch."""
        return [value for _, _, value in self._waiting]

    def add(self, items: ItemRun, *, ends: bool) -> Iterator[Assembled]:
        """Take the next items; where the epoch `ends` with them, give what is left, and its end."""
        size = self._stage.size if self._stage is not None else 1
        faults = iter(sorted(items.faults, key=lambda fault: fault.place))
        fault = next(faults, None)
        for place, number, value in zip(items.places, items.numbers, items.values or (), strict=True):
            while fault is not None and fault.place < place:
                if (found := self._skip_item(fault)) is not None:
                    yield found
                    return
                fault = next(faults, None)
            if place < self._first:
                continue  # read only because it belongs to a group
            self._waiting.append((place, number, value))
            if len(self._waiting) == size:
                yield self._give()
        while fault is not None:
            if (found := self._skip_item(fault)) is not None:
                yield found
                return
            fault = next(faults, None)
        if ends:
            yield from self._end()

    def add_batch(self, items: ItemRun, *, places: int, ends: bool) -> Iterator[Assembled]:
        """Take so many places' items, which are a whole batch already."""
        assert not self._waiting
        self._at.place += places
        if items.faults:
            yield Assembled(after=self._at.copy(), fault=items.faults[0])
            return
        if items.values:
            self._at.index += 1
            yield Assembled(after=self._at.copy(), items=items)
        if ends:
            yield from self._end()

    def _skip_item(self, fault: ItemFault) -> Assembled | None:
        if fault.place < self._first:
            return None
        if self._at.skipped >= self._skip:
            return Assembled(after=self._at.copy(), fault=self._say_skipped(fault))
        self._at.skipped += 1
        return None

    def _say_skipped(self, fault: ItemFault) -> ItemFault:
        if not self._skip:
            return fault
        message = f"{self._at.skipped} items of this epoch were left out already, all that skip={self._skip} allows: "
        return dataclasses.replace(fault, message=message + fault.message)

    def _give(self) -> Assembled:
        places, numbers, values = (list(each) for each in zip(*self._waiting, strict=True))
        items = ItemRun(self._at.epoch, places, numbers, values, batch=self._at.index)
        self._at.index += 1
        self._at.place = places[-1] + 1
        self._waiting = []
        return Assembled(after=self._at.copy(), items=items)

    def _end(self) -> Iterator[Assembled]:
        if self._waiting and not (self._stage is not None and self._stage.drop_last):
            yield self._give()
        self._waiting = []
        yield Assembled(after=self._at.copy(ended=True))


def alignment(definition: Feed) -> int:
    """Of how many places a part of an epoch must be a multiple: groups of `map_batches` are read whole.

    >>> from dovetail.feeds.definition import feed
    >>> alignment(feed([1, 2, 3]).map_batches(list, size=4).map_batches(list, size=6))
    12
    """
    return math.lcm(1, *(stage.size for stage in definition.stages if stage.operation == "map_batches"))


def item_stages(definition: Feed) -> int:
    """How many of the working stages come before batches are made."""
    stages = definition.work_stages()
    return next((place for place, stage in enumerate(stages) if stage.operation == "batch"), len(stages))
