"""Who reads for the members of an order: those that read the same share one feed, and feeds share cores and bytes.

Members whose batches are equal definitions are handed what one feed has read once, and so are those with loaders of
one dataset from one seed. With `together` they take turns at one reading anyway, whatever their batches are, so one of
their feeds works at a time. All other feeds work at once, and each has its part of the cores and of the budget. Knows
orders and trainings; feeds open and follow themselves.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dovetail.engines.base import MemberOrder
from dovetail.engines.feeding import (
    HEADROOM,
    FeedChange,
    FeedRoom,
    Report,
    TrainingLoad,
    WatchedFeed,
    definition_of,
    own_cores,
    show_workers,
    stages_of,
    start_feed,
    start_loader,
)
from dovetail.engines.worker_context import WorkerContext, event_of
from dovetail.feeds.definition import SOURCE, Feed
from dovetail.feeds.loader_feed import FETCH, RunningLoader, explain_refusal
from dovetail.feeds.loader_group import LoaderGroup
from dovetail.feeds.remote_cores import RemoteCores
from dovetail.feeds.running import RunningFeed
from dovetail.feeds.shared_feed import SharedFeed
from dovetail.planning.techniques import spec_of
from dovetail.train.base import Training
from dovetail.train.staged_batches import StagedBatches
from dovetail.vocabulary.events import FeedOpened, FeedResized, Warned
from dovetail.vocabulary.feeds import feed_bytes


@contextlib.contextmanager
def feed_members(
    trainings: Sequence[Training],
    members: Sequence[MemberOrder],
    around: WorkerContext,
    *,
    technique: str,
    is_trial: bool = False,
) -> Iterator[list[WatchedFeed]]:
    """Within, trainings whose batches are feeds read them with workers, which are resized where that is worth it; each
    resize is an event of the first task that reads them. So do those whose loader a trial has found to be the wall.
    Others are left as they are. Gives the feeds, as they are opened. What one member's feed raises carries its number
    as `member`.

    In a trial all members are one task; the tasks of a gang may read each something else, so that nothing is shared
    but by those that say so.
    """
    groups = reading_groups(trainings, members, around, shares=spec_of(technique).shares_batches, is_trial=is_trial)
    feeds: list[WatchedFeed] = []
    before = [training.batches for training in trainings]
    room = feed_room(around, len(groups))
    # Trials measure what a node gives by itself; and who borrows for several would have to divide what it gets.
    remote = around.remote if len(groups) == 1 and around.ranks is None and not is_trial else None
    with contextlib.ExitStack() as stack:
        stack.callback(_put_back, trainings, before)
        if groups:
            around.doing("feeding")
        for group in groups:
            try:
                readers = [trainings[n] for n in group]
                _feed_group(
                    readers,
                    members[group[0]],
                    around,
                    room,
                    len(groups),
                    feeds,
                    stack,
                    remote=remote,
                    takes_turns=spec_of(technique).shares_batches,
                )
            except Exception as error:
                error.member = group[0]  # type: ignore[attr-defined]
                raise
        yield feeds


def feed_room(around: WorkerContext, feeds: int) -> FeedRoom:
    """What each of so many feeds of this process may take. The core of the thread that trains is among its cores, and
    `training_load` says what is taken of it: where steps are short and wait for data, the feed has most of it."""
    cores = around.feed_cores + 1 if around.feed_cores else own_cores()
    return FeedRoom(cores=cores, budget_bytes=feed_bytes(around.feed_cores or cores)).share(max(1, feeds))


def training_load(
    around: WorkerContext, computing_seconds: float = 0.0, *, accumulate: int = 1, feeds: int = 1
) -> TrainingLoad:
    """What a training whose steps take so long keeps busy that takes the batches of each of so many feeds. That of an
    accelerator has one thread, which hands kernels over all the while, and for that needs the interpreter. On a CPU
    threads compute without it: steps took no longer beside threads that decode than beside processes."""
    is_cpu = around.device.type == "cpu"
    return TrainingLoad(
        batch_seconds=computing_seconds / accumulate,
        threads=(around.threads if is_cpu else 1) / max(1, feeds),
        lock_share=0.0 if is_cpu else 1.0,
    )


def reading_groups(
    trainings: Sequence[Training],
    members: Sequence[MemberOrder],
    around: WorkerContext,
    *,
    shares: bool,
    is_trial: bool = False,
) -> list[list[int]]:
    """The numbers of the trainings that feeds read, those together that read the same. Where `shares`, all do."""
    groups: list[list[int]] = []
    for number, (training, member) in enumerate(zip(trainings, members, strict=True)):
        if not _is_read(training, member, around):
            continue
        for group in groups:
            other, seed = trainings[group[0]], members[group[0]].task.seed
            is_alike = seed == member.task.seed and _may_read_the_same(other, training)
            if shares or ((is_alike or _reads_the_same(other, training)) and not is_trial):
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _is_read(training: Training, member: MemberOrder, around: WorkerContext) -> bool:
    if isinstance(training.batches, Feed):
        return True
    is_known = {stage.name for stage in member.feed} == {SOURCE, FETCH}
    if not is_known or not isinstance(training.batches, DataLoader) or around.ranks is not None:
        return False
    if why := explain_refusal(training.batches):
        around.report(event_of(Warned, member, message=f"its DataLoader is read without a feed's workers: {why}"))
    return not why


def _reads_the_same(one: Training, other: Training) -> bool:
    """Whether two trainings that take steps together take equal batches: then they always stand at the same place."""
    return isinstance(one.batches, Feed) and one.batches == other.batches and one.accumulate == other.accumulate


def _may_read_the_same(one: Training, other: Training) -> bool:
    """Whether two trainings from the same seed have loaders that will draw the same order, as far as one can tell."""
    if not isinstance(one.batches, DataLoader) or not isinstance(other.batches, DataLoader):
        return False
    mine, its = ((each.dataset, each.collate_fn) for each in (one.batches, other.batches))
    is_same = all(part is counterpart for part, counterpart in zip(mine, its, strict=True))
    return is_same and one.batches.batch_size == other.batches.batch_size and one.accumulate == other.accumulate


def _feed_group(
    trainings: Sequence[Training],
    member: MemberOrder,
    around: WorkerContext,
    room: FeedRoom,
    groups: int,
    feeds: list[WatchedFeed],
    stack: contextlib.ExitStack,
    *,
    remote: RemoteCores | None,
    takes_turns: bool,
) -> None:
    """Let one feed read for these trainings; where they take turns, one of them draws for all."""

    def report(change: FeedChange) -> None:
        around.report(event_of(FeedResized, member, **dataclasses.asdict(change)))

    def keep(feed: WatchedFeed) -> WatchedFeed:
        """Close it in the end; how it is opened and what users should know of it are events, too."""
        stack.callback(feed.close)
        workers = {stage.name: show_workers(stage) for stage in feed.plan.stages}
        around.report(event_of(FeedOpened, member, workers=workers, wall=feed.plan.wall))
        feed.listen(lambda sentence: around.report(event_of(Warned, member, message=f"its feed: {sentence}")))
        feeds.append(feed)
        return feed

    first = trainings[0]
    load = training_load(around, member.computing_seconds, accumulate=first.accumulate, feeds=groups)
    definitions = [definition for each in trainings if (definition := definition_of(each.batches)[0]) is not None]
    if len(definitions) < len(trainings):
        if takes_turns:
            _start_loaders(trainings, member, room, load, report, keep)
        else:
            _start_alike_loaders(trainings, member, room, load, report, keep)
        return
    profiles = stages_of(definitions[0], room, known=member.feed)

    def open_reader(readers: int) -> RunningFeed:
        feed = start_feed(
            definitions[0],
            profiles,
            room=room.share(readers),
            load=dataclasses.replace(load, threads=load.threads / readers),
            report=report,
            headroom=HEADROOM,
            remote=remote if readers == 1 else None,
        )
        keep(feed)
        assert isinstance(feed.running, RunningFeed)
        return feed.running

    if len(trainings) == 1:
        reader = open_reader(1)
        if member.attempt == 1:  # later ones do not begin at the beginning
            reader.begin()
        # Ranks read parts of each batch, which each takes on its own.
        is_staged = around.device.type == "cuda" and around.ranks is None
        first.batches = StagedBatches(reader, device=around.device) if is_staged else reader
        return
    shared = SharedFeed(definitions, open_reader=open_reader, together=first.accumulate)
    for training, view in zip(trainings, shared.views, strict=True):
        training.batches = view


def _start_loaders(
    trainings: Sequence[Training],
    member: MemberOrder,
    room: FeedRoom,
    load: TrainingLoad,
    report: Report,
    keep: Callable[[WatchedFeed], WatchedFeed],
) -> list[RunningLoader]:
    """A feed for each loader, of which one works at a time."""
    loaders: list[RunningLoader] = []
    for training in trainings:
        if isinstance(training.batches, DataLoader):
            feed = keep(start_loader(training.batches, member.feed, room=room, load=load, report=report))
            assert isinstance(feed.running, RunningLoader)
            loaders.append(feed.running)
            training.batches = feed.running
    for loader in loaders:
        loader.rests_for = [other for other in loaders if other is not loader]
    return loaders


def _start_alike_loaders(
    trainings: Sequence[Training],
    member: MemberOrder,
    room: FeedRoom,
    load: TrainingLoad,
    report: Report,
    keep: Callable[[WatchedFeed], WatchedFeed],
) -> None:
    """A feed for each loader, of which one works for all whose orders turn out to be the same. Bytes are divided, for
    nobody knows before; cores are not, since it is as good as known."""
    part = FeedRoom(cores=room.cores, budget_bytes=room.budget_bytes // len(trainings))
    loaders = _start_loaders(trainings, member, part, load, report, keep)
    for loader in loaders:
        loader.rests_for = []
    LoaderGroup(loaders, together=trainings[0].accumulate)


def _put_back(trainings: Sequence[Training], before: Sequence[Any]) -> None:
    for training, batches in zip(trainings, before, strict=True):
        training.batches = batches
