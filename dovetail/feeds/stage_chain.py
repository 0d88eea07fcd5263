"""Neighbouring items through neighbouring stages: what every worker of a feed runs, be it a thread, a process, or the
thread that asks for batches.

What comes out depends on the definition, the epoch and the items' numbers only. Knows functions and items; knows
nothing of workers, queues or budgets, but for a function that it tells how many bytes it holds.
"""

import dataclasses
import functools
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from dovetail.feeds.collate import collate
from dovetail.feeds.definition import Feed, FeedStage, gives_rng
from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.keyed_draws import begin_trial, global_state, has_drawn, make_rng, may_draw, seed_global
from dovetail.feeds.keys import key, mix
from dovetail.feeds.sources import ItemSource
from dovetail.vocabulary import ProgramError

_ITEMWISE = ("read", "map", "filter")
_SHOWN = 120
_LIGHT_SECONDS, _WAITING_SECONDS = 2e-5, 1e-3
_MOST_AT_ONCE = 64
# Numbers, of which none is much larger than others; since integers can be, the largest counts as well. Whatever else
# may turn out larger than it was is looked at one by one, as a budget of bytes must have it.
_LIGHT_TYPES = (int, float, complex, numpy.number, numpy.bool_, numpy.datetime64)
_LIGHT_BYTES = sys.getsizeof(numpy.clongdouble())
# Of these one is as large as the next.
_EQUALLY_LARGE = {float, *(numpy.dtype(code).type for code in "?bhilqBHILQefdFD")}
_DROPPED = object()
"""What a filter makes of an item that it does not keep."""
Grow = Callable[[int, int], None]
"""Called with how many bytes are held so far by how many items, before the next is read. May wait, and may raise."""


class RunAbandoned(Exception):
    """Items that there is no room for now: their worker drops them, and they are read later."""


@dataclasses.dataclass(slots=True)
class ItemFault:
    """An item that a stage could not take: its place in the epoch, and what to tell the user."""

    place: int
    stage: str
    message: str


@dataclasses.dataclass(slots=True)
class ItemRun:
    """Some neighbouring items of an epoch, and what has become of them.

    `places` are where they stand in the epoch, `numbers` which items of the source they are. Once they are a batch,
    there is one value, and both lists hold the batch's number.
    """

    epoch: int
    places: Sequence[int]
    numbers: Sequence[int]
    values: list[Any] | None = None
    batch: int = 0
    faults: list[ItemFault] = dataclasses.field(default_factory=list)
    held_bytes: int = 0

    def as_tuple(self) -> tuple[Any, ...]:
        """Its fields, which are sent in half the time that it takes itself."""
        return tuple(getattr(self, name) for name in self.__slots__)


