"""What a feed will give, in order: units that have ended wait here for those before them, and become batches.

Units may end in any order. What waits is within the budget, and the youngest of it can be taken back, to be read again.
Not thread-safe: its owner holds a lock. Knows units, positions and bytes; knows nothing of who works at what.
"""

import collections

from dovetail.feeds.assembly import Assembled, BatchAssembler, FeedPosition, item_stages
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import Feed
from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.unit_cutting import UnitCutter
from dovetail.feeds.units import FeedOutput, FeedUnit


class OutputQueue:
    """The outputs of one running feed."""

    def __init__(self, definition: Feed, *, budget: ByteBudget, cutter: UnitCutter) -> None:
        self._definition, self._budget, self._cutter = definition, budget, cutter
        self._batch = definition.batch_stage()
        self._item_stages, self._stages = item_stages(definition), len(definition.work_stages())
        self.begin(FeedPosition())

    def begin(self, at: FeedPosition) -> None:
        """Go on from a position, with nothing that waits."""
        self._read: dict[int, FeedUnit] = {}
        self._outputs: collections.deque[FeedOutput] = collections.deque()
        self.next_number = 0
        """The number of the unit that all others wait for."""
        self._assembler = BatchAssembler(self._definition, at)
        self.unfinished_bytes = 0
        """What the items hold that wait for others of their batch."""

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def waiting_units(self) -> int:
        """How many units wait for those before them."""
        return len(self._read)

    @property
    def waiting_bytes(self) -> int:
        """What is held by units and outputs that wait for their turn."""
        held = sum(output.charged_bytes for output in self._outputs)
        return held + sum(unit.charged_bytes for unit in self._read.values())

    @property
    def first(self) -> FeedOutput | None:
        """What is given next, if it is there."""
        return self._outputs[0] if self._outputs and self._outputs[0].is_done else None

    def give_first(self) -> None:
        """The first output is given, and holds nothing here from now on."""
        self._budget.hold(-self._outputs.popleft().charged_bytes)

    @property
    def youngest(self) -> int:
        """The number of the youngest unit that waits for its turn; -1 where none does."""
        return max(self._read, default=-1)

    def take_back(self) -> FeedUnit | None:
        """The youngest unit that waits for its turn, which is then to be read again."""
        number = max(self._read, default=None)
        return self._read.pop(number) if number is not None else None

    def settle(self, unit: FeedUnit) -> list[FeedUnit]:
        """Take a unit that has been through all its stages; gives batches to be put together by workers."""
        if unit.output is not None:
            self._fulfil(unit, unit.output)
            return []
        self._read[unit.number] = unit
        batches: list[FeedUnit] = []
        while self.next_number in self._read:
            batches += self._assemble(self._read.pop(self.next_number))
            self.next_number += 1
        return batches

    def _fulfil(self, unit: FeedUnit, output: FeedOutput) -> None:
        items = unit.items
        output.fault = items.faults[0] if items.faults else None
        output.value = items.values[0] if items.values else None
        output.charged_bytes, output.is_done = unit.charged_bytes, True
        # A filter behind batches has dropped it: then nothing is given, but the place counts.
        if not items.values and output.fault is None:
            self._outputs.remove(output)
            self._budget.hold(-output.charged_bytes)

    def _assemble(self, unit: FeedUnit) -> list[FeedUnit]:
        if unit.is_whole:
            entries = self._assembler.add_batch(unit.items, places=unit.stop - unit.start, ends=unit.ends_epoch)
        else:
            entries = self._assembler.add(unit.items, ends=unit.ends_epoch)
        batches: list[FeedUnit] = []
        given = 0
        for entry in entries:
            batch, held = self._put_out(entry, unit)
            batches += [batch] if batch is not None else []
            given += held
        self._budget.hold(-unit.charged_bytes - self.unfinished_bytes + given)
        self.unfinished_bytes = int(self._cutter.copies() * sum(map(item_bytes, self._assembler.waiting_values)))
        self._budget.hold(self.unfinished_bytes)
        if unit.error is not None:  # in its turn, so that what was read before it is given first, whoever is faster
            self._outputs.append(FeedOutput(after=FeedPosition(epoch=unit.epoch), error=unit.error))
        if unit.ends_epoch:
            self._assembler = BatchAssembler(self._definition, FeedPosition(epoch=unit.epoch + 1))
        return batches

    def _put_out(self, entry: Assembled, unit: FeedUnit) -> tuple[FeedUnit | None, int]:
        """Put one thing at the end of what will be given; gives the batch that is to be made of it, and its bytes."""
        output = FeedOutput(after=entry.after, fault=entry.fault)
        self._outputs.append(output)
        items = entry.items
        if items is None:
            return None, 0
        assert items.values is not None
        if unit.is_whole or self._batch is None:
            output.value = items.values[0]
            output.charged_bytes = unit.charged_bytes if unit.is_whole else item_bytes(output.value)
            return None, output.charged_bytes
        output.is_done = False
        batch = FeedUnit(
            number=-1,
            epoch=unit.epoch,
            start=items.places[0],
            stop=items.places[-1] + 1,
            items=items,
            at=self._item_stages,
            end=self._stages,
            output=output,
            copies=unit.copies,
            generation=unit.generation,
        )
        batch.charged_bytes = int(unit.copies * sum(map(item_bytes, items.values)))
        return batch, batch.charged_bytes
