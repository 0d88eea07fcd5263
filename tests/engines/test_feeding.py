"""A feed inside a worker: followed and resized while it runs, and what is learned does not depend on it."""

import dataclasses
import hashlib
import itertools
import threading
import time

import pytest
import torch

from dovetail.engines import feeding
from dovetail.engines.feeding import FeedChange, FeedRoom, TrainingLoad, WatchedFeed, definition_of, open_feed
from dovetail.feeds import feed
from dovetail.feeds.running import RunningFeed
from dovetail.vocabulary.feeds import FeedPlan, StagePlan, StageProfile
from tests.engines.test_runner import Ground, same
from tests.feeds.lender import Lender

BUDGET_BYTES = 64 << 20


def wait(number: int) -> torch.Tensor:
    time.sleep(5e-3)
    return torch.tensor([float(number)])


@pytest.fixture
def ground(tmp_path):
    return Ground(tmp_path)


def definition():
    return feed(range(100_000)).map(wait).batch(4)


def watched(definition, changes: list[FeedChange]) -> WatchedFeed:
    """One thread for each stage, where eight would be worth it."""
    stages = tuple(StagePlan(name=name, worker="thread", workers=1) for name in ("source", "wait", "batch"))
    profiles = (
        StageProfile(name="source", worker="thread", service_seconds=1e-6),
        StageProfile(name="wait", worker="thread", service_seconds=5e-3),
        StageProfile(name="batch", worker="thread", service_seconds=1e-5, cpu_seconds=1e-5, inputs=4),
    )
    plan = FeedPlan(stages=stages, items_per_second=50.0, wall="wait")
    return WatchedFeed(
        RunningFeed(definition, plan=plan, budget_bytes=BUDGET_BYTES, counts_cpu=True),
        profiles=profiles,
        plan=plan,
        room=FeedRoom(cores=2, budget_bytes=BUDGET_BYTES),
        report=changes.append,
    )


def test_a_feed_that_starves_its_consumer_is_resized_and_gives_the_same_batches() -> None:
    waiting, changes = definition(), list[FeedChange]()
    following, found = watched(waiting, changes), []
    try:
        for batch in itertools.islice(following, 20_000):
            found.append(batch)
            if changes and len(found) > 300:
                break
    finally:
        following.close()
    assert changes
    assert {change.stage for change in changes} <= {"source", "wait", "batch"}
    change = next(change for change in changes if change.stage == "wait")
    assert change.before == "1 thread"
    assert change.after == f"{following.plan.stage('wait').workers} threads"
    assert following.plan.stage("wait").workers > 1
    assert "a second are expected instead of" in change.reason
    assert change.rate > 0
    for one, other in zip(found[:50], waiting.epoch(0), strict=False):
        assert torch.equal(one, other)


def hash_long(number: int) -> torch.Tensor:
    found = hashlib.sha256(bytes([number % 256]) * 4_000_000).digest()
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).clone()


@pytest.mark.process
def test_a_feed_whose_cores_are_the_wall_borrows_idle_ones_and_gives_the_same_batches(tmp_path) -> None:
    """As on Ray, where two cores of another node are idle."""
    hashed, changes, found = feed(range(100_000)).map(hash_long).batch(4), list[FeedChange](), []
    with (
        Lender(tmp_path, 2) as lender,
        open_feed(hashed, cores=1, budget_bytes=BUDGET_BYTES, report=changes.append, remote=lender.remote) as opened,
    ):
        for batch in opened:
            found.append(batch)
            if opened.stats().remote_items > 40:
                break
        borrowed = [change for change in changes if change.stage == "other nodes"]
        assert borrowed[0].before == "0 cores"
        assert borrowed[-1].after in ("1 cores", "2 cores")
        assert "a second are expected instead of" in borrowed[0].reason
    for number in range(max(0, len(found) - 30), len(found)):  # those that were read with workers elsewhere
        assert torch.equal(found[number], torch.stack([hash_long(4 * number + each) for each in range(4)]))


