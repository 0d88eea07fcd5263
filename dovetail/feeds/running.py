"""A feed that is read by workers: the same batches as the plain reader gives, sooner.

How many workers of which kind is a plan's business, and may change while it runs. Knows definitions and plans; where
things are decided is elsewhere.
"""

import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.feeds.assembly import FeedPosition, item_stages
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import DEFAULT_BUDGET_BYTES, Feed
from dovetail.feeds.flow import KINDS, REMOTE, FeedFlow
from dovetail.feeds.item_cache import ItemCache
from dovetail.feeds.keyed_draws import as_before, one_thread
from dovetail.feeds.plain_reader import PlainReader
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.feeds.sources import ItemSource
from dovetail.feeds.stage_chain import ItemRun, StageChain
from dovetail.feeds.travel import pack
from dovetail.feeds.workers import FeedWorkers
from dovetail.vocabulary import FeedPlan, ProgramError, StagePlan

HANG_SECONDS = 300.0
# A dataset in memory travels with the stages that read it, once for each worker. A larger one stays.
_MOST_SENT_BYTES = 64 << 20
# Of so many bytes allocators keep about this part: of a budget of 64 MiB 60 to 69 were held when it was all for items.
_KEPT_PART, _KEPT_FROM_BYTES = 8, 32 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """What a stage has done since its feed was opened: seconds at work, all workers together, items given, their bytes
    where they were counted, how many parts of an epoch wait for it, and the bytes held at it."""

    name: str
    worker: str
    workers: int
    busy_seconds: float
    cpu_seconds: float
    items: int
    bytes: int
    most_bytes: int
    waiting: int
    held_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedStats:
    """What a running feed has done: its stages, bytes held now and at most, batches given, and how long whoever asked
    for them has waited. Stages count what was done on this node; workers on other nodes are counted by themselves, with
    their seconds at work and the items of the source that they read. `notes` are sentences for the user."""

    stages: tuple[StageStats, ...]
    held_bytes: int
    most_held_bytes: int
    budget_bytes: int
    batches: int
    waited_seconds: float
    skipped: int
    notes: tuple[str, ...]
    remote_workers: int = 0
    remote_seconds: float = 0.0
    remote_items: int = 0

    def stage(self, name: str) -> StageStats:
        """The stage of this name."""
        return next(each for each in self.stages if each.name == name)


