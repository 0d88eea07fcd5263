"""A feed inside a worker: measured, planned, opened, and followed while it runs.

`feeds` knows how to read and to resize, `planning.feeds` what would be best; here one is told what the other says.
Looks are taken in the thread that takes batches, between two of them, so that nothing here needs a lock. Whose feeds
they are is for `gang_feeds` to know.
"""

import contextlib
import ctypes
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dovetail.engines.remote_watch import RemoteWatch
from dovetail.feeds.definition import Feed
from dovetail.feeds.loader_feed import RunningLoader, explain_refusal
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.feeds.running import FeedStats, RunningFeed
from dovetail.planning.feeds import StageObservation, decide, plan_feed, predict_feed
from dovetail.planning.feeds.drift import LEAST_ITEMS
from dovetail.planning.feeds.feed_model import FeedModel, by_stage, model_of
from dovetail.planning.feeds.resizing import ResizeJudge
from dovetail.profile.feed_stages import measure_stages
from dovetail.vocabulary import FeedPlan, RemoteProfile, StagePlan, StageProfile
from dovetail.vocabulary.feeds import FeedConsumer, feed_bytes, held_bytes
from dovetail.vocabulary.units import show_rate

# Short enough to follow a disk that slows down, and long enough that rates mean something.
LOOK_SECONDS = 1.0
# A consumer that waits for less than this share of its time is served.
SERVED = 0.03
# Of one that waits for less than this nothing is won by trials.
STARVED = 0.1
# A feed that gives just as much as is taken makes its consumer wait for each slow item: some more is aimed at.
HEADROOM = 1.25
# What a resize takes of the cores: a process imports what its functions need, a thread hardly anything.
SWITCH_SECONDS = {"thread": 0.01, "process": 1.0}
# A feed whose items take less than this in all their stages is not followed.
SHORT_SECONDS = 5e-5
# However long a feed has run, it is expected to run for as long again, and for this long at least.
LEAST_HORIZON_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedChange:
    """One stage of a running feed that was resized."""

    stage: str
    before: str
    after: str
    reason: str
    rate: float