def test_a_feed_that_serves_its_consumer_is_left_alone() -> None:
    """The consumer takes longer than one worker does."""
    changes = list[FeedChange]()
    following = watched(definition(), changes)
    plan = following.plan
    try:
        for _ in itertools.islice(following, 30):
            time.sleep(0.06)
    finally:
        following.close()
    assert changes == []
    assert following.plan == plan


def test_a_feed_is_measured_planned_and_opened_for_its_consumer() -> None:
    with open_feed(definition(), cores=2, budget_bytes=BUDGET_BYTES, load=TrainingLoad(batch_seconds=0.01)) as opened:
        assert opened.plan.wall == "the consumer"
        assert opened.plan.stage("wait").workers >= 2
        first = next(iter(opened))
    assert first.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]


def pictures() -> list[StageProfile]:
    """Batches of 64, of which a twentieth of the decoding holds the lock in threads."""
    decode = StageProfile(name="decode", worker="thread", service_seconds=5e-3, cpu_seconds=5e-3, lock_seconds=2.5e-4)
    batch = StageProfile(name="batch", worker="thread", service_seconds=1e-3, cpu_seconds=1e-3, inputs=64)
    apart = dataclasses.replace(decode, worker="process", service_seconds=5.1e-3, cpu_seconds=5.1e-3, lock_seconds=2e-5)
    return [decode, apart, batch]


ROOM = FeedRoom(cores=16, budget_bytes=1 << 30)


@pytest.mark.parametrize("batch_seconds", [0.0, 0.01, 0.02])
def test_beside_an_accelerators_training_there_are_processes_even_before_it_is_known(batch_seconds: float) -> None:
    launching = TrainingLoad(batch_seconds=batch_seconds, threads=1, lock_share=1.0)
    plan = launching.plan(pictures(), ROOM, headroom=feeding.HEADROOM)
    assert plan.stage("decode").worker == "process"
    computing, few = dataclasses.replace(launching, lock_share=0.0), dataclasses.replace(ROOM, cores=4)
    assert computing.plan(pictures(), few, headroom=feeding.HEADROOM).stage("decode").worker == "thread"


def test_a_step_that_waits_for_the_lock_is_predicted_to_take_both() -> None:
    threads = [each for each in pictures() if each.worker == "thread"]
    launching = TrainingLoad(batch_seconds=0.02, threads=1, lock_share=1.0)
    assert 1 / launching.predict(threads, ROOM) == pytest.approx(0.02 + 64 * 2.5e-4)
    # With processes only for what is handed over, as long as there are cores enough.
    room = dataclasses.replace(ROOM, cores=32)
    assert 1 / launching.predict(pictures(), room) == pytest.approx(0.02 + 64 * 2e-5)


def test_more_is_aimed_at_than_a_training_takes() -> None:
    """Or it would wait for each slow item."""
    launching = TrainingLoad(batch_seconds=0.1, threads=1, lock_share=1.0)
    plan = launching.plan(pictures(), ROOM, headroom=feeding.HEADROOM)
    assert plan.items_per_second > 12
    assert plan.stage("decode").workers >= 4


def test_what_is_no_feed_says_so() -> None:
    assert definition_of(definition())[1] == ""
    assert definition_of((1, 2)) == (None, "they are a tuple, and no feed: describe them with dt.feed.")


def test_a_task_learns_the_same_from_a_feed_as_from_its_batches_in_a_list(ground: Ground) -> None:
    fed, listed = (ground.member("fed", steps=9, name=name, plainly=name == "listed") for name in ("fed", "listed"))
    ground.run("train", [fed], "resident")
    ground.run("train", [listed], "resident")
    assert ground.ends(fed) == ground.ends(listed) == ["finished"], ground.events
    assert same(ground.saved(fed), ground.saved(listed))


def test_a_task_fails_with_the_item_that_its_feed_cannot_read(ground: Ground) -> None:
    member = ground.member("fed_badly", steps=9)
    ground.run("train", [member], "resident")
    (failed,) = ground.of(member, "failed")
    assert "stage '_refuse' must take every item; item 13 raised ValueError: no such picture (line" in failed.reason
    assert "leave such items out with dt.feed(..., skip=...)" in failed.reason


