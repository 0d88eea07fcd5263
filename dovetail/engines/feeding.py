"""A feed inside a worker: measured, planned, opened, and followed while it runs.

`feed` knows how to read and to resize, `planning.feeds` what would be best; here one is told what the other says. Looks
are taken in the thread that takes batches, between two of them, so that nothing here needs a lock.
"""

import contextlib
import ctypes
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dovetail.engines.base import MemberOrder
from dovetail.engines.worker_context import WorkerContext, event_of
from dovetail.feeds.definition import DEFAULT_BUDGET_BYTES, READ, Feed
from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.loader_feed import FETCH, RunningLoader, why_left_alone
from dovetail.feeds.remote_cores import NoIdleCore, RemoteCores
from dovetail.feeds.running import FeedStats, RunningFeed
from dovetail.planning.feeds import StageObservation, decide, plan_feed, predict_feed
from dovetail.planning.feeds.feed_model import model_of
from dovetail.profile.feed_link import measure_link
from dovetail.profile.feed_stages import measure_stages
from dovetail.train.base import Training
from dovetail.vocabulary import FeedPlan, Profile, RemoteProfile, StagePlan, StageProfile
from dovetail.vocabulary.events import FeedResized

# Short enough to follow a disk that slows down, and long enough that rates mean something.
LOOK_SECONDS = 1.0
# A consumer that waits for less than this share of its time is served.
SERVED = 0.03
# A feed that gives just as much as is taken makes its consumer wait for each slow item: some more is aimed at.
HEADROOM = 1.25
# What a resize takes of the cores: a process imports what its functions need, a thread hardly anything.
SWITCH_SECONDS = {"thread": 0.01, "process": 1.0}
# How often other nodes are asked for idle cores, while a consumer waits for data.
ASK_SECONDS = 5.0
# The rest of a budget is for the batch that its consumer has, and for what allocators keep: with 56 MiB held, a process
# had grown by 73.
HELD_SHARE = 0.7
_HELD_BYTES = int(HELD_SHARE * DEFAULT_BUDGET_BYTES)
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


class WatchedFeed:
    """A running feed as batches of a training: iterated once an epoch, resumed through its state, followed and resized
    on the way. Called from one thread."""

    def __init__(
        self,
        running: RunningFeed,
        *,
        profiles: tuple[StageProfile, ...],
        plan: FeedPlan,
        cores: float,
        budget_bytes: int,
        consumer_threads: int = 0,
        report: Report = lambda change: None,
        watches: bool = True,
        remote: RemoteCores | None = None,
    ) -> None:
        self._watches = watches
        self._remote = _RemoteWatch(remote) if remote is not None else None
        self.profiles, self.plan = profiles, plan
        self._running, self._report = running, report
        self._cores, self._budget_bytes, self._consumer_threads = cores, budget_bytes, consumer_threads
        self._began = self._looked = time.monotonic()
        self._batches, self._consuming_seconds = 0, 0.0  # since the last look
        self._seen = self._observe()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._running:
            handed = time.monotonic()
            yield batch
            asked = time.monotonic()
            self._batches += 1
            self._consuming_seconds += asked - handed
            if self._watches and asked - self._looked > LOOK_SECONDS:
                self._look(asked)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: epoch and position."""
        return self._running.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there at the next `iter`."""
        self._running.load_state_dict(state)

    def stats(self) -> FeedStats:
        """What its stages have done since it was opened, and hold now."""
        return self._running.stats()

    def predicted_per_second(self) -> float:
        """The batches per second that its workers should give, as its stages are now, to a consumer that takes all."""
        return predict_feed(self.profiles, self.plan, cores=self._cores)[0]

    def close(self) -> None:
        """End its workers."""
        self._running.close()

    def _look(self, now: float) -> None:
        """See what the stages did since the last look, and resize where that is worth it."""
        seconds, batches, consuming = now - self._looked, self._batches, self._consuming_seconds
        seen = self._observe()
        observations = [_since(self._seen[name], each) for name, each in seen.items()]
        self._looked, self._batches, self._consuming_seconds, self._seen = now, 0, 0.0, seen
        if not batches or consuming > (1 - SERVED) * seconds:
            return
        remote = self._look_around(now, seconds)
        found = decide(
            self.profiles,
            self.plan,
            observations,
            seconds=seconds,
            measured_per_second=batches / seconds,
            cores=self._cores,
            budget_bytes=self._budget_bytes,
            consumer_per_second=HEADROOM * batches / consuming if consuming else None,
            consumer_cpu_seconds=self._consumer_threads * consuming / batches,
            horizon_seconds=max(LEAST_HORIZON_SECONDS, now - self._began),
            switch_seconds=max(SWITCH_SECONDS[stage.worker] for stage in self.plan.stages),
            remote=remote,
        )
        self.profiles = found.profiles
        if found.reason:
            self._resize(found.plan, found.reason, rate=batches / seconds)

    def _look_around(self, now: float, seconds: float) -> RemoteProfile | None:
        """The cores of other nodes that it has or could have, and the link to them."""
        if self._remote is None:
            return None
        stats = self._running.stats()
        if stats.remote_workers < self.plan.remote_workers:  # some were taken back
            self.plan = dataclasses.replace(self.plan, remote_workers=stats.remote_workers)
        visits = model_of(self.profiles, self.plan.stages).visits[0]
        return self._remote.look(now, stats, seconds=seconds, visits=visits)

    def _resize(self, plan: FeedPlan, reason: str, *, rate: float) -> None:
        self._running.follow(plan)
        for before, after in zip(self.plan.stages, plan.stages, strict=True):
            if (before.worker, before.workers) != (after.worker, after.workers):
                change = FeedChange(
                    stage=after.name, before=in_words(before), after=in_words(after), reason=reason, rate=rate
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
            for each in self._running.stats().stages
        }


