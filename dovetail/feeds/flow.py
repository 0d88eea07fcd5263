"""Who works at what in a running feed: admission by bytes, and queues by kind of worker.

Stages of one kind of worker share its workers: whoever is free takes the oldest unit that waits for that kind and puts
it through all neighbouring stages of the kind at once. So a unit changes hands only where kinds change, no worker idles
because it belongs to another stage, and a stage changes its kind while units are under way.

Units are admitted in order and may end in any: results wait for their turn (`output_queue`). Every unit can be read
again from its numbers, so one that turns out to need more room than there is gives way to older ones and comes later.
Workers on other nodes are no stage's: they take units that nobody has begun, through all stages.
Thread-safe. Knows units and bytes; knows nothing of threads, processes and sockets.
"""

import heapq
import itertools
import threading
import time

from dovetail.feeds.assembly import FeedPosition, item_stages
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.cached_units import CachedUnits
from dovetail.feeds.definition import Feed
from dovetail.feeds.item_cache import ItemCache
from dovetail.feeds.output_queue import OutputQueue
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, RunAbandoned, StageWork
from dovetail.feeds.stream_units import StreamUnits
from dovetail.feeds.unit_cutting import UnitCutter
from dovetail.feeds.units import FeedOutput, FeedUnit
from dovetail.vocabulary import ProgramError
from dovetail.vocabulary.units import show_some

_MOST_UNITS = 256
# A unit of light items that takes longer, or longer for each item, has met one that is not light.
_LIGHT_SECONDS, _LIGHT_ITEM_SECONDS = 0.05, 4e-5
# After so long it is seen whether the thread that reads alone waited. Where it did so many times in a row, several read
# so many units.
_ALONE_SECONDS, _MOST_WAITS, _SEVERAL_UNITS = 0.02, 3, 1000
REMOTE = "remote"
"""Workers on other nodes: they take what nobody has begun, from reading to the end, and no stage is theirs alone."""
KINDS = ("thread", "process", REMOTE)