@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_task_goes_on_in_the_middle_of_its_feed(ground: Ground, stop: int) -> None:
    """Epochs have four steps: it is stopped within the first, at its end, and in the second."""
    whole, parts = ground.member("fed", steps=9, name="whole"), ground.member("fed", steps=9, name="parts")
    ground.run("train", [whole], "resident")
    ground.steps_left = stop
    ground.run("train", [parts], "resident")
    ground.steps_left = -1
    assert ground.ends(parts) == ["stopped"]
    ground.run("train", [parts], "resident")
    assert same(ground.saved(parts), ground.saved(whole))


def test_a_trial_reads_through_the_feed(ground: Ground) -> None:
    member = ground.member("fed", steps=9)
    ground.run("measure", [member], "resident")
    (measured,) = ground.of(member, "measured")
    assert measured.profile.steps_per_epoch == 4
    assert {each.name for each in measured.profile.feed} == {"source", "_noisy", "batch"}


def test_what_a_trial_has_measured_of_a_feed_is_not_measured_again(ground: Ground, monkeypatch) -> None:
    member = ground.member("fed", steps=9)
    ground.run("measure", [member], "resident")
    (measured,) = ground.of(member, "measured")

    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("it was measured again")

    monkeypatch.setattr(feeding, "_MEASURED", {})  # as in another process
    monkeypatch.setattr(feeding, "measure_stages", refuse)
    ground.run("train", [dataclasses.replace(member, feed=measured.profile.feed)], "resident")
    assert ground.ends(member) == ["finished"], ground.events


def test_a_loader_that_steps_wait_for_is_read_by_workers_and_learns_the_same(ground: Ground) -> None:
    member = ground.member("loaded", steps=20)
    ground.run("measure", [member], "resident")
    (measured,) = ground.of(member, "measured")
    assert {each.name for each in measured.profile.feed} == {"source", "fetch"}
    assert measured.profile.step_seconds < 0.9 * 8 * 4e-3  # one after another its items take longer

    ahead, plain = (ground.member("loaded", steps=20, name=name) for name in ("ahead", "plain"))
    ground.run("train", [dataclasses.replace(ahead, feed=measured.profile.feed)], "resident")
    ground.run("train", [plain], "resident")
    assert ground.ends(ahead) == ground.ends(plain) == ["finished"], ground.events
    assert same(ground.saved(ahead), ground.saved(plain))


def test_a_task_whose_loader_is_read_by_workers_goes_on_without_them(ground: Ground) -> None:
    whole, parts = (ground.member("loaded", steps=20, name=name) for name in ("whole", "parts"))
    stages = tuple(StageProfile(name=name, worker="thread", service_seconds=1e-3) for name in ("source", "fetch"))
    ground.run("train", [whole], "resident")
    ground.steps_left = 11
    ground.run("train", [dataclasses.replace(parts, feed=stages)], "resident")
    ground.steps_left = -1
    assert ground.ends(parts) == ["stopped"]
    ground.run("train", [parts], "resident")
    assert same(ground.saved(parts), ground.saved(whole))


def test_a_loader_that_is_quick_is_left_alone(ground: Ground) -> None:
    member = ground.member("quick", steps=9)
    ground.run("measure", [member], "resident")
    (measured,) = ground.of(member, "measured")
    assert measured.profile.feed == ()


TURN = threading.Lock()


def wait_in_turn(number: int) -> torch.Tensor:
    """However many wait, one does at a time: nothing that a stage shows tells it from a disk."""
    with TURN:
        time.sleep(5e-3)
    return torch.tensor([number])


def test_workers_that_bring_nothing_are_taken_back() -> None:
    waiting, changes = feed(range(100_000)).map(wait_in_turn, name="wait").batch(4), list[FeedChange]()
    following, found = watched(waiting, changes), []
    try:
        for batch in itertools.islice(following, 2_000):
            found.append(batch)
            if any("taken back" in change.reason for change in changes):
                break
    finally:
        following.close()
    grown, back = (change for change in changes if change.stage == "wait")
    assert (back.before, back.after) == (grown.after, "1 thread")
    assert following.plan.stage("wait").workers == 1
    for one, other in zip(found[:5], waiting.epoch(0), strict=False):
        assert torch.equal(one, other)