@dataclasses.dataclass(slots=True)
class StageWork:
    """What one stage did in a run: seconds at work, on a core if that was asked for, and the items that it gave with
    their bytes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    items: int = 0
    bytes: int = 0
    most_bytes: int = 0

    def as_tuple(self) -> tuple[Any, ...]:
        """Its fields, which are sent in half the time that it takes itself."""
        return tuple(getattr(self, name) for name in self.__slots__)


class StageChain:
    """The working stages of a definition, ready to be run. Can be pickled where its functions can.

    `drawing` says of each stage whether it draws from global generators: yes, no, or None where nobody knows yet.
    """

    def __init__(self, definition: Feed) -> None:
        self.stages = definition.work_stages()
        self.seed, self.skips = definition.seed, definition.skip > 0
        self.source = definition.source
        self._cache_place = definition.cache_place()
        self.is_light = False
        """Whether items have been small and quick of late: calling their functions is what takes long."""
        operations = [stage.operation for stage in self.stages]
        self._batch_place = operations.index("batch") if "batch" in operations else len(operations)
        others = (place for place, operation in enumerate(operations) if operation not in _ITEMWISE)
        self.item_stages = next(others, len(operations))
        """How many stages, from the first on, take items one by one."""
        self._rng = [gives_rng(stage) for stage in self.stages]
        self.drawing: list[bool | None] = [self._may_draw(stage) for stage in self.stages]

    def _may_draw(self, stage: FeedStage) -> bool | None:
        if stage.draws is not None:
            return stage.draws
        read = stage.operation == "read"
        if gives_rng(stage) or (stage.function is None and not read):
            return None  # it draws from what it is given, if at all
        code = getattr(self.source, "data", self.source) if read else stage.function
        return True if may_draw(code) else None

    def run(
        self,
        items: ItemRun,
        first: int,
        last: int,
        *,
        owns_generators: bool,
        grow: Grow | None = None,
        counts_cpu: bool = False,
    ) -> list[StageWork]:
        """Put items through the stages from `first` up to `last`; gives what each of these did.

        Where this thread `owns_generators`, what is drawn from the global ones is keyed. Items that are read here are
        first tried without seeding, which takes as long as many functions do; where the generators have moved, they are
        read once more. Values that are given may be changed by what is tried, so that for them all is seeded at once.
        """
        known = self.drawing[first:last]
        given = items.values is not None
        if not owns_generators or all(each is False for each in known):
            return self._run(items, first, last, seeded=False, grow=grow, counts_cpu=counts_cpu)
        if any(known) or given:
            return self._run(items, first, last, seeded=True, grow=grow, counts_cpu=counts_cpu)
        places, numbers = items.places, items.numbers
        begin_trial()
        work = self._run(items, first, last, seeded=False, grow=grow, counts_cpu=counts_cpu)
        if not has_drawn():
            return work
        self.drawing[first:last] = [True if each is None else each for each in known]
        items.places, items.numbers, items.values, items.faults = places, numbers, None, []
        return self._run(items, first, last, seeded=True, grow=grow, counts_cpu=counts_cpu)

    def probe(self, items: ItemRun) -> list[StageWork]:
        """Put items through all stages and find out which of them draw; for the only thread that draws."""
        work = []
        for place in range(len(self.stages)):
            stood = global_state()
            work += self._run(items, place, place + 1, seeded=False, grow=None, counts_cpu=True)
            if self.drawing[place] is None and global_state() != stood:
                self.drawing[place] = True
            if items.faults or not items.values:
                break
        return work + [StageWork() for _ in self.stages[len(work) :]]

    def _run(
        self, items: ItemRun, first: int, last: int, *, seeded: bool, grow: Grow | None, counts_cpu: bool
    ) -> list[StageWork]:
        work = [StageWork() for _ in range(first, last)]
        place = stop = first
        while place < last:
            stop = place + 1
            operation = self.stages[place].operation
            if operation in _ITEMWISE:
                while stop < last and self.stages[stop].operation in _ITEMWISE:
                    stop += 1
                asks = None if place > self._batch_place else grow  # of batches, all is counted in before
                self._run_each(items, place, stop, work[place - first : stop - first], seeded, asks, counts_cpu)
            else:
                apply = self._collate if operation == "batch" else self._run_groups
                self._time_stage(functools.partial(apply, items, place, seeded), items, work[place - first], counts_cpu)
            if items.faults and not self.skips:
                break
            place = stop
        items.held_bytes = work[stop - first - 1].bytes if work else sum(map(item_bytes, items.values or ()))
        return work

    def _time_stage(self, apply: Callable[[], None], items: ItemRun, work: StageWork, counts_cpu: bool) -> None:
        start, busy = time.perf_counter(), time.thread_time() if counts_cpu else 0.0
        apply()
        work.seconds += time.perf_counter() - start
        work.cpu_seconds += time.thread_time() - busy if counts_cpu else 0.0
        for value in items.values or ():
            _count(work, item_bytes(value))

    def _run_each(
        self,
        items: ItemRun,
        first: int,
        last: int,
        work: list[StageWork],
        seeded: bool,
        grow: Grow | None,
        counts_cpu: bool,
    ) -> None:
        """Item by item through stages that take one each; where items are light, stage by stage."""
        is_read = self.stages[first].operation == "read" and items.values is None
        may_try = is_read and not seeded and self.is_light and not any(self._rng[first:last])
        busy, count = time.thread_time(), len(items.numbers)  # of which a filter may leave few
        if not (may_try and self._columns(items, range(first, last), work, grow, counts_cpu)):
            self._run_rows(items, first, last, work, seeded, grow, counts_cpu)
        if is_read:
            self.is_light = self._seem_light(count, items.values or (), work, time.thread_time() - busy)

    def _columns(
        self, items: ItemRun, stages: range, work: list[StageWork], grow: Grow | None, counts_cpu: bool
    ) -> bool:
        """Many items at once through one stage after another. Gives False, with nothing done, where one raises: one by
        one it will be found which."""
        done = [StageWork() for _ in stages]
        places: list[int] = []
        numbers: list[int] = []
        values: list[Any] = []
        try:
            # Not all of them, for what stages give one another is held meanwhile.
            for start in range(0, len(items.numbers), _MOST_AT_ONCE):
                part = slice(start, start + _MOST_AT_ONCE)
                found = self._column(items.places[part], items.numbers[part], stages, done, counts_cpu)
                for all_of_them, each in zip((places, numbers, values), found, strict=True):
                    all_of_them += each
        except Exception:
            return False
        if not counts_cpu:
            _measure(done[-1], values)
        for own, spent in zip(work, done, strict=True):
            own.seconds, own.cpu_seconds, own.items = spent.seconds, spent.cpu_seconds, spent.items
            own.bytes, own.most_bytes = spent.bytes, spent.most_bytes
        items.places, items.numbers, items.values = places, numbers, values
        if grow is not None and values:
            grow(done[-1].bytes, len(values))
        return True

    def _column(
        self, places: Sequence[int], numbers: Sequence[int], stages: range, done: list[StageWork], counts_cpu: bool
    ) -> tuple[Sequence[int], Sequence[int], list[Any]]:
        values: list[Any] = []
        for place, work in zip(stages, done, strict=True):
            start, busy = time.perf_counter(), time.thread_time() if counts_cpu else 0.0
            function = self._function(place)
            if self.stages[place].operation == "read":
                values = _each(function, numbers)
            elif self.stages[place].operation == "map":
                values = _each(function, values)
            else:
                kept = _each(function, values)
                places, numbers, values = (list(itertools.compress(each, kept)) for each in (places, numbers, values))
            work.seconds += time.perf_counter() - start
            if counts_cpu:
                work.cpu_seconds += time.thread_time() - busy
                _measure(work, values)
            work.items += len(values)
        return places, numbers, values

    def _seem_light(self, count: int, values: Sequence[Any], work: list[StageWork], cpu_seconds: float) -> bool:
        """Whether so many items took so little of a core, and those that are left of them are so small, that looking
        at each would take longer. By the clock they may take longer, waiting for the interpreter's lock, but not as
        long as for a disk. Where none is left, they were as small as those before."""
        waited = sum(done.seconds for done in work) > _WAITING_SECONDS * count
        is_small = _are_light(values, work[-1].most_bytes) if values else self.is_light
        return cpu_seconds < _LIGHT_SECONDS * count and not waited and is_small

    def _run_rows(
        self,
        items: ItemRun,
        first: int,
        last: int,
        work: list[StageWork],
        seeded: bool,
        grow: Grow | None,
        counts_cpu: bool,
    ) -> None:
        steps = [(place - first, *self._step(place, items.epoch, seeded)) for place in range(first, last)]
        given = items.values
        items.values, places, numbers = [], [], []
        held, most, clock, cpu_clock = 0, 0, time.perf_counter, time.thread_time
        seconds, passed = [0.0] * len(steps), [0] * len(steps)
        for order, number in enumerate(items.numbers):
            value = None
            if given is not None:
                value, given[order] = given[order], None  # nobody else holds what is being worked at
            step = 0
            moment, busy = clock(), cpu_clock() if counts_cpu else 0.0
            try:
                for step, takes, function in steps:
                    if takes == "value":
                        value = function(value)
                    elif takes == "number":
                        value = function(number)
                    elif takes == "both":
                        value = function(number, value)
                    elif not function(number, value):
                        value = _DROPPED
                    now = clock()
                    seconds[step] += now - moment
                    moment = now
                    if counts_cpu:
                        busy = self._count_cpu(work[step], busy, value)
                    if value is _DROPPED:
                        break
                    passed[step] += 1
            except Exception as error:
                items.faults.append(self._fault(first + step, items.places[order], number, value, error))
                if not self.skips:
                    break
                continue
            if value is _DROPPED:
                continue
            items.values.append(value)
            places.append(items.places[order])
            numbers.append(number)
            size = item_bytes(value)
            held += size
            if size > most:
                most = size
            if grow is not None:
                grow(held, len(places))
        for done, spent, count in zip(work, seconds, passed, strict=True):
            done.seconds += spent
            done.items += count
        if not counts_cpu:
            work[-1].bytes += held
            work[-1].most_bytes = max(work[-1].most_bytes, most)
        items.places, items.numbers = places, numbers

    def _count_cpu(self, done: StageWork, busy: float, value: Any) -> float:
        """Count what a stage has taken of a core for an item since the clock stood at `busy`; gives where it stands."""
        now = time.thread_time()
        done.cpu_seconds += now - busy
        if value is not _DROPPED:
            size = item_bytes(value)
            done.bytes += size
            done.most_bytes = max(done.most_bytes, size)
        return now

    def _step(self, place: int, epoch: int, seeded: bool) -> tuple[str, Callable[..., Any]]:
        """What a stage takes of an item, and its function. Most take one thing, and are called without a wrapper."""
        stage, call = self.stages[place], self._call(place, epoch, seeded)
        is_keyed = self._rng[place] or (seeded and self.drawing[place] is not False)
        if stage.operation == "read" and not isinstance(self.source, ItemSource):
            return "value", _call_plainly  # a stream's items were read when they were admitted
        if stage.operation == "read":
            return (
                ("both", lambda number, value: call(number, number)) if is_keyed else ("number", self._function(place))
            )
        if stage.operation == "filter":
            return "keeps", call
        return ("both", call) if is_keyed else ("value", self._function(place))

    def _call(self, place: int, epoch: int, seeded: bool) -> Callable[[int, Any], Any]:
        """A stage's function with the random numbers of the item of this number."""
        function = self._function(place)
        base = self.draw_key(place, epoch)
        seeds = seeded and self.drawing[place] is not False
        if self._rng[place]:
            function = functools.partial(_call_with_rng, function)
        if not seeds and not self._rng[place]:
            return lambda number, value: function(value)

        def call(number: int, value: Any) -> Any:
            seed = mix(base, number)
            if seeds:
                seed_global(seed)
            return function(value, seed) if self._rng[place] else function(value)

        return call

    def _function(self, place: int) -> Callable[..., Any]:
        stage = self.stages[place]
        if stage.operation == "read":
            assert isinstance(self.source, ItemSource) or stage.function is None
            return self.source.reader() if isinstance(self.source, ItemSource) else _call_plainly
        return stage.function or collate

    def draw_key(self, place: int, epoch: int) -> int:
        """The key of a stage's draws in an epoch; before a cache they are the same in every epoch."""
        return key(self.seed, "stage", place, "every" if place < self._cache_place else epoch)

    def _run_groups(self, items: ItemRun, place: int, seeded: bool) -> None:
        stage, values = self.stages[place], items.values or []
        items.places, items.numbers = places, numbers = list(items.places), list(items.numbers)
        call = self._call(place, items.epoch, seeded)
        found: list[Any] = []
        start = 0
        while start < len(values):
            group = items.places[start] // stage.size
            stop = start
            while stop < len(values) and items.places[stop] // stage.size == group:
                stop += 1
            try:
                given = list(call(group, values[start:stop]))
                if len(given) != stop - start:
                    raise ProgramError(
                        f"a function of map_batches must give as many items as it is given; it was given "
                        f"{stop - start} and gave {len(given)}."
                    )
            except Exception as error:
                items.faults.append(self._fault(place, items.places[start], items.numbers[start], values[start], error))
                if not self.skips:
                    items.values, items.places, items.numbers = found, items.places[:start], items.numbers[:start]
                    return
                del places[start:stop], numbers[start:stop], values[start:stop]
                continue
            found += given
            start = stop
        items.values = found

    def _collate(self, items: ItemRun, place: int, seeded: bool) -> None:
        stage, values = self.stages[place], items.values or []
        last = items.places[-1] if items.places else 0
        items.values, items.places, items.numbers = [], [], []
        try:
            if stage.function is None:
                value = collate(values, where=f"batch {items.batch} of epoch {items.epoch}")
            else:
                value = self._call(place, items.epoch, seeded)(items.batch, values)
        except Exception as error:
            items.faults.append(self._fault(place, last, items.batch, values, error, what="batch"))
            return
        items.values, items.places, items.numbers = [value], [items.batch], [items.batch]

    def _fault(
        self, stage: int, place: int, number: int, value: Any, error: Exception, *, what: str = "item"
    ) -> ItemFault:
        name = self.stages[stage].name
        if any(self.stages[each].operation == "batch" for each in range(stage)):
            what = "batch"
        if self.stages[stage].operation == "read" and isinstance(error, IndexError):
            message = self._shrunk(number, error)
        elif isinstance(error, ProgramError) and self.stages[stage].operation in ("batch", "map_batches"):
            message = str(error)
        else:
            shown = f" ({value[:_SHOWN]!r})" if isinstance(value, str) else ""
            where = _source_line(error)
            message = (
                f"stage {name!r} must take every {what}; {what} {number}{shown} raised {type(error).__name__}: {error}"
                f"{where}. Mend the {what} or the function, or leave such items out with dt.feed(..., skip=...)."
            )
        return ItemFault(place=place, stage=name, message=message)

    def _shrunk(self, number: int, error: Exception) -> str:
        assert isinstance(self.source, ItemSource)
        return (
            f"a feed's source must keep the items that it had when it was opened; reading item {number} raised "
            f"IndexError: {error}, and it has {len(self.source)} now. Do not change it while it is read."
        )