class RunningFeed:
    """Reads a feed with workers. Iterating gives one epoch, and the next time the next one; an iteration that was left
    off in the middle is not taken up again. For one thread, but for `resize` and `stats`.

    >>> from dovetail.feeds.definition import feed
    >>> definition = feed(range(6)).map(lambda number: number * 2).batch(3)
    >>> with RunningFeed(definition) as running:
    ...     running.resize("map", workers=3)
    ...     [batch.tolist() for batch in running]
    [[0, 2, 4], [6, 8, 10]]
    """

    def __init__(
        self,
        definition: Feed,
        *,
        plan: FeedPlan | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        hang_seconds: float = HANG_SECONDS,
        counts_cpu: bool = False,
        remote: RemoteCores | None = None,
    ) -> None:
        self.definition, self._budget_bytes = definition, budget_bytes
        self._inner = _RunningState(
            definition,
            _check_plan(definition, plan),
            budget_bytes=budget_bytes,
            hang_seconds=hang_seconds,
            counts_cpu=counts_cpu,
            remote=remote,
        )
        self._finalizer = weakref.finalize(self, self._inner.close)
        self._tell: Callable[[float], None] | None = None

    def __len__(self) -> int:
        return len(self.definition)

    def __iter__(self) -> Iterator[Any]:
        batches = self._inner.read_epoch()
        return self._keep_open(batches) if self._tell is None else self._report_consumption(batches, self._tell)

    def _keep_open(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same: whoever holds this iterator, if nothing else of the feed, reads it to its end."""
        yield from batches

    def _report_consumption(self, batches: Iterator[Any], tell: Callable[[float], None]) -> Iterator[Any]:
        for batch in batches:
            handed = time.monotonic()
            yield batch
            tell(time.monotonic() - handed)

    def __enter__(self) -> "RunningFeed":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def plan(self) -> FeedPlan:
        """How it runs now: what was asked for, as far as it can be."""
        return self._inner.plan

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know, in sentences."""
        return tuple(self._inner.notes)

    def resize(self, stage: str, *, workers: int | None = None, worker: str | None = None) -> None:
        """Give a stage more or fewer workers, or another kind of them, from now on. Nothing waits for it."""
        before = self._inner.asked.stage(stage)
        asked = dataclasses.replace(
            before,
            workers=before.workers if workers is None else workers,
            worker=before.worker if worker is None else worker,
        )
        stages = tuple(asked if each.name == stage else each for each in self._inner.asked.stages)
        self.follow(dataclasses.replace(self._inner.asked, stages=stages))

    def follow(self, plan: FeedPlan) -> None:
        """Run as another plan says from now on."""
        self._inner.follow(_check_plan(self.definition, plan))

    def tell(self, consumed: Callable[[float], None]) -> None:
        """Call this function in the thread that takes batches, whenever it asks for another, with how long it has had
        the last one. Holds for iterations that begin from now on."""
        self._tell = consumed

    def begin(self) -> None:
        """Begin to read where it stands, before somebody asks for a batch; a stream waits for its reader."""
        self._inner.begin()

    def rest(self) -> None:
        """Hold nothing until somebody asks for a batch: what was read ahead is dropped, and read again then. For the
        thread that takes batches."""
        self._inner.rest()

    def can_be_remote(self) -> bool:
        """Whether workers on other nodes could read it: all of it can travel, and none has failed to."""
        return self._inner.can_be_remote()

    def stats(self) -> FeedStats:
        """What it has done so far. May be called from any thread."""
        return self._inner.stats()

    def worker_pids(self) -> Sequence[int]:
        """The processes that work for it now."""
        return self._inner.worker_pids()

    def is_ready(self) -> bool:
        """Whether the next batch need not be waited for."""
        return self._inner.is_ready()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, after the last batch that it gave: valid for any number of workers, and for none."""
        return self._inner.at.state(self._inner.length())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand there; the next iteration goes on from it."""
        self._inner.move_to(FeedPosition.of_state(dict(state), self._inner.length()))

    def close(self) -> None:
        """End its workers. May be called twice."""
        self._finalizer()


class _RunningState:
    """What a running feed holds. Workers refer to this and not to the feed, so that one that is dropped is closed."""

    def __init__(
        self,
        definition: Feed,
        plan: FeedPlan,
        *,
        budget_bytes: int,
        hang_seconds: float,
        counts_cpu: bool,
        remote: RemoteCores | None,
    ) -> None:
        self.definition, self.asked, self.plan = definition, plan, plan
        self.at, self.notes = FeedPosition(), [""][:0]
        self.batches = 0
        self._budget_bytes = budget_bytes
        self._chain = StageChain(definition)
        self._cache = _cache_of(definition, budget_bytes)
        self._for_items = budget_bytes - sum(stage.memory_bytes for stage in definition.stages)
        self._budget = ByteBudget(limit_bytes=self._for_items)
        self._flow = FeedFlow(definition, budget=self._budget, cache=self._cache)
        self._workers = FeedWorkers(
            self._flow, self._chain, hang_seconds=hang_seconds, counts_cpu=counts_cpu, note=self.note, remote=remote
        )
        self._begun = self._running = self._closed = False
        self._probed = False
        self._packed: tuple[bytes, list[str]] | None = None
        self._plain: PlainReader | None = None

    def length(self) -> int | None:
        """How many items the source has, where that is known."""
        return len(self.definition.source) if isinstance(self.definition.source, ItemSource) else None

    def note(self, sentence: str) -> None:
        """Keep a sentence for the user, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def move_to(self, at: FeedPosition) -> None:
        """Be at a position; workers begin there with the next iteration."""
        self._running = self._running and not self._begun and at == self.at
        self.at, self._begun = at, False

    def begin(self) -> None:
        """Let workers read ahead of the first iteration."""
        if self._begun or self._running or self._closed or not isinstance(self.definition.source, ItemSource):
            return
        self._prepare(self.at)
        if self._plain is None:
            self._flow.start(self.at)
            self._running = True

    def rest(self) -> None:
        """Drop the batches that were read ahead, and read no more until one is asked for."""
        if self._running and self._plain is None and not self._closed:
            self._flow.rest()
            self._running = False

    def read_epoch(self) -> Iterator[Any]:
        """The batches of the epoch it stands in, or of the next where it has begun this one already."""
        if self._begun:
            if not self.at.ended:
                self._running = False  # what was read ahead of an iteration that was left off is dropped
            self.at = FeedPosition(epoch=self.at.epoch + 1)
        self._begun = True
        return self._read(self.at)

    def _read(self, begin: FeedPosition) -> Iterator[Any]:
        if self._closed:
            raise ProgramError("a feed must be open while it is read; this one was closed.")
        self._prepare(begin)
        if self._plain is not None:
            yield from self._read_plainly(self._plain)
            return
        self._flow.go_on(begin.epoch)
        while True:
            if not self._running:  # at the beginning, and after a rest
                self._flow.start(self.at)
                self._running = True
            output = self._flow.give()
            if output.fault is not None:
                raise ProgramError(output.fault.message)
            self.at = output.after
            if output.after.ended:
                return
            self.batches += 1
            value, output.value = output.value, None
            yield value

    def _read_plainly(self, reader: PlainReader) -> Iterator[Any]:
        reader.load_state_dict(self.at.state(self.length()))
        for value in reader:
            self.at = FeedPosition.of_state(reader.state_dict(), None)
            self.batches += 1
            yield value
        self.at = FeedPosition.of_state(reader.state_dict(), None).copy(ended=True)

    def _prepare(self, begin: FeedPosition) -> None:
        """Find out which stages draw and how large an item is, with one item; then start the workers."""
        if self._probed:
            return
        source = self.definition.source
        if isinstance(source, ItemSource) and len(source):
            place = min(begin.place, len(source) - 1)
            numbers = self.definition.order().indices(begin.epoch, place, place + 1, length=len(source))
            with as_before(), one_thread():
                work = self._chain.probe(ItemRun(begin.epoch, [place], numbers))
            if all(done.items for done in work):
                items = item_stages(self.definition)
                most = max(done.most_bytes for done in work[:items])
                self._budget.learn(items=1, held_bytes=most, most_bytes=most)
                batch = max([done.most_bytes for done in work[items:]], default=0)
                self._budget.batch_growth, self._budget.has_seen_batch = max(1.0, batch / max(1, most)), True
        self._refuse_small_budget()
        self._probed = True
        self.follow(self.asked)

    def _refuse_small_budget(self) -> None:
        batch = self.definition.batch_stage()
        size = batch.size if batch is not None else 1
        copies = 1 + self._budget.batch_growth if batch is not None else 1
        need = self._budget.expected_bytes(size, copies=copies)
        if need > self._budget.limit_bytes:
            what = f"a batch of {size} items, twice while it is put together" if batch is not None else "one item"
            raise ProgramError(
                f"a feed's budget must hold one item in each stage, and {what}: {need:,} bytes, as large as its first "
                f"item is; it is {self._budget.limit_bytes:,} bytes. Raise budget_bytes, or make items or batches "
                f"smaller."
            )

    def follow(self, plan: FeedPlan) -> None:
        """Run as this plan says, as far as it can be."""
        self.asked = plan
        if not self._probed or self._closed:
            self.plan = plan
            return
        kinds = [self._kind(place, stage.worker) for place, stage in enumerate(plan.stages)]
        if "consumer" in kinds:
            self._plain = PlainReader(self.definition)
            self._flow.set_workers(["thread"] * len(kinds), dict.fromkeys(KINDS, 0), 0)
            return
        stages = tuple(dataclasses.replace(stage, worker=kind) for stage, kind in zip(plan.stages, kinds, strict=True))
        self.plan = dataclasses.replace(plan, stages=stages)
        self._budget.limit_bytes = self._left_for_items(plan)
        workers = {kind: sum(s.workers for s in stages if s.worker == kind) for kind in ("thread", "process")}
        workers[REMOTE] = plan.remote_workers if plan.remote_workers and self.can_be_remote() else 0
        buffers = sum(stage.buffer_bytes for stage in stages) or self._budget.limit_bytes // 2
        self._flow.set_workers(kinds, workers, buffers)
        self._workers.start(self._packed[0] if self._packed is not None else None)

    def _left_for_items(self, plan: FeedPlan) -> int:
        """What items may hold beside the workers of a plan, and what allocators keep of what was given back. Half of it
        in any case: what is at work must fit."""
        kept = self._for_items // _KEPT_PART if self._for_items >= _KEPT_FROM_BYTES else 0
        return max(self._for_items - plan.worker_bytes - kept, self._for_items // 2)

    def _kind(self, place: int, asked: str) -> str:
        """The kind of worker that a stage can have: the one asked for, or another, with a note."""
        draws, name = bool(self._chain.drawing[place]), self._chain.stages[place].name
        if draws and place == 0 and not isinstance(self.definition.source, ItemSource):
            self.note(f"The source draws from global generators as it is iterated, so {_IN_CONSUMER}.")
            return "consumer"
        if asked == "thread" and not draws:
            return "thread"
        why = self._reason_to_stay(place)
        if not why:
            if asked == "thread":
                self.note(
                    f"Stage {name!r} draws from global generators, of which a process has one each, so it runs in "
                    f"processes. With a parameter rng it is given a generator of its own and runs in threads too."
                )
            return "process"
        if draws:
            self.note(f"Stage {name!r} draws from global generators and cannot travel ({why}), so {_IN_CONSUMER}.")
            return "consumer"
        self.note(f"Stage {name!r} cannot travel to a process, so it runs in threads: {why}.")
        return "thread"

    def can_be_remote(self) -> bool:
        """Whether workers on other nodes can read this feed: all of it must travel there, and be small enough."""
        if not self._workers.can_be_remote or not isinstance(self.definition.source, ItemSource):
            return False
        if any(self._reason_to_stay(place) for place in range(len(self._chain.stages))):
            return False
        assert self._packed is not None
        return len(self._packed[0]) <= _MOST_SENT_BYTES

    def _reason_to_stay(self, place: int) -> str:
        if self._packed is None:
            self._packed = pack(self._chain)
        return self._packed[1][place]

    def stats(self) -> FeedStats:
        """What the feed and each of its stages have done so far."""
        waiting, held = self._flow.waiting_units(), self._flow.held_bytes()
        stages = [
            StageStats(
                name=stage.name,
                worker=stage.worker,
                workers=stage.workers,
                busy_seconds=work.seconds,
                cpu_seconds=work.cpu_seconds,
                items=work.items,
                bytes=work.bytes,
                most_bytes=work.most_bytes,
                waiting=waiting[place],
                held_bytes=held[place],
            )
            for place, (stage, work) in enumerate(zip(self.plan.stages, self._flow.work, strict=True))
        ]
        kept = self._cache.memory_used if self._cache is not None else 0
        return FeedStats(
            stages=tuple(stages),
            held_bytes=self._budget.held_bytes + kept,
            most_held_bytes=self._budget.most_held_bytes + kept,
            budget_bytes=self._budget_bytes,
            batches=self.batches,
            waited_seconds=self._flow.waited_seconds,
            skipped=self.at.skipped,
            notes=tuple(self.notes),
            remote_workers=self._flow.present(REMOTE),
            remote_seconds=self._flow.remote_seconds,
            remote_items=self._flow.remote_items,
        )

    def is_ready(self) -> bool:
        """Whether workers have the next batch."""
        return self._plain is None and self._running and self._flow.is_ready()

    def worker_pids(self) -> Sequence[int]:
        """The processes that work for it now."""
        return sorted(self._workers.pids)

    def close(self) -> None:
        """End the workers; the feed cannot be read any more."""
        if self._closed:
            return
        self._closed = True
        self._flow.close()
        self._workers.close()
        if self._cache is not None:
            self._cache.close()


_IN_CONSUMER = "everything is read in the thread that asks for batches, without workers"


def _cache_of(definition: Feed, budget_bytes: int) -> ItemCache | None:
    stage = next((stage for stage in definition.stages if stage.operation == "cache"), None)
    if stage is None:
        return None
    if stage.memory_bytes >= budget_bytes:
        raise ProgramError(
            f"a feed's budget must be larger than what its cache keeps in memory, {stage.memory_bytes:,} bytes; it is "
            f"{budget_bytes:,} bytes. Raise budget_bytes, or give the cache disk_bytes instead."
        )
    return ItemCache(memory_bytes=stage.memory_bytes, disk_bytes=stage.disk_bytes)


def _check_plan(definition: Feed, plan: FeedPlan | None) -> FeedPlan:
    names = [stage.name for stage in definition.work_stages()]
    if plan is None:
        return FeedPlan(stages=tuple(StagePlan(name=name, worker="thread", workers=1) for name in names))
    if [stage.name for stage in plan.stages] != names:
        raise ProgramError(
            f"a feed's plan must be for its stages, {names}; this one is for {[stage.name for stage in plan.stages]}."
        )
    return plan
