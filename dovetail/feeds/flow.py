"""Who works at what in a running feed: admission by bytes, queues by kind of worker, and everything back in order.

Stages of one kind of worker share its workers: whoever is free takes the oldest unit that waits for that kind and puts
it through all neighbouring stages of the kind at once. So a unit changes hands only where kinds change, no worker idles
because it belongs to another stage, and a stage changes its kind while units are under way.

Units are admitted in order and may end in any: results wait for their turn within the budget. Every unit can be read
again from its numbers, so one that turns out to need more room than there is gives way to older ones and comes later.
Thread-safe. Knows units and bytes; knows nothing of threads, processes and sockets.
"""

import collections
import heapq
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from dovetail.feeds.assembly import Assembled, BatchAssembler, FeedPosition, alignment, item_stages
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import Feed
from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.item_cache import DroppedItem, ItemCache
from dovetail.feeds.item_order import shuffled_stream
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, RunAbandoned, StageWork
from dovetail.feeds.units import FeedOutput, FeedUnit
from dovetail.vocabulary import ProgramError

# A unit should take so long that handing it over does not count, and not so long that others wait for it.
_UNIT_SECONDS = 0.01
_MOST_UNITS = 256
_MOST_ITEMS = 512


class FeedFlow:
    """The units of one running feed."""

    def __init__(self, definition: Feed, *, budget: ByteBudget, cache: ItemCache | None) -> None:
        self._definition, self.budget, self._cache = definition, budget, cache
        self._stages = definition.work_stages()
        self._item_stages, self._aligned = item_stages(definition), alignment(definition)
        self._batch, self._order = definition.batching(), definition.order()
        self._cache_place = definition.cache_place()
        self.kinds = ["thread"] * len(self._stages)
        self.workers = {"thread": 0, "process": 0}
        """How many workers of each kind there should be."""
        self._present = {"thread": 0, "process": 0}
        self.buffer_bytes = 0
        self.work = [StageWork() for _ in self._stages]
        self.waited_seconds, self.overdrawn_bytes = 0.0, 0
        self._lock = threading.Lock()
        self._for_work = {kind: threading.Condition(self._lock) for kind in self.workers}
        self._for_output, self._for_room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._closed = self._started = False
        self._error: BaseException | None = None
        self._generation = 0
        self._running: set[FeedUnit] = set()
        self._is_cautious = False
        self._item_seconds = 0.0
        self._stream: Iterator[tuple[int, Any]] | None = None
        self._is_reading = False
        self._reset(FeedPosition())

    def _reset(self, begin: FeedPosition) -> None:
        self._ready: dict[str, list[FeedUnit]] = {kind: [] for kind in self.workers}
        self._again: list[FeedUnit] = []
        self._read: dict[int, FeedUnit] = {}
        self._outputs: collections.deque[FeedOutput] = collections.deque()
        self._next_number = self._next_out = 0
        self._epoch, self._place = begin.epoch, begin.place // self._aligned * self._aligned
        self._batch_number = begin.index
        self._assembler = BatchAssembler(self._definition, begin)
        self._waiting_bytes = 0
        self._open_epoch = begin.epoch
        self._stream = None
        self._is_broken = False

    # What the consumer calls

    def start(self, begin: FeedPosition) -> None:
        """Begin to read from a position on; whatever else is under way is dropped."""
        with self._lock:
            held = sum(output.charged_bytes for output in self._outputs) + self._waiting_bytes
            held += sum(unit.charged_bytes for unit in self._read.values())
            held += sum(unit.charged_bytes for queue in self._ready.values() for unit in queue)
            self.budget.hold(-held)
            while self._is_reading:
                self._for_room.wait(0.05)
            self._generation += 1
            self._reset(begin)
            self._started = True
            self._wake()

    def go_on(self, epoch: int) -> None:
        """Let a stream begin this epoch: it is not read ahead of the consumer, whose it may be to change it."""
        with self._lock:
            self._open_epoch = max(self._open_epoch, epoch)
            self._wake()

    def give(self) -> FeedOutput:
        """Wait for the next thing in order. Raises what a worker raised."""
        with self._lock:
            start = time.perf_counter()
            while not (self._outputs and self._outputs[0].is_done):
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise ProgramError("a feed must be open while it is read; this one was closed.")
                self._for_output.wait()
            self.waited_seconds += time.perf_counter() - start
            found = self._outputs[0]
            if found.error is not None:
                raise found.error
            if found.fault is None:
                self._outputs.popleft()
                self.budget.hold(-found.charged_bytes)
                self._made_room()
            return found

    def set_workers(self, kinds: list[str], workers: dict[str, int], buffer_bytes: int) -> None:
        """Say which kind of worker each stage has from now on, and how many there are of each."""
        with self._lock:
            self.kinds, self.workers, self.buffer_bytes = kinds, workers, buffer_bytes
            waiting = [unit for each in self._ready.values() for unit in each]
            self._ready = {kind: [] for kind in self.workers}
            for unit in waiting:
                heapq.heappush(self._ready[kinds[unit.at]], unit)
            self._wake()

    def missing(self, kind: str) -> int:
        """How many workers of a kind are still to be started; they count from now on."""
        with self._lock:
            count = max(0, self.workers[kind] - self._present[kind])
            self._present[kind] += count
            return count

    def fail(self, error: BaseException) -> None:
        """Let the consumer know that nothing more will come."""
        with self._lock:
            self._error = self._error or error
            self._for_output.notify_all()

    def close(self) -> None:
        """Let all workers go."""
        with self._lock:
            self._closed = True
            self._wake()
            self._for_output.notify_all()
            self._for_room.notify_all()

    def waiting(self) -> list[int]:
        """How many units wait for each stage."""
        with self._lock:
            found = [0] * len(self._stages)
            for unit in (unit for each in self._ready.values() for unit in each):
                found[unit.at] += 1
            return found

    def held(self) -> list[int]:
        """How many bytes are held behind each stage: by units in work at it, and behind the last by what waits for its
        turn."""
        with self._lock:
            found = [0] * len(self._stages)
            for unit in self._running:
                found[unit.at] += unit.charged_bytes
            for unit in (unit for each in self._ready.values() for unit in each):
                found[unit.at - 1] += unit.charged_bytes
            found[-1] += sum(unit.charged_bytes for unit in self._read.values()) + self._waiting_bytes
            found[-1] += sum(each.charged_bytes for each in self._outputs)
            return found

    # What workers call

    def take(self, kind: str, *, wait: bool = True) -> FeedUnit | None:
        """The next unit for a worker of this kind; None where it is to end, or there is none and it does not wait."""
        while True:
            with self._lock:
                unit = self._take(kind, wait)
            if unit is None:
                return None
            if unit.reads_stream:
                self._fill(unit)
            if self._cache is not None and unit.at == 0 and unit.output is None:
                self._look_up(unit)
            with self._lock:
                if unit.at >= unit.end:  # all of it was in the cache
                    self._running.discard(unit)
                    self._settle(unit)
                elif self.kinds[unit.at] != kind and unit.at:  # all that this kind would have done was there
                    self._running.discard(unit)
                    self._push(unit)
                else:
                    unit.upto = self._segment_end(unit, kind)
                    return unit

    def finish(self, unit: FeedUnit, items: ItemRun, work: list[StageWork]) -> None:
        """A worker has put a unit through the stages that it was given it for."""
        unit.items = items
        if self._cache is not None and unit.upto == self._cache_place and unit.at < unit.upto:
            self._keep(unit)
        with self._lock:
            self._count(unit, work)
            unit.at = unit.upto
            if not self._stays(unit):
                return
            if unit.at < unit.end and (self._definition.skip or not items.faults):
                # What was admitted stays: it will be needed by the stages that follow.
                self._recharge(unit, max(unit.charged_bytes, int(unit.copies * items.held_bytes)))
                self._push(unit)
            else:
                is_batch = unit.is_whole or unit.output is not None
                self._recharge(unit, int((1 if is_batch else unit.copies) * items.held_bytes))
                self._settle(unit)
            self._made_room()

    def grow(self, unit: FeedUnit, held_bytes: int, items: int) -> int:
        """Ask for room for a unit that holds so much; gives how much it may hold before it must ask again. Raises
        `RunAbandoned` where it must give way to older ones."""
        if self._need(unit, held_bytes) <= unit.charged_bytes:
            return int((unit.charged_bytes - 2 * self.budget.most_item_bytes) / unit.copies)
        with self._lock:
            self.budget.saw(items=items, held_bytes=held_bytes, most_bytes=held_bytes // max(1, items))
            need = self._need(unit, held_bytes)
            while unit.generation == self._generation and not self._closed:
                if self.budget.fits(need - unit.charged_bytes) or self._overdraws(unit, need):
                    self._recharge(unit, need)
                    return held_bytes
                if not self._is_oldest(unit) or self._is_too_large(unit, need):
                    raise RunAbandoned
                if not self._evict():
                    self._for_room.wait(0.1)
            raise RunAbandoned

    def abandon(self, unit: FeedUnit) -> None:
        """A unit was dropped for lack of room: read it later."""
        with self._lock:
            if self._stays(unit):
                self._put_off(unit)
                self._made_room()

    def give_back(self, unit: FeedUnit, *, why: str = "", most_attempts: int = 3) -> None:
        """The worker that had this unit has ended; `why` where the unit may be the reason. After some attempts it
        counts as one that cannot be read."""
        with self._lock:
            if not self._stays(unit):
                return
            unit.attempts += bool(why)
            if unit.attempts < most_attempts:
                self._push(unit)
                return
            places = f"item {unit.items.numbers[0]}" if len(unit.items.numbers) == 1 else f"items {unit.items.numbers}"
            self._error = ProgramError(
                f"a feed's worker process must survive its items; {places} of epoch {unit.epoch} ended it "
                f"{unit.attempts} times ({why}) in the stages {self._names(unit)}. Read them in a process of yours to "
                f"see why."
            )
            self._for_output.notify_all()

    # With the lock held

    def _take(self, kind: str, wait: bool) -> FeedUnit | None:
        while True:
            if self._closed:
                return None
            if wait and self._present[kind] > self.workers[kind]:
                self._present[kind] -= 1
                return None
            unit = heapq.heappop(self._ready[kind]) if self._ready[kind] else self._admit(kind)
            if unit is not None:
                self._running.add(unit)
                if self._ready[kind] or self.kinds[0] == kind:
                    self._for_work[kind].notify()
                return unit
            if not wait:
                return None
            self._for_work[kind].wait()

    def _admit(self, kind: str) -> FeedUnit | None:
        if self.kinds[0] != kind or not self._started or self._is_reading or self._is_broken:
            return None
        if self._error is not None:
            return None
        self._is_cautious = False
        unit = self._again[0] if self._again else self._next_unit()
        if unit is not None and not self._has_room_for(unit):
            unit = self._next_unit() if self._is_cautious else None
            unit = unit if unit is not None and self._has_room_for(unit) else None
        if unit is None:
            return None
        if self._again:
            heapq.heappop(self._again)
        else:
            self._step_on(unit)
        return unit

    def _has_room_for(self, unit: FeedUnit) -> bool:
        charge = self.budget.expected_bytes(unit.stop - unit.start, copies=unit.copies)
        under_way = len(self._running) + len(self._read) + len(self._outputs) + sum(map(len, self._ready.values()))
        fits = self.budget.fits(charge)
        if not self._knows_sizes() and len(self._running) + len(self._outputs) + sum(map(len, self._ready.values())):
            return False  # one at a time, until it is known how large they are
        if unit.number == self._next_out:  # whatever waits for this one gives way
            while not fits and self._evict():
                fits = self.budget.fits(charge)
            if not fits and not self._running and not self._outputs and not any(self._ready.values()):
                if unit.stop - unit.start > self._aligned and unit not in self._again:
                    self._is_cautious = True  # some items of it may fit
                    return False
                fits = not self._is_too_large(unit, charge)
        else:
            waits = sum(each.charged_bytes for each in self._outputs) + sum(
                u.charged_bytes for u in self._read.values()
            )
            fits = fits and under_way < _MOST_UNITS and waits <= self.buffer_bytes
        if fits:
            unit.charged_bytes = 0
            self._recharge(unit, charge)
        return fits

    def _knows_sizes(self) -> bool:
        return self.budget.has_seen and (self._batch is None or self.budget.has_seen_batch)

    def _next_unit(self) -> FeedUnit | None:
        """The unit that comes next in the order of reading, not yet counted as begun."""
        source = self._definition.source
        if not isinstance(source, ItemSource):
            return self._next_of_stream()
        length = self._read_length(len(source))
        stop, is_whole = self._extent(length)
        numbers = self._order.indices(self._epoch, self._place, stop, length=len(source)) if stop > self._place else []
        items = ItemRun(self._epoch, list(range(self._place, stop)), numbers, batch=self._batch_number)
        unit = self._unit(items, self._place, stop, is_whole=is_whole and bool(numbers))
        unit.copies, unit.ends_epoch = self._copies(), stop >= length
        return unit

    def _next_of_stream(self) -> FeedUnit | None:
        if self._epoch > self._open_epoch:
            return None
        stop, _ = self._extent(1 << 62)
        unit = self._unit(ItemRun(self._epoch, [], [], batch=self._batch_number), self._place, stop, is_whole=False)
        unit.copies, unit.reads_stream = self._copies(), True
        return unit

    def _unit(self, items: ItemRun, start: int, stop: int, *, is_whole: bool) -> FeedUnit:
        end = len(self._stages) if is_whole else self._item_stages
        return FeedUnit(
            number=self._next_number,
            epoch=self._epoch,
            start=start,
            stop=stop,
            items=items,
            end=end,
            is_whole=is_whole,
            generation=self._generation,
        )

    def _read_length(self, length: int) -> int:
        """How many places of an epoch are read: what would be dropped at its end is not."""
        if self._batch is not None and self._batch.drop_last and not self._definition.varies():
            return length // self._batch.size * self._batch.size
        return length

    def _extent(self, length: int) -> tuple[int, bool]:
        """Where the next unit ends, and whether it is a whole batch."""
        batch, place = self._batch, self._place
        count = self._aligned
        if self._item_seconds:
            count *= max(1, int(_UNIT_SECONDS / self._item_seconds / self._aligned))
        count = min(count, max(_MOST_ITEMS // self._aligned, 1) * self._aligned)
        if batch is None or self._definition.varies() or batch.size % self._aligned:
            return min(place + count, length), False
        if not self._is_cautious and place % batch.size == 0 and self._can_afford_batches(batch.size):
            return min(place + batch.size, length), True
        if self._is_cautious or not self.budget.has_seen:
            count = self._aligned
        return min(place + count, (place // batch.size + 1) * batch.size, length), False

    def _can_afford_batches(self, size: int) -> bool:
        """Whether every worker can have a whole batch in work: then items are put together where they are made."""
        workers = sum(self.workers.values()) + 1
        return self.budget.has_seen and workers * self._batch_bytes(size) <= self.budget.limit_bytes

    def _batch_bytes(self, size: int) -> int:
        return self.budget.expected_bytes(size, copies=self._copies())

    def _copies(self) -> float:
        """How often the bytes of items are held at most: once more in the batch that they are put into."""
        return 1 + max(1.0, self.budget.batch_growth) if self._batch is not None else 1.0

    def _need(self, unit: FeedUnit, held_bytes: int) -> int:
        """What a unit that holds so much must be charged: one more item may be as large as two have been."""
        return int(unit.copies * held_bytes) + 2 * self.budget.most_item_bytes

    def _step_on(self, unit: FeedUnit) -> None:
        self._next_number += 1
        if unit.reads_stream:
            self._is_reading = True
            return
        self._place = unit.stop
        self._batch_number += unit.is_whole
        if unit.ends_epoch:
            self._epoch, self._place, self._batch_number = self._epoch + 1, 0, 0

    def _segment_end(self, unit: FeedUnit, kind: str) -> int:
        """Before which stage a worker of this kind stops."""
        stop = unit.at + 1
        while stop < unit.end and self.kinds[stop] == kind and not (self._cache and stop == self._cache_place):
            stop += 1
        return stop

    def _push(self, unit: FeedUnit) -> None:
        kind = self.kinds[unit.at]
        heapq.heappush(self._ready[kind], unit)
        self._for_work[kind].notify()

    def _stays(self, unit: FeedUnit) -> bool:
        """Take a unit from those in work; whether it is still wanted."""
        self._running.discard(unit)
        if unit.generation == self._generation and not self._closed:
            return True
        self.budget.hold(-unit.charged_bytes)
        unit.charged_bytes = 0
        return False

    def _recharge(self, unit: FeedUnit, charge: int) -> None:
        self.budget.hold(charge - unit.charged_bytes)
        unit.charged_bytes = charge

    def _count(self, unit: FeedUnit, work: list[StageWork]) -> None:
        for place, done in enumerate(work, start=unit.at):
            total = self.work[place]
            total.seconds += done.seconds
            total.cpu_seconds += done.cpu_seconds
            total.items += done.items
            total.bytes += done.bytes
            total.most_bytes = max(total.most_bytes, done.most_bytes)
        self._learn_sizes(unit, work)
        count = unit.stop - unit.start
        if unit.at == 0 and count:
            seconds = sum(done.seconds for done in work) / count
            self._item_seconds = 0.8 * self._item_seconds + 0.2 * seconds if self._item_seconds else seconds

    def _learn_sizes(self, unit: FeedUnit, work: list[StageWork]) -> None:
        """Learn how large items are, and how much larger their batches."""
        own = work[: max(0, self._item_stages - unit.at)]
        count = unit.stop - unit.start
        if own and count:
            held, most = max(done.bytes for done in own), max(done.most_bytes for done in own)
            self.budget.saw(items=count, held_bytes=held, most_bytes=most)
        if unit.at + len(work) > self._item_stages and unit.items.held_bytes and self._batch is not None:
            before = max([done.bytes for done in own], default=0) or unit.charged_bytes / unit.copies
            self.budget.batch_growth = max(self.budget.batch_growth, unit.items.held_bytes / max(1, before))
            self.budget.has_seen_batch = True

    def _settle(self, unit: FeedUnit) -> None:
        """A unit has been through all its stages."""
        if unit.output is not None:
            self._fulfil(unit)
            return
        self._read[unit.number] = unit
        while self._next_out in self._read:
            self._assemble(self._read.pop(self._next_out))
            self._next_out += 1

    def _fulfil(self, unit: FeedUnit) -> None:
        output, items = unit.output, unit.items
        assert output is not None
        output.fault = items.faults[0] if items.faults else None
        output.value = items.values[0] if items.values else None
        output.charged_bytes, output.is_done = unit.charged_bytes, True
        # A filter behind batches has dropped it: then nothing is given, but the place counts.
        if not items.values and output.fault is None:
            self._outputs.remove(output)
            self.budget.hold(-output.charged_bytes)
        self._for_output.notify()

    def _assemble(self, unit: FeedUnit) -> None:
        if unit.is_whole:
            entries = self._assembler.add_batch(unit.items, places=unit.stop - unit.start, ends=unit.ends_epoch)
        else:
            entries = self._assembler.add(unit.items, ends=unit.ends_epoch)
        given = 0
        for entry in entries:
            given += self._put_out(entry, unit)
        self.budget.hold(-unit.charged_bytes - self._waiting_bytes + given)
        self._waiting_bytes = int(self._copies() * sum(map(item_bytes, self._assembler.waiting_values)))
        self.budget.hold(self._waiting_bytes)
        if unit.error is not None:  # in its turn, so that what was read before it is given first, whoever is faster
            self._outputs.append(FeedOutput(after=FeedPosition(epoch=unit.epoch), error=unit.error))
        if unit.ends_epoch:
            self._assembler = BatchAssembler(self._definition, FeedPosition(epoch=unit.epoch + 1))
        self._for_output.notify()

    def _put_out(self, entry: Assembled, unit: FeedUnit) -> int:
        """Put one thing at the end of what will be given; gives its bytes."""
        output = FeedOutput(after=entry.after, fault=entry.fault)
        self._outputs.append(output)
        items = entry.items
        if items is None:
            return 0
        assert items.values is not None
        if unit.is_whole or self._batch is None:
            output.value = items.values[0]
            output.charged_bytes = unit.charged_bytes if unit.is_whole else item_bytes(output.value)
            return output.charged_bytes
        output.is_done = False
        batch = FeedUnit(
            number=-1,
            epoch=unit.epoch,
            start=items.places[0],
            stop=items.places[-1] + 1,
            items=items,
            at=self._item_stages,
            end=len(self._stages),
            output=output,
            copies=unit.copies,
            generation=self._generation,
        )
        batch.charged_bytes = int(unit.copies * sum(map(item_bytes, items.values)))
        self._push(batch)
        return batch.charged_bytes

    def _is_oldest(self, unit: FeedUnit) -> bool:
        waiting = (each for queue in (*self._ready.values(), self._again) for each in queue)
        return not any(other < unit for other in itertools.chain(self._running, waiting))

    def _evict(self) -> bool:
        """Drop the youngest unit that waits for its turn, to be read again; whether there was one."""
        number = max(self._read, default=None)
        if number is None or not isinstance(self._definition.source, ItemSource):
            return False
        self._put_off(self._read.pop(number))
        return True

    def _put_off(self, unit: FeedUnit) -> None:
        source = self._definition.source
        assert isinstance(source, ItemSource)
        self._recharge(unit, 0)
        unit.begin_again(self._order.indices(unit.epoch, unit.start, unit.stop, length=len(source)))
        heapq.heappush(self._again, unit)

    def _overdraws(self, unit: FeedUnit, need: int) -> bool:
        """Let items of a stream have more than there is: they cannot be read again, so they cannot give way."""
        if isinstance(self._definition.source, ItemSource) or self._is_too_large(unit, need):
            return False
        over = self.budget.held_bytes + need - unit.charged_bytes - self.budget.limit_bytes
        self.overdrawn_bytes = max(self.overdrawn_bytes, over)
        return True

    def _is_too_large(self, unit: FeedUnit, need: int) -> bool:
        """Whether a unit needs more than the whole budget; then that is what the consumer hears."""
        need += self._waiting_bytes  # of the same batch
        if need <= self.budget.limit_bytes:
            return False
        count = max(1, unit.stop - unit.start)
        what = f"item {unit.items.numbers[0]}" if count == 1 and unit.items.numbers else f"a batch of {count} items"
        self._error = ProgramError(
            f"a feed's budget must hold what is worked at; {what} takes {_mebibytes(need)} in the stages "
            f"{self._names(unit)}, and the budget is {_mebibytes(self.budget.limit_bytes)}. Raise budget_bytes, or "
            f"make items or batches smaller."
        )
        self._for_output.notify_all()
        return True

    def _names(self, unit: FeedUnit) -> list[str]:
        return [stage.name for stage in self._stages[unit.at : max(unit.upto, unit.at + 1)]]

    def _made_room(self) -> None:
        self._for_work[self.kinds[0]].notify()
        self._for_room.notify_all()

    def _wake(self) -> None:
        for condition in self._for_work.values():
            condition.notify_all()

    # Without the lock

    def _fill(self, unit: FeedUnit) -> None:
        """Read a unit's items from the stream."""
        unit.reads_stream = False
        source, count = self._definition.source, unit.stop - unit.start
        found: list[tuple[int, Any]] = []
        try:
            if self._stream is None:
                assert not isinstance(source, ItemSource)
                self._stream = shuffled_stream(iter(source), self._order, unit.epoch)
                collections.deque(itertools.islice(self._stream, unit.start), maxlen=0)
            for each in itertools.islice(self._stream, count):
                found.append(each)
        except BaseException as error:
            unit.error = error
            if unit.is_whole:  # a batch is given whole or not at all
                found = []
        with self._lock:
            self._is_broken = unit.error is not None
            self._is_reading = False
            self._for_room.notify_all()
            unit.stop = unit.start + len(found)
            unit.items.places = list(range(unit.start, unit.stop))
            unit.items.numbers, unit.items.values = [each[0] for each in found], [each[1] for each in found]
            unit.ends_epoch = len(found) < count and unit.error is None
            self._place = unit.stop
            if unit.ends_epoch:
                self._stream, self._epoch, self._place = None, self._epoch + 1, 0
            self._wake()

    def _look_up(self, unit: FeedUnit) -> None:
        """Take from the cache what it has of a unit."""
        assert self._cache is not None
        hits = {number: found[0] for number in unit.items.numbers if (found := self._cache.get(number)) is not None}
        missing = [order for order, number in enumerate(unit.items.numbers) if number not in hits]
        if not hits or (missing and self._aligned > 1):
            return
        unit.hits = hits
        if missing:
            unit.items.places = [unit.items.places[order] for order in missing]
            unit.items.numbers = [unit.items.numbers[order] for order in missing]
        else:
            unit.items = ItemRun(unit.epoch, [], [], [], batch=unit.items.batch)
            self._merge_hits(unit)
            unit.at = self._cache_place

    def _keep(self, unit: FeedUnit) -> None:
        """Put into the cache what the stages before it gave, and what it had to the rest."""
        assert self._cache is not None
        for number, value in zip(unit.items.numbers, unit.items.values or (), strict=True):
            self._cache.put(number, value)
        if not unit.items.faults:
            kept, source = set(unit.items.numbers) | (unit.hits or {}).keys(), self._definition.source
            assert isinstance(source, ItemSource)
            for number in self._order.indices(unit.epoch, unit.start, unit.stop, length=len(source)):
                if number not in kept:
                    self._cache.put(number, DroppedItem)
        if unit.hits:
            self._merge_hits(unit)

    def _merge_hits(self, unit: FeedUnit) -> None:
        source, hits = self._definition.source, unit.hits or {}
        assert isinstance(source, ItemSource)
        own = dict(zip(unit.items.numbers, unit.items.values or (), strict=True)) | hits
        places, numbers, values = [], [], []
        all_numbers = self._order.indices(unit.epoch, unit.start, unit.stop, length=len(source))
        for place, number in enumerate(all_numbers, start=unit.start):
            if number in own and own[number] is not DroppedItem:
                places.append(place)
                numbers.append(number)
                values.append(own[number])
        unit.items.places, unit.items.numbers, unit.items.values = places, numbers, values
        unit.items.held_bytes = sum(map(item_bytes, values))
        unit.hits = None


def _mebibytes(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"