def _call_with_rng(function: Callable[..., Any], value: Any, seed: int) -> Any:
    return function(value, rng=make_rng(seed))


def _call_plainly(value: Any) -> Any:
    return value


def _each(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """What the function makes of each. To `map` one that raises StopIteration is an end; it must be found instead."""
    found = list(map(function, values))
    if len(found) < len(values):
        raise ValueError("a function raised StopIteration")
    return found


def _are_light(values: Sequence[Any], most_bytes: int) -> bool:
    return most_bytes <= _LIGHT_BYTES and all(issubclass(kind, _LIGHT_TYPES) for kind in set(map(type, values)))


def _measure(work: StageWork, values: list[Any]) -> None:
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds < _EQUALLY_LARGE:
        most = sys.getsizeof(values[0])
        work.bytes += most * len(values)
    else:
        sizes = list(map(item_bytes, values))
        work.bytes += sum(sizes)
        most = max(sizes, default=0)
    work.most_bytes = max(work.most_bytes, most)


def _count(work: StageWork, size: int) -> None:
    work.items += 1
    work.bytes += size
    work.most_bytes = max(work.most_bytes, size)


def _source_line(error: Exception) -> str:
    """The line of the user's that raised, in words."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/dovetail/feeds/" not in frame.filename.replace("\\", "/")]
    return f" (line {own[-1].lineno} of {own[-1].filename.rpartition('/')[2]})" if own else ""