class _RemoteWatch:
    """What is known of other nodes' cores: how many are idle, asked for now and then, what the link was measured to
    carry, and how long a worker there was seen to take for a batch."""

    def __init__(self, remote: RemoteCores) -> None:
        self._remote = remote
        self._asked, self._cores = -math.inf, 0
        self._link: RemoteProfile | None = None
        self._items, self._were_busy, self._worker_seconds = 0, False, 0.0

    def look(self, now: float, stats: FeedStats, *, seconds: float, visits: float) -> RemoteProfile | None:
        """The cores that a feed has or could have; None where there are none. It looked `seconds` ago, and reads
        `visits` items for a batch."""
        batches, self._items = (stats.remote_items - self._items) / visits, stats.remote_items
        if batches and self._were_busy:  # in the first of them they were still starting
            taken = stats.remote_workers * seconds / batches
            self._worker_seconds = (self._worker_seconds + taken) / 2 if self._worker_seconds else taken
        self._were_busy = batches > 0
        # Those that it has are not idle; both are counted at one moment, or they would be counted twice.
        if now - self._asked > ASK_SECONDS:
            self._asked, self._cores = now, stats.remote_workers + self._remote.idle()
        cores = max(self._cores, stats.remote_workers)
        if not cores:
            return None
        if self._link is None:
            try:
                self._link = measure_link(self._remote, cores=cores)
            except NoIdleCore:
                return None
        return dataclasses.replace(self._link, cores=cores, worker_seconds=self._worker_seconds)


def in_words(stage: StagePlan) -> str:
    """A stage's workers.

    >>> in_words(StagePlan(name="decode", worker="process", workers=2))
    '2 processes'
    """
    plural = {"thread": "threads", "process": "processes"}[stage.worker]
    return f"{stage.workers} {stage.worker if stage.workers == 1 else plural}"


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
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    consumer_per_second: float | None = None,
    consumer_threads: int = 0,
    known: tuple[StageProfile, ...] = (),
    report: Report = lambda change: None,
    watches: bool = True,
    remote: RemoteCores | None = None,
) -> contextlib.closing[WatchedFeed]:
    """Measure a feed's stages, unless they are `known`, plan its workers for the cores that this process may use
    (`cores`, where given), and open it; gives batches that are followed from then on, unless `watches` is false.
    `consumer_threads` are those of a training on the same cores. Where they turn out too few, it may borrow cores of
    other nodes from `remote`."""
    cores = cores or float(len(os.sched_getaffinity(0)))
    _return_large_blocks(budget_bytes)
    held_bytes = int(HELD_SHARE * budget_bytes)
    is_known = {each.name for each in known} == {stage.name for stage in definition.work_stages()}
    profiles = known if is_known else _profiles_of(definition, held_bytes)
    plan = plan_feed(profiles, cores=cores, budget_bytes=held_bytes, consumer_per_second=consumer_per_second)
    # To read the clock of a core for each item takes as long as a short item does.
    watches = watches and _item_seconds(profiles, plan) > SHORT_SECONDS
    watched = WatchedFeed(
        RunningFeed(definition, plan=plan, budget_bytes=held_bytes, counts_cpu=watches, remote=remote),
        profiles=profiles,
        plan=plan,
        cores=cores,
        budget_bytes=held_bytes,
        consumer_threads=consumer_threads,
        report=report,
        watches=watches,
        remote=remote,
    )
    return contextlib.closing(watched)


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


# Where a step waits for its loader for more than this share of its time, and for so long, reading by workers may be
# tried: less is taken by handing batches over.
WAITING, LEAST_WAIT_SECONDS = 0.2, 2e-3
# So long is a loader read to know what a batch takes; and a step must then be expected to take this share at most.
READING_SECONDS, CLEARLY = 0.3, 0.9