OTHER_NODES = "other nodes"
"""The name that workers on other nodes have beside stages, where they are reported."""
_M_MMAP_THRESHOLD = -3
Report = Callable[[FeedChange], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FeedRoom:
    """What a feed may take of the cores and of the memory.

    >>> FeedRoom(cores=4, budget_bytes=1000).share(2)
    FeedRoom(cores=2.0, budget_bytes=500)
    """

    cores: float
    budget_bytes: int

    @property
    def held_bytes(self) -> int:
        """The bytes that a feed may hold in items and batches, of all that it is given."""
        return held_bytes(self.budget_bytes)

    def share(self, parts: int) -> "FeedRoom":
        """What is left for one of so many feeds."""
        return FeedRoom(cores=self.cores / parts, budget_bytes=self.budget_bytes // parts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoad:
    """What a training keeps busy that takes a feed's batches: with each of them it computes for so long where it need
    not wait (0: not known), with so many threads on the feed's cores, and for this share of that time it holds the lock
    of this process's interpreter.

    >>> TrainingLoad(batch_seconds=0.25, threads=2, lock_share=1.0).consumer
    FeedConsumer(per_second=4.0, cpu_seconds=0.5, lock_seconds=0.25)
    """

    batch_seconds: float = 0.0
    threads: float = 0.0
    lock_share: float = 0.0

    @property
    def consumer(self) -> FeedConsumer:
        """This load as planners of feeds know it."""
        seconds = self.batch_seconds
        return FeedConsumer(
            per_second=1 / seconds if seconds else None,
            cpu_seconds=self.threads * seconds,
            lock_seconds=self.lock_share * seconds,
        )

    def plan(self, profiles: Sequence[StageProfile], room: FeedRoom, *, headroom: float = 1.0) -> FeedPlan:
        """The best plan for it, with some more than it takes. Of a training that is not known yet it is assumed that
        it computes for as long as the cores take to read: where it is faster or slower, the lock matters less."""
        consumer = self.consumer.hurried(headroom)
        if not self.batch_seconds:
            read = FeedModel(profiles=tuple(next(iter(kinds.values())) for kinds in by_stage(profiles).values()))
            consumer = FeedConsumer(lock_seconds=self.lock_share * read.cpu_seconds / room.cores)
        return plan_feed(profiles, cores=room.cores, budget_bytes=room.held_bytes, consumer=consumer)

    def predict(self, profiles: Sequence[StageProfile], room: FeedRoom) -> float:
        """The batches per second that it takes of a feed with the best plan."""
        plan = self.plan(profiles, room, headroom=HEADROOM)
        return predict_feed(profiles, plan, cores=room.cores, consumer=self.consumer)[0]


NO_LOAD = TrainingLoad()
"""Nothing is known of who takes batches."""


class WatchedFeed:
    """A running feed, or a loader that a feed's workers read, followed and resized while a training takes its batches.

    It is told by whoever takes them how long each was had, and looks in that thread, between two of them.
    """

    def __init__(
        self,
        running: RunningFeed | RunningLoader,
        *,
        profiles: tuple[StageProfile, ...],
        plan: FeedPlan,
        room: FeedRoom,
        load: TrainingLoad = NO_LOAD,
        report: Report = lambda change: None,
        watches: bool = True,
        remote: RemoteCores | None = None,
    ) -> None:
        self._remote = RemoteWatch(remote) if remote is not None else None
        self.profiles, self.plan, self.room = profiles, plan, room
        self.running = running
        """What a training is given as its batches."""
        self._report, self._load = report, load
        self._began = self._looked = time.monotonic()
        self._batches, self._consuming_seconds = 0, 0.0  # since the last look
        self._seen = self._observe()
        self._judge = ResizeJudge()
        self._warn: Callable[[str], None] = lambda sentence: None
        self._told = 0  # how many of its notes
        if watches:
            running.tell(self._count_batch)

    def listen(self, warn: Callable[[str], None]) -> None:
        """Tell `warn` what users should know of this feed, once each, as it comes up."""
        self._warn = warn
        self._tell_notes()

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.running)

    def stats(self) -> FeedStats:
        """What its stages have done since it was opened, and hold now."""
        return self.running.stats()

    def predicted_per_second(self) -> float:
        """The batches per second that its workers should give, as its stages are now, to a consumer that takes all."""
        return predict_feed(self.profiles, self.plan, cores=self.room.cores)[0]

    def close(self) -> None:
        """End the feed's workers, and tell the notes that are left."""
        self.running.close()
        self._tell_notes()

    def _tell_notes(self) -> None:
        notes = self.running.notes[self._told :]
        self._told += len(notes)
        for sentence in notes:
            self._warn(sentence)

    def _count_batch(self, seconds: float) -> None:
        self._batches += 1
        self._consuming_seconds += seconds
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._look(now)

    def _look(self, now: float) -> None:
        """See what the stages did since the last look, and resize where that is worth it."""
        self._tell_notes()
        seen = self._observe()
        observations = [_since(self._seen[name], each) for name, each in seen.items()]
        if max(each.items for each in observations) < LEAST_ITEMS:
            return  # a loader's items are whole batches, of which there may be few in a second
        since, seconds, batches, consuming = self._looked, now - self._looked, self._batches, self._consuming_seconds
        self._looked, self._batches, self._consuming_seconds, self._seen = now, 0, 0.0, seen
        rate = batches / seconds
        may_try = self._judge.may_try(rate, now_seconds=now)
        if consuming > (1 - SERVED) * seconds:
            self._judge.settle(rate, since_seconds=since)
            return
        self._learn_kinds()
        if before := self._judge.judge(rate, since_seconds=since, now_seconds=now):
            self._resize(
                before, f"{show_rate(rate)} came of it, too little of what was expected: taken back", rate=rate
            )
            return
        remote = self._look_around(now, seconds)
        now_taking = dataclasses.replace(self._load, batch_seconds=consuming / batches)
        found = decide(
            self.profiles,
            self.plan,
            observations,
            seconds=seconds,
            measured_per_second=rate,
            cores=self.room.cores,
            budget_bytes=self.room.held_bytes,
            consumer=now_taking.consumer.hurried(HEADROOM),
            horizon_seconds=max(LEAST_HORIZON_SECONDS, now - self._began),
            switch_seconds=_switch_seconds(self.plan),
            remote=remote,
            may_try=may_try and consuming < (1 - STARVED) * seconds,
        )
        self.profiles = found.profiles
        if found.reason and self._judge.may_resize(rate, now_seconds=now):
            if found.plan.remote_workers == self.plan.remote_workers:  # cores of other nodes come when they come
                shows = now + _switch_seconds(self.plan, found.plan)
                self._judge.begin(
                    self.plan,
                    rate=rate,
                    expected=found.expected_per_second,
                    from_seconds=shows,
                    is_trial=found.is_trial,
                )
            self._resize(found.plan, found.reason, rate=rate)

    def _learn_kinds(self) -> None:
        """Go by the kinds of workers that stages really have: one that cannot travel has threads, whatever was planned,
        and is not asked to travel again."""
        asked, self.plan = self.plan, self.running.plan
        given = {stage.name: stage.worker for stage in self.plan.stages}
        refused = {(stage.name, stage.worker) for stage in asked.stages if given[stage.name] != stage.worker}
        kept = tuple(each for each in self.profiles if (each.name, each.worker) not in refused)
        if {each.name for each in kept} == given.keys():
            self.profiles = kept

    def _look_around(self, now: float, seconds: float) -> RemoteProfile | None:
        """The cores of other nodes that it has or could have, and the link to them."""
        if self._remote is None:
            return None
        stats = self.running.stats()
        if stats.remote_workers < self.plan.remote_workers:  # some were taken back
            self.plan = dataclasses.replace(self.plan, remote_workers=stats.remote_workers)
        visits = model_of(self.profiles, self.plan.stages).visits[0]
        found = self._remote.look(now, stats, seconds=seconds, visits=visits)
        # Last, for it is found out by pickling the stages, once.
        can_be = found is not None and isinstance(self.running, RunningFeed) and self.running.can_be_remote()
        return found if can_be else None

    def _resize(self, plan: FeedPlan, reason: str, *, rate: float) -> None:
        self.running.follow(plan)
        for before, after in zip(self.plan.stages, plan.stages, strict=True):
            if (before.worker, before.workers) != (after.worker, after.workers):
                change = FeedChange(
                    stage=after.name, before=show_workers(before), after=show_workers(after), reason=reason, rate=rate
                )
                self._report(change)
        if plan.remote_workers != self.plan.remote_workers:
            was, will_be = (f"{each.remote_workers} cores" for each in (self.plan, plan))
            self._report(FeedChange(stage=OTHER_NODES, before=was, after=will_be, reason=reason, rate=rate))
        self.plan = plan

    def _observe(self) -> dict[str, StageObservation]:
        """What each stage has done since the feed was opened."""
        return {
            each.name: StageObservation(
                name=each.name,
                items=each.items,
                busy_seconds=each.busy_seconds,
                cpu_seconds=each.cpu_seconds,
                most_bytes=each.most_bytes,
            )
            for each in self.running.stats().stages
        }


def show_workers(stage: StagePlan) -> str:
    """A stage's workers.

    >>> show_workers(StagePlan(name="decode", worker="process", workers=2))
    '2 processes'
    """
    plural = {"thread": "threads", "process": "processes"}[stage.worker]
    return f"{stage.workers} {stage.worker if stage.workers == 1 else plural}"


def _switch_seconds(*plans: FeedPlan) -> float:
    """How long it takes until workers of these plans have started."""
    return max(SWITCH_SECONDS[stage.worker] for plan in plans for stage in plan.stages)


def _since(before: StageObservation, now: StageObservation) -> StageObservation:
    return dataclasses.replace(
        now,
        items=now.items - before.items,
        busy_seconds=now.busy_seconds - before.busy_seconds,
        cpu_seconds=now.cpu_seconds - before.cpu_seconds,
    )


def open_feed(
    definition: Feed,
    *,
    cores: float = 0.0,
    budget_bytes: int = 0,
    load: TrainingLoad = NO_LOAD,
    known: tuple[StageProfile, ...] = (),
    report: Report = lambda change: None,
    watches: bool = True,
    remote: RemoteCores | None = None,
) -> contextlib.closing[WatchedFeed]:
    """Measure a feed's stages, unless they are `known`, plan its workers for the cores that this process may use
    (`cores`, where given) and as many bytes as go with them (or `budget_bytes`), and open it; gives batches that are
    followed from then on, unless `watches` is false.
    `load` is who takes them. Where its cores turn out too few, it may borrow those of other nodes from `remote`."""
    cores = cores or own_cores()
    room = FeedRoom(cores=cores, budget_bytes=budget_bytes or feed_bytes(cores))
    profiles = stages_of(definition, room, known=known)
    return contextlib.closing(
        start_feed(definition, profiles, room=room, load=load, report=report, watches=watches, remote=remote)
    )


def own_cores() -> float:
    """How many cores this process may use."""
    return float(len(os.sched_getaffinity(0)))


def stages_of(definition: Feed, room: FeedRoom, *, known: tuple[StageProfile, ...] = ()) -> tuple[StageProfile, ...]:
    """What its stages take: what is `known`, if that is of these stages, or what is measured now."""
    _return_large_blocks(room.budget_bytes)
    is_known = {each.name for each in known} == {stage.name for stage in definition.work_stages()}
    return known if is_known else _profiles_of(definition, room.held_bytes)


def start_feed(
    definition: Feed,
    profiles: tuple[StageProfile, ...],
    *,
    room: FeedRoom,
    load: TrainingLoad,
    report: Report = lambda change: None,
    watches: bool = True,
    headroom: float = 1.0,
    remote: RemoteCores | None = None,
) -> WatchedFeed:
    """Plan the workers of a feed whose stages were measured, and open it."""
    plan = load.plan(profiles, room, headroom=headroom)
    # To read the clock of a core for each item takes as long as a short item does.
    watches = watches and _item_seconds(profiles, plan) > SHORT_SECONDS
    running = RunningFeed(definition, plan=plan, budget_bytes=room.held_bytes, counts_cpu=watches, remote=remote)
    return WatchedFeed(
        running,
        profiles=profiles,
        plan=plan,
        room=room,
        load=load,
        report=report,
        watches=watches,
        remote=remote,
    )


def start_loader(
    loader: "DataLoader[Any]",
    stages: tuple[StageProfile, ...],
    *,
    room: FeedRoom,
    load: TrainingLoad,
    report: Report = lambda change: None,
) -> WatchedFeed:
    """The same for a loader, which is read in one stage."""
    plan = load.plan(stages, room, headroom=HEADROOM)
    running = RunningLoader(loader, plan=plan, budget_bytes=room.held_bytes, counts_cpu=True)
    return WatchedFeed(running, profiles=stages, plan=plan, room=room, load=load, report=report)


def _item_seconds(profiles: Sequence[StageProfile], plan: FeedPlan) -> float:
    """What one item that is read takes in all stages."""
    model = model_of(profiles, plan.stages)
    return sum(v * each.service_seconds for v, each in zip(model.visits, model.paid, strict=True)) / model.visits[0]


def _return_large_blocks(budget_bytes: int) -> None:
    """Let memory that is a noticeable part of a budget go back to the system as soon as it is freed. Left alone, the
    allocator keeps blocks of up to 32 MiB for each thread once one of that size was freed."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, max(256 << 10, min(32 << 20, budget_bytes // 256)))


# What was measured in this process. Two definitions that look the same and are not are both followed anyway.
_MEASURED: dict[tuple[str, int], tuple[StageProfile, ...]] = {}


def _profiles_of(definition: Feed, budget_bytes: int) -> tuple[StageProfile, ...]:
    """What was measured of a feed, now or for an earlier training of this process."""
    key = repr(definition), budget_bytes
    if key not in _MEASURED:
        _MEASURED[key] = measure_stages(definition, budget_bytes=budget_bytes)
    return _MEASURED[key]


def definition_of(batches: Any) -> tuple[Feed | None, str]:
    """The feed that reads these batches, or None and why there is none.

    >>> definition_of([1, 2])
    (None, 'they are a list, and no feed: describe them with dt.feed.')
    """
    if isinstance(batches, Feed):
        return batches, ""
    if isinstance(batches, DataLoader):
        why = explain_refusal(batches)
        known = "one reads them while training, where steps would wait for them, in one stage"
        return None, f"they are a DataLoader, {f'and none can read them: {why}' if why else f'and {known}'}."
    return None, f"they are a {type(batches).__name__}, and no feed: describe them with dt.feed."