class FeedFlow:
    """The units of one running feed on their way through its stages: which waits, which is worked at, which is done."""

    def __init__(self, definition: Feed, *, budget: ByteBudget, cache: ItemCache | None) -> None:
        self._definition, self.budget = definition, budget
        self._stages = definition.work_stages()
        self._item_stages, self._batch = item_stages(definition), definition.batch_stage()
        self._cutter = UnitCutter(definition, budget)
        self._outputs = OutputQueue(definition, budget=budget, cutter=self._cutter)
        self._stream = StreamUnits(definition)
        self._cache = CachedUnits(cache, self._cutter, definition.cache_place()) if cache is not None else None
        self.kinds = ["thread"] * len(self._stages)
        self.workers = dict.fromkeys(KINDS, 0)
        """How many workers of each kind there should be."""
        self._present = dict.fromkeys(KINDS, 0)
        self.buffer_bytes = 0
        self.work = [StageWork() for _ in self._stages]
        """What workers on this node did."""
        self.remote_seconds, self.remote_items = 0.0, 0
        """How long workers on other nodes were at work, by their clock, and on how many items of the source."""
        self.waited_seconds, self.overdrawn_bytes = 0.0, 0
        self._lock = threading.Lock()
        self._for_work = {kind: threading.Condition(self._lock) for kind in self.workers}
        self._for_output, self._for_room = threading.Condition(self._lock), threading.Condition(self._lock)
        self._closed = self._started = False
        self._error: BaseException | None = None
        self._generation = 0
        self._running: set[FeedUnit] = set()
        self._is_reading = False
        self._is_light, self._waits, self._several_for = False, 0, 0
        self._alone_seconds = self._alone_busy = 0.0
        self._reset(FeedPosition())

    def _reset(self, begin: FeedPosition) -> None:
        self._ready: dict[str, list[FeedUnit]] = {kind: [] for kind in self.workers}
        self._again: list[FeedUnit] = []
        self._cutter.begin(begin)
        self._outputs.begin(begin)
        self._stream.begin()
        self._open_epoch = begin.epoch
        self._is_broken = False

    # What the consumer calls

    def start(self, begin: FeedPosition) -> None:
        """Begin to read from a position on; whatever else is under way is dropped."""
        with self._lock:
            self._drop(begin)
            self._started = True
            self._wake()

    def rest(self) -> None:
        """Drop whatever is under way, and admit nothing until it is started again."""
        with self._lock:
            self._started = False
            self._drop(FeedPosition())

    def go_on(self, epoch: int) -> None:
        """Let a stream begin this epoch: it is not read ahead of the consumer, whose it may be to change it."""
        with self._lock:
            self._open_epoch = max(self._open_epoch, epoch)
            self._wake()

    def give(self) -> FeedOutput:
        """Wait for the next thing in order. Raises what a worker raised."""
        with self._lock:
            start = time.perf_counter()
            while (found := self._outputs.first) is None:
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise ProgramError("a feed must be open while it is read; this one was closed.")
                self._for_output.wait()
            self.waited_seconds += time.perf_counter() - start
            if found.error is not None:
                raise found.error
            if found.fault is None:
                self._outputs.give_first()
                self._wake_for_room()
            return found

    def is_ready(self) -> bool:
        """Whether the next thing in order is there, and can be given."""
        with self._lock:
            first = self._outputs.first
            return self._error is None and first is not None and first.error is None and first.fault is None

    def set_workers(self, kinds: list[str], workers: dict[str, int], buffer_bytes: int) -> None:
        """Say which kind of worker each stage has from now on, and how many there are of each."""
        with self._lock:
            self.kinds, self.workers, self.buffer_bytes = kinds, workers, buffer_bytes
            self._is_light, self._waits, self._several_for = False, 0, 0
            self._alone_seconds = self._alone_busy = 0.0
            waiting = [unit for each in self._ready.values() for unit in each]
            self._ready = {kind: [] for kind in self.workers}
            for unit in waiting:
                heapq.heappush(self._ready[kinds[unit.at]], unit)
            self._wake()

    def claim_missing(self, kind: str) -> int:
        """How many workers of a kind are still to be started; they count from now on."""
        with self._lock:
            count = max(0, self.workers[kind] - self._present[kind])
            self._present[kind] += count
            return count

    def leave(self, kind: str) -> None:
        """A worker of this kind has ended, and there is none in its place."""
        with self._lock:
            self._present[kind] -= 1
            self.workers[kind] = min(self.workers[kind], self._present[kind])

    def present(self, kind: str) -> int:
        """How many workers of a kind there are."""
        return self._present[kind]

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

    def waiting_units(self) -> list[int]:
        """How many units wait for each stage."""
        with self._lock:
            found = [0] * len(self._stages)
            for unit in (unit for each in self._ready.values() for unit in each):
                found[unit.at] += 1
            return found

    def held_bytes(self) -> list[int]:
        """How many bytes are held behind each stage: by units in work at it, and behind the last by what waits for its
        turn."""
        with self._lock:
            found = [0] * len(self._stages)
            for unit in self._running:
                found[min(unit.at, len(found) - 1)] += unit.charged_bytes
            for unit in (unit for each in self._ready.values() for unit in each):
                found[unit.at - 1] += unit.charged_bytes
            found[-1] += self._outputs.waiting_bytes + self._outputs.unfinished_bytes
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
                self._read_stream(unit)
            if self._cache is not None and unit.at == 0 and unit.output is None:
                self._cache.look_up(unit)
            with self._lock:
                if unit.at and unit.alone_until:  # what follows the cache is not reading
                    unit.alone_until = 0.0
                    self._call_worker(self.kinds[0])
                if unit.at >= unit.end:  # all of it was in the cache
                    self._running.discard(unit)
                    self._settle(unit)
                elif self.kinds[unit.at] != kind and unit.at:  # all that this kind would have done was there
                    self._running.discard(unit)
                    self._push(unit)
                else:
                    unit.upto = self._segment_end(unit, kind)
                    return unit

    def finish(
        self,
        unit: FeedUnit,
        items: ItemRun,
        work: list[StageWork],
        *,
        is_light: bool | None = None,
        seconds: float = 0.0,
        busy_seconds: float = 0.0,
    ) -> None:
        """A worker has put a unit through the stages that it was given it for. A thread says whether its items were
        light, how long it was at them, and for how much of that it computed."""
        unit.items = items
        if self._cache is not None and unit.at < unit.upto == self._cache.place:
            self._cache.keep(unit)
        with self._lock:
            self._count(unit, work)
            if unit.at == 0 and is_light is not None:
                self._learn_lightness(is_light, seconds, busy_seconds, alone=unit.alone_until > 0)
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
            self._wake_for_room()

    def grow(self, unit: FeedUnit, held_bytes: int, items: int) -> int:
        """Ask for room for a unit that holds so much; gives how much it may hold before it must ask again. Raises
        `RunAbandoned` where it must give way to older ones."""
        if self._need(unit, held_bytes) <= unit.charged_bytes:
            return int((unit.charged_bytes - 2 * self.budget.most_item_bytes) / unit.copies)
        with self._lock:
            self.budget.learn(items=items, held_bytes=held_bytes, most_bytes=held_bytes // max(1, items))
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
                self._wake_for_room()

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
            numbers = list(map(str, unit.items.numbers))
            places = f"item{'s' if len(numbers) > 1 else ''} {show_some(numbers, most=8)}"
            self._error = ProgramError(
                f"a feed's worker process must survive its items; {places} of epoch {unit.epoch} ended it "
                f"{unit.attempts} times ({why}) in the stages {self._names(unit)}. Read them in a process of yours to "
                f"see why."
            )
            self._for_output.notify_all()

    # With the lock held

    def _drop(self, begin: FeedPosition) -> None:
        held = self._outputs.waiting_bytes + self._outputs.unfinished_bytes
        held += sum(unit.charged_bytes for queue in self._ready.values() for unit in queue)
        self.budget.hold(-held)
        while self._is_reading:
            self._for_room.wait(0.05)
        self._generation += 1
        self._reset(begin)

    def _take(self, kind: str, wait: bool) -> FeedUnit | None:
        while True:
            if self._closed:
                return None
            if self._present[kind] > self.workers[kind]:
                if not wait:  # it ends when it is done with what was sent ahead, which else never runs out
                    return None
                self._present[kind] -= 1
                self._call_worker(kind)  # for what this one was woken for
                return None
            unit = heapq.heappop(self._ready[kind]) if self._ready[kind] else self._admit(kind)
            if unit is not None:
                self._running.add(unit)
                unit.is_remote = kind == REMOTE
                reads_alone = self._is_light and kind == "thread" and unit.at == 0
                unit.alone_until = self._alone_until(unit) if reads_alone else 0.0
                if self._ready[kind] or kind in (self.kinds[0], REMOTE):
                    self._call_worker(kind)
                return unit
            if not wait:
                return None
            self._for_work[kind].wait(2 * _LIGHT_SECONDS if self._is_light and kind == "thread" else None)

    def _admit(self, kind: str) -> FeedUnit | None:
        if kind not in (self.kinds[0], REMOTE) or not self._started or self._is_reading or self._is_broken:
            return None
        if self._error is not None or (kind == "thread" and self._one_reads()):
            return None
        if self._again:
            return heapq.heappop(self._again) if self._has_room_for(self._again[0]) else None
        unit = self._next_unit()
        if unit is None or not self._has_room_for(unit):
            # Some items of it may fit, where it must not wait for anything.
            unit = self._next_unit(is_cautious=True) if unit is not None and self._is_alone(unit) else None
            if unit is None or (not self._has_room_for(unit) and not self._goes_beyond(unit)):
                return None
        self._cutter.step_on(unit)
        self._is_reading = unit.reads_stream
        return unit

    def _next_unit(self, *, is_cautious: bool = False) -> FeedUnit | None:
        if self._cutter.epoch > self._open_epoch and not isinstance(self._definition.source, ItemSource):
            return None
        unit = self._cutter.next_unit(workers=sum(self.workers.values()), is_cautious=is_cautious)
        unit.generation = self._generation
        return unit

    def _has_room_for(self, unit: FeedUnit) -> bool:
        """Whether a unit can begin; then it is charged what it will need."""
        charge = self.budget.expected_bytes(unit.stop - unit.start, copies=unit.copies)
        fits = self.budget.fits(charge)
        ahead = len(self._running) + len(self._outputs) + sum(map(len, self._ready.values()))
        if ahead and not self._cutter.knows_sizes():
            return False  # one at a time, until it is known how large they are
        if unit.number == self._outputs.next_number:  # whatever waits for this one gives way
            while not fits and self._evict():
                fits = self.budget.fits(charge)
        else:
            is_far = ahead + self._outputs.waiting_units >= _MOST_UNITS
            fits = fits and not is_far and self._outputs.waiting_bytes <= self.buffer_bytes
        if fits or (unit in self._again and self._is_alone(unit) and self._goes_beyond(unit)):
            unit.charged_bytes = 0
            self._recharge(unit, charge)
            return True
        return False

    def _is_alone(self, unit: FeedUnit) -> bool:
        """Whether nothing is under way that a unit could wait for."""
        is_next = unit.number == self._outputs.next_number and not self._outputs
        return is_next and not self._running and not any(self._ready.values())

    def _goes_beyond(self, unit: FeedUnit) -> bool:
        """Whether a unit may begin though what it is thought to need is not there: it may turn out smaller, unless it
        is thought to need more than all."""
        charge = self.budget.expected_bytes(unit.stop - unit.start, copies=unit.copies)
        return not self._is_too_large(unit, charge)

    def _need(self, unit: FeedUnit, held_bytes: int) -> int:
        """What a unit that holds so much must be charged: one more item may be as large as two have been."""
        return int(unit.copies * held_bytes) + 2 * self.budget.most_item_bytes

    def _segment_end(self, unit: FeedUnit, kind: str) -> int:
        """Before which stage a worker of this kind stops."""
        stop = unit.at + 1
        kinds = [kind] * len(self.kinds) if kind == REMOTE else self.kinds
        while stop < unit.end and kinds[stop] == kind and not (self._cache and stop == self._cache.place):
            stop += 1
        return stop

    def _push(self, unit: FeedUnit) -> None:
        kind = self.kinds[unit.at]
        heapq.heappush(self._ready[kind], unit)
        self._call_worker(kind)

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
        if unit.is_remote:  # what cores elsewhere take says nothing of those here
            self.remote_seconds += sum(done.seconds for done in work)
            self.remote_items += unit.stop - unit.start
            self._learn_sizes(unit, work)
            return
        for place, done in enumerate(work, start=unit.at):
            total = self.work[place]
            total.seconds += done.seconds
            total.cpu_seconds += done.cpu_seconds
            total.items += done.items
            total.bytes += done.bytes
            total.most_bytes = max(total.most_bytes, done.most_bytes)
            if unit.stop > unit.start:
                self._cutter.learn(place, done.seconds / (unit.stop - unit.start))
        self._learn_sizes(unit, work)

    def _learn_sizes(self, unit: FeedUnit, work: list[StageWork]) -> None:
        """Learn how large items are, and how much larger their batches."""
        own = work[: max(0, self._item_stages - unit.at)]
        count = unit.stop - unit.start
        if own and count:
            held, most = max(done.bytes for done in own), max(done.most_bytes for done in own)
            self.budget.learn(items=count, held_bytes=held, most_bytes=most)
        if unit.at + len(work) > self._item_stages and unit.items.held_bytes and self._batch is not None:
            before = max([done.bytes for done in own], default=0) or unit.charged_bytes / unit.copies
            self.budget.batch_growth = max(self.budget.batch_growth, unit.items.held_bytes / max(1, before))
            self.budget.has_seen_batch = True

    def _settle(self, unit: FeedUnit) -> None:
        """A unit has been through all its stages."""
        for batch in self._outputs.settle(unit):
            batch.generation = self._generation
            self._push(batch)
        self._for_output.notify()

    def _is_oldest(self, unit: FeedUnit) -> bool:
        waiting = (each for queue in (*self._ready.values(), self._again) for each in queue)
        return not any(other < unit for other in itertools.chain(self._running, waiting))

    def _evict(self) -> bool:
        """Drop the youngest unit that waits for its turn or for a worker, to be read again; whether there was one."""
        if not isinstance(self._definition.source, ItemSource):
            return False
        # The worker that these wait for may be the one that waits for their room.
        waiting = [unit for each in self._ready.values() for unit in each if unit.output is None]
        unit = max(waiting, key=lambda each: each.number, default=None)
        if unit is None or unit.number <= max(self._outputs.next_number, self._outputs.youngest):
            unit = self._outputs.take_back()
        else:
            ready = self._ready[self.kinds[unit.at]]
            ready.remove(unit)
            heapq.heapify(ready)
        if unit is not None:
            self._put_off(unit)
        return unit is not None

    def _put_off(self, unit: FeedUnit) -> None:
        self._recharge(unit, 0)
        self._cutter.renew(unit)
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
        need += self._outputs.unfinished_bytes  # of the same batch
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
        last = unit.upto if unit.upto > unit.at else unit.end
        return [stage.name for stage in self._stages[unit.at : last]]

    def _learn_lightness(self, is_light: bool, seconds: float, busy_seconds: float, *, alone: bool) -> None:
        """Let one thread at a time read items that are light: what they take is the interpreter's work, for whose lock
        several would wait by turns. Where one that is alone waits all the same, for a disk or for the consumer, several
        read for a while."""
        if self._several_for:
            self._several_for -= 1
        elif alone:
            self._alone_seconds += seconds
            self._alone_busy += busy_seconds
            if self._alone_seconds > _ALONE_SECONDS:
                self._waits = self._waits + 1 if self._alone_seconds > 2 * self._alone_busy else 0
                self._alone_seconds = self._alone_busy = 0.0
            if self._waits == _MOST_WAITS:
                self._waits, self._several_for = 0, _SEVERAL_UNITS
        before, self._is_light = self._is_light, is_light and not self._several_for
        if before != self._is_light:
            self._for_work["thread"].notify_all()  # who waits for this to change, or has to look from now on

    def _alone_until(self, unit: FeedUnit) -> float:
        return time.monotonic() + max(_LIGHT_SECONDS, _LIGHT_ITEM_SECONDS * (unit.stop - unit.start))

    def _one_reads(self) -> bool:
        """Whether one more thread that reads would only wait for the one that does, which is not held up itself."""
        return self._is_light and max((unit.alone_until for unit in self._running), default=0.0) > time.monotonic()

    def _call_worker(self, kind: str) -> None:
        if kind != "thread" or self._ready[kind] or not self._one_reads():
            self._for_work[kind].notify()

    def _wake_for_room(self) -> None:
        self._call_worker(self.kinds[0])
        if self._present[REMOTE]:
            self._for_work[REMOTE].notify()
        self._for_room.notify_all()

    def _wake(self) -> None:
        for condition in self._for_work.values():
            condition.notify_all()

    # Without the lock

    def _read_stream(self, unit: FeedUnit) -> None:
        """Read a unit's items from the stream; nobody else is let in meanwhile."""
        self._stream.fill(unit)
        with self._lock:
            self._is_broken = unit.error is not None
            self._is_reading = False
            self._for_room.notify_all()
            self._cutter.end_stream_unit(unit)
            self._wake()


def _mebibytes(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"