def loader_stages(training: Training) -> tuple[StageProfile, ...]:
    """What reading a batch of a training's loader takes, as a stage of threads and of processes, from reading a few
    here."""
    loader: Any = training.batches
    here = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    batches, size = 0, 0
    began, cpu_began = time.perf_counter(), time.thread_time()
    for batch in here:
        batches += 1
        size = max(size, item_bytes(batch))
        if time.perf_counter() - began > READING_SECONDS:
            break
    taken, busy = time.perf_counter() - began, time.thread_time() - cpu_began
    one = StageProfile(
        name=FETCH,
        worker="thread",
        service_seconds=taken / batches,
        cpu_seconds=busy / batches,
        lock_seconds=busy / batches,  # whether it is freed on the way is not known
        item_bytes=size,
        most_bytes=size,
    )
    source = dataclasses.replace(one, name=READ, service_seconds=1e-6, cpu_seconds=1e-6, lock_seconds=1e-6)
    return source, one, dataclasses.replace(one, worker="process", lock_seconds=0.0)


def waits_for_loader(training: Training, profile: Profile) -> bool:
    """Whether a training's steps wait for its loader, which workers of a feed could read to the bit."""
    if profile.waits_seconds < max(LEAST_WAIT_SECONDS, WAITING * profile.step_seconds):
        return False
    return isinstance(training.batches, DataLoader) and not why_left_alone(training.batches)


def may_be_faster(training: Training, profile: Profile, stages: tuple[StageProfile, ...]) -> bool:
    """Whether steps are expected to be clearly faster where a feed with these stages reads their batches."""
    plan = plan_feed(stages, cores=_own_cores(), budget_bytes=_HELD_BYTES)
    computing_seconds = profile.step_seconds - profile.waits_seconds
    return max(computing_seconds, training.accumulate / plan.items_per_second) < CLEARLY * profile.step_seconds


def _own_cores() -> float:
    return float(len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def read_ahead(training: Training, stages: tuple[StageProfile, ...], *, steps_per_second: float) -> Iterator[float]:
    """Within, a training's loader is read by the workers that are best for these stages and a consumer that takes so
    many steps a second where it need not wait; gives how many batches a second they should give, once what was read
    ahead is used up."""
    loader: Any = training.batches
    wanted = HEADROOM * training.accumulate * steps_per_second if steps_per_second else None
    plan = plan_feed(stages, cores=_own_cores(), budget_bytes=_HELD_BYTES, consumer_per_second=wanted)
    with RunningLoader(loader, plan=plan, budget_bytes=_HELD_BYTES) as running:
        training.batches = running
        try:
            yield plan.items_per_second
        finally:
            training.batches = loader


def definition_of(batches: Any) -> tuple[Feed | None, str]:
    """The feed that reads these batches, or None and why there is none.

    >>> definition_of([1, 2])
    (None, 'they are a list, and no feed: describe them with dt.feed.')
    """
    if isinstance(batches, Feed):
        return batches, ""
    if isinstance(batches, DataLoader):
        why = why_left_alone(batches)
        known = "one reads them while training, where steps would wait for them, in one stage"
        return None, f"they are a DataLoader, {f'and none can read them: {why}' if why else f'and {known}'}."
    return None, f"they are a {type(batches).__name__}, and no feed: describe them with dt.feed."


def feed_training(
    training: Training, member: MemberOrder, around: WorkerContext, *, is_alone: bool, borrows: bool = False
) -> contextlib.AbstractContextManager[object]:
    """Within, a training whose batches are a feed reads them with workers, which are resized where that is worth it;
    each resize is an event of its task. So does one that `is_alone` and whose loader a trial has found to be the wall.
    Other trainings are left as they are. One that `borrows` may have cores of other nodes, where there are any and its
    own are the wall. Where the batches are a feed, the `WatchedFeed` is given."""
    definition, _ = definition_of(training.batches)
    if definition is None:
        if is_alone and member.feed and isinstance(training.batches, DataLoader):
            return read_ahead(training, member.feed, steps_per_second=0.0)
        return contextlib.nullcontext()

    def report(change: FeedChange) -> None:
        around.report(event_of(FeedResized, member, **dataclasses.asdict(change)))

    around.doing("feeding")
    remote = around.remote if borrows and around.ranks is None else None
    return _reading_through(
        training, definition, known=member.feed, threads=around.threads, report=report, remote=remote
    )


@contextlib.contextmanager
def _reading_through(
    training: Training,
    definition: Feed,
    *,
    known: tuple[StageProfile, ...],
    threads: int,
    report: Report,
    remote: RemoteCores | None,
) -> Iterator[WatchedFeed]:
    with open_feed(definition, consumer_threads=threads, known=known, report=report, remote=remote) as feed:
        training.batches = feed
        try:
            yield feed
        finally:
            training.batches = definition
