"""How an epoch is cut into units: whole batches where every worker can have one, else as many items as take a worker
long enough that handing them over does not count.

What comes out does not depend on it. Knows places and sizes; knows nothing of workers but how many there are.
"""

from collections.abc import Sequence

from dovetail.feeds.assembly import FeedPosition, alignment, item_stages
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import Feed
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun
from dovetail.feeds.units import FeedUnit

# A unit should take so long that handing it over does not count, and not so long that others wait for it.
_UNIT_SECONDS = 0.01
_MOST_ITEMS = 512
_ENDLESS = 1 << 62
# Units of so many epochs may be under way at once: each has one at least, and there are not more units than that.
_KEPT_EPOCHS = 256


class UnitCutter:
    """The units of epoch after epoch, in the order of reading. Not thread-safe: its owner holds a lock."""

    def __init__(self, definition: Feed, budget: ByteBudget) -> None:
        self._definition, self._budget = definition, budget
        self._batch, self._order = definition.batch_stage(), definition.order()
        self._stages, self._item_stages = len(definition.work_stages()), item_stages(definition)
        self.aligned = alignment(definition)
        self._seconds = [0.0] * self._item_stages  # of an item, in each stage
        self.begin(FeedPosition())

    def begin(self, at: FeedPosition) -> None:
        """Go on from a position."""
        self.epoch, self._place = at.epoch, at.place // self.aligned * self.aligned
        self._number = 0
        self._lengths: dict[int, int] = {}

    def next_unit(self, *, workers: int, is_cautious: bool = False) -> FeedUnit:
        """The unit that comes next, not yet counted as begun, for so many workers; a cautious one is as small as can
        be."""
        is_stream = not isinstance(self._definition.source, ItemSource)
        length = _ENDLESS if is_stream else self._read_length(self._length(self.epoch))
        stop, is_whole = self._extent(length, workers, is_cautious)
        is_whole = is_whole and not is_stream and stop > self._place
        return FeedUnit(
            number=self._number,
            epoch=self.epoch,
            start=self._place,
            stop=stop,
            items=ItemRun(self.epoch, [], []),
            end=self._stages if is_whole else self._item_stages,
            is_whole=is_whole,
            ends_epoch=stop >= length,
            copies=self.copies(),
            reads_stream=is_stream,
        )

    def step_on(self, unit: FeedUnit) -> None:
        """Count a unit as begun, and move on to the items of the next one."""
        self._number += 1
        if unit.reads_stream:  # where it ends is known when it was read
            return
        self.renew(unit)
        self._leave(unit)

    def end_stream_unit(self, unit: FeedUnit) -> None:
        """Go on behind a unit of a stream that was read."""
        self._leave(unit)

    def renew(self, unit: FeedUnit) -> None:
        """Let a unit be read from its numbers, for the first time or once more."""
        unit.at = unit.upto = 0
        unit.hits = None
        batch = unit.start // self._batch.size if self._batch is not None else 0
        numbers = self.numbers(unit)
        unit.items = ItemRun(unit.epoch, range(unit.start, unit.start + len(numbers)), numbers, batch=batch)

    def numbers(self, unit: FeedUnit) -> Sequence[int]:
        """Which items of the source stand at the places of a unit."""
        if unit.stop <= unit.start or not self._order.windows:
            return range(unit.start, unit.stop)
        return self._order.indices(unit.epoch, unit.start, unit.stop, length=self._length(unit.epoch))

    def learn(self, stage: int, seconds_per_item: float) -> None:
        """Learn how long items take in one stage."""
        if stage < self._item_stages:
            before, now = self._seconds[stage], max(seconds_per_item, 1e-9)
            self._seconds[stage] = 0.8 * before + 0.2 * now if before else now

    def copies(self) -> float:
        """How often the bytes of items are held at most: once more in the batch that they are put into."""
        return 1 + max(1.0, self._budget.batch_growth) if self._batch is not None else 1.0

    def knows_sizes(self) -> bool:
        """Whether it is known how large items and batches are."""
        return self._budget.has_seen and (self._batch is None or self._budget.has_seen_batch)

    def _leave(self, unit: FeedUnit) -> None:
        self._place = unit.stop
        if unit.ends_epoch:
            self.epoch, self._place = self.epoch + 1, 0

    def _length(self, epoch: int) -> int:
        """How many items the source had when this epoch was begun: one that has fewer since then is found out when
        they are read, and its epoch does not just end."""
        source = self._definition.source
        assert isinstance(source, ItemSource)
        if epoch not in self._lengths:
            self._lengths = {each: length for each, length in self._lengths.items() if each >= epoch - _KEPT_EPOCHS}
            self._lengths[epoch] = len(source)
        return self._lengths[epoch]

    def _read_length(self, length: int) -> int:
        """How many places of an epoch are read: what would be dropped at its end is not."""
        if self._batch is not None and self._batch.drop_last and not self._definition.varies():
            return length // self._batch.size * self._batch.size
        return length

    def _extent(self, length: int, workers: int, is_cautious: bool) -> tuple[int, bool]:
        """Where the next unit ends, and whether it is a whole batch."""
        batch, place = self._batch, self._place
        count = self.aligned
        if all(self._seconds) and not is_cautious:  # a stage that nothing has been through may be the slowest
            count *= max(1, int(_UNIT_SECONDS / sum(self._seconds) / self.aligned))
            count = min(count, max(_MOST_ITEMS // self.aligned, 1) * self.aligned)
        if batch is None or self._definition.varies() or batch.size % self.aligned:
            return min(place + count, length), False
        if not is_cautious and place % batch.size == 0 and self._can_afford_batches(batch.size, workers):
            return min(place + batch.size, length), True
        return min(place + count, (place // batch.size + 1) * batch.size, length), False

    def _can_afford_batches(self, size: int, workers: int) -> bool:
        """Whether every worker can have a whole batch in work: then items are put together where they are made."""
        each = self._budget.expected_bytes(size, copies=self.copies())
        return self._budget.has_seen and (workers + 1) * each <= self._budget.limit_bytes
