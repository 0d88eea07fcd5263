"""Members of a gang that read the same share one feed, others divide the bytes, and each learns what it would alone."""

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from dovetail.engines import feeding, gang_feeds
from dovetail.engines.feeding import WatchedFeed, own_cores
from dovetail.vocabulary.events import FeedOpened, Warned
from dovetail.vocabulary.feeds import StageProfile, feed_bytes, held_bytes
from tests.engines.test_runner import Ground, same

OWN_BYTES = feed_bytes(own_cores())
STAGES = tuple(StageProfile(name=name, worker="thread", service_seconds=1e-4) for name in ("source", "_note", "batch"))
LOADER_STAGES = tuple(
    StageProfile(name=name, worker="thread", service_seconds=seconds)
    for name, seconds in (("source", 1e-6), ("fetch", 32e-3))
)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[WatchedFeed]:
    """The feeds that were opened."""
    found: list[WatchedFeed] = []

    def keep(start: Callable[..., WatchedFeed]) -> Callable[..., WatchedFeed]:
        def keeping(*given: object, **named: object) -> WatchedFeed:
            found.append(start(*given, **named))
            return found[-1]

        return keeping

    for name in ("start_feed", "start_loader"):
        monkeypatch.setattr(gang_feeds, name, keep(getattr(gang_feeds, name)))
    return found


def gang(ground: Ground, steps: list[int], **parameters: object) -> list:
    names = [f"member {number}" for number in range(len(steps))]
    members = [
        ground.member("noted", steps=count, name=name, seed=number, log=str(ground.home / "log"), **parameters)
        for number, (name, count) in enumerate(zip(names, steps, strict=True))
    ]
    return [dataclasses.replace(member, feed=STAGES) for member in members]


def times_read(ground: Ground, first: int, last: int) -> set[int]:
    """How often the items from one number to before another were read. The first batch is looked at by techniques."""
    counts = collections.Counter(map(int, (ground.home / "log").read_text().split()))
    return {counts[number] for number in range(first, last)}


def learned_alone(ground: Ground, members: list) -> None:
    for number, member in enumerate(members):
        alone = dataclasses.replace(member, directory=str(ground.home / f"alone {number}"))
        ground.run("train", [alone], "resident")
        assert same(ground.saved(member), ground.saved(alone))


@pytest.mark.parametrize(("technique", "shares"), [("interleave", ""), ("together", "numbers")])
def test_a_gang_reads_each_item_once_and_each_member_learns_what_it_would_alone(
    ground: Ground, opened: list[WatchedFeed], technique: str, shares: str
) -> None:
    members = gang(ground, [12, 12, 12], shares=shares)
    ground.run("train", members, technique)
    assert [ground.ends(member) for member in members] == [["finished"]] * 3, ground.events
    assert times_read(ground, 8, 96) == {1}
    assert len(opened) == 1
    assert opened[0].stats().budget_bytes == held_bytes(OWN_BYTES)
    learned_alone(ground, members)


def test_a_fused_gang_reads_each_item_once(ground: Ground, opened: list[WatchedFeed]) -> None:
    members = gang(ground, [12, 12, 12])
    ground.run("train", members, "fuse")
    assert [ground.ends(member) for member in members] == [["finished"]] * 3, ground.events
    assert times_read(ground, 8, 96) == {1}
    assert len(opened) == 1


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_members_that_end_earlier_hold_nobody_back(ground: Ground, accumulate: int) -> None:
    members = gang(ground, [3, 20, 11], accumulate=accumulate)
    ground.run("train", members, "interleave")
    assert times_read(ground, 8 * accumulate, 160 * accumulate) == {1}
    learned_alone(ground, members)


@pytest.mark.slow
def test_members_that_stand_at_different_places_go_on_there(ground: Ground, opened: list[WatchedFeed]) -> None:
    """One was stopped earlier than the others: two places, and half of the bytes for each."""
    first = gang(ground, [4, 9, 9])
    ground.run("train", first, "interleave")
    opened.clear()
    further = [dataclasses.replace(member, until_step=16) for member in first]
    ground.run("train", further, "interleave")
    assert len(opened) == 2
    assert {each.stats().budget_bytes for each in opened} == {held_bytes(OWN_BYTES // 2)}
    learned_alone(ground, further)


def test_members_that_read_different_things_divide_the_bytes(ground: Ground, opened: list[WatchedFeed]) -> None:
    log = str(ground.home / "log")
    members = [
        dataclasses.replace(ground.member("noted", steps=5, name=f"member {order}", log=log, order=order), feed=STAGES)
        for order in range(2)
    ]
    ground.run("train", members, "interleave")
    assert len(opened) == 2
    assert {each.stats().budget_bytes for each in opened} == {held_bytes(OWN_BYTES // 2)}
    learned_alone(ground, members)


@pytest.mark.parametrize(("technique", "shares", "shuffle"), [("interleave", "", True), ("together", "rows", False)])
def test_loaders_of_a_gang_are_read_by_workers_to_the_bit(
    ground: Ground, technique: str, shares: str, shuffle: bool
) -> None:
    members = [
        ground.member("loaded", steps=steps, name=f"member {steps}", seed=steps, shuffle=shuffle, shares=shares)
        for steps in (10, 13)
    ]
    ground.run("train", [dataclasses.replace(member, feed=LOADER_STAGES) for member in members], technique)
    for number, member in enumerate(members):
        assert ground.ends(member) == ["finished"], ground.events
        alone = dataclasses.replace(member, directory=str(ground.home / f"alone {number}"))
        ground.run("train", [alone], "resident")
        assert same(ground.saved(member), ground.saved(alone))


def loaded(ground: Ground, name: str, *, steps: int = 60, **fields: object):
    return dataclasses.replace(ground.member("loaded", steps=steps, name=name), **fields)


def test_a_loader_has_no_workers_that_its_consumer_does_not_need(ground: Ground, opened: list[WatchedFeed]) -> None:
    """A batch takes 32 ms; a consumer that takes ten a second is served by one worker, with some more than it needs."""
    for seconds in (0.1, 0.02, 0.0):
        member = loaded(ground, str(seconds), steps=2, feed=LOADER_STAGES, computing_seconds=seconds)
        ground.run("train", [member], "resident")
    slow, quick, unknown = (each.plan.stage("fetch").workers for each in opened)
    assert (slow, quick) == (1, 2)
    assert unknown > quick


def test_a_loader_that_starves_its_consumer_is_resized_and_gives_the_same_batches(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken to read a batch in 1 ms, and takes 32."""
    monkeypatch.setattr(feeding, "LOOK_SECONDS", 0.1)
    wrong = tuple(dataclasses.replace(each, service_seconds=1e-3) for each in LOADER_STAGES)
    watched = loaded(ground, "watched", feed=wrong, computing_seconds=1e-3)
    ground.steps_left = 45  # it is stopped within an epoch, after it was resized
    ground.run("train", [watched], "resident")
    ground.steps_left = -1
    change = next(event for event in ground.of(watched, "resized") if event.stage == "fetch")
    assert change.before == "2 threads"
    assert "'fetch' takes" in change.reason
    assert "a second are expected instead of" in change.reason
    (end,) = ground.of(watched, "stopped")
    assert end.data_share > 0.1
    ground.run("train", [watched], "resident")
    plain = loaded(ground, "plain")
    ground.run("train", [plain], "resident")
    assert ground.ends(watched) == ["stopped", "finished"]
    assert same(ground.saved(watched), ground.saved(plain))


def test_a_trial_of_a_gang_reads_its_loaders_by_workers(ground: Ground) -> None:
    member = ground.member("loaded", steps=20)
    ground.run("measure", [member], "interleave", knobs={"members": 2})
    (measured,) = ground.of(member, "measured")
    assert {each.name for each in measured.profile.feed} == {"source", "fetch"}
    assert measured.profile.step_seconds < 0.9 * 2 * 8 * 4e-3  # one after another the items of both take longer
    assert measured.profile.knobs["members"] == 2


def test_a_loader_that_cannot_be_read_by_workers_is_left_alone_and_says_why(ground: Ground) -> None:
    member = dataclasses.replace(ground.member("streamed", steps=5), feed=LOADER_STAGES)
    ground.run("train", [member], "resident")
    assert ground.ends(member) == ["finished"]
    (warned,) = ground.of(member, "warned")
    assert warned.message == (
        "its DataLoader is read without a feed's workers: a Streaming gives its items in an order of its own"
    )


@pytest.mark.parametrize(
    ("technique", "accumulate"), [pytest.param("interleave", 1, marks=pytest.mark.slow), ("interleave", 3), ("fuse", 1)]
)
def test_loaders_of_one_dataset_and_one_seed_are_read_once(ground: Ground, technique: str, accumulate: int) -> None:
    """Epochs have sixteen batches, and one of the members ends earlier."""
    log, more = ground.home / "log", {"accumulate": accumulate}
    steps = [20, 7, 20] if accumulate == 1 else [9, 7, 9]
    members = [
        ground.member("alike", steps=count, name=f"member {number}", log=str(log), rate=0.01 * (1 + number), **more)
        for number, count in enumerate(steps)
    ]
    ground.run("train", [dataclasses.replace(member, feed=LOADER_STAGES) for member in members], technique)
    assert [ground.ends(member) for member in members] == [["finished"]] * 3, ground.events
    read = collections.Counter(map(int, log.read_text().split()))
    # Two epochs or less, a probe, what is read to see whether it draws, and the first batch looked at.
    assert read.total() < 2 * 64 + 3 * 2 + (3 * 2 * 4 if technique == "fuse" else 0) + 4
    if technique == "interleave":
        for number, member in enumerate(members):
            alone = dataclasses.replace(member, directory=str(ground.home / f"alone {number}"))
            ground.run("train", [alone], "resident")
            assert same(ground.saved(member), ground.saved(alone))


def test_loaders_of_one_dataset_go_on_from_different_places(ground: Ground) -> None:
    log = str(ground.home / "log")
    first = [ground.member("alike", steps=count, name=f"member {count}", log=log) for count in (5, 9)]
    members = [dataclasses.replace(member, feed=LOADER_STAGES) for member in first]
    ground.run("train", members, "interleave")
    further = [dataclasses.replace(member, until_step=22) for member in members]
    ground.run("train", further, "interleave")
    for number, member in enumerate(further):
        alone = dataclasses.replace(member, feed=(), directory=str(ground.home / f"alone {number}"))
        ground.run("train", [alone], "resident")
        assert same(ground.saved(member), ground.saved(alone))


def test_what_users_should_know_of_a_feed_is_an_event_of_its_task(ground: Ground) -> None:
    stages = [StageProfile(name=name, worker="process", service_seconds=1e-3) for name in ("source", "held", "batch")]
    member = dataclasses.replace(ground.member("staying", steps=4), feed=tuple(stages))
    ground.run("train", [member], "resident")
    assert ground.ends(member) == ["finished"], ground.events
    (opened,) = [event for event in ground.events if isinstance(event, FeedOpened)]
    assert (opened.task, {*opened.workers}) == (member.task.identity, {"source", "held", "batch"})
    (warned,) = [event for event in ground.events if isinstance(event, Warned)]
    assert warned.task == member.task.identity
    assert "its feed: Stage 'held' cannot travel to a process, so it runs in threads: " in warned.message
