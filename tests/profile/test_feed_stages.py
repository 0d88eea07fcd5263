"""What is measured of a feed's stages is what they do: waiting, computing, holding the lock."""

import dataclasses
import hashlib
import random
import threading
import time
from functools import partial

import numpy
import pytest

from dovetail.feeds import feed
from dovetail.planning.feeds import FeedModel
from dovetail.profile import feed_stages
from dovetail.profile.feed_stages import measure_stages
from dovetail.vocabulary import ProgramError
from dovetail.vocabulary.feeds import StageProfile

BUDGET_BYTES = 256 << 20


def wait(number: int) -> int:
    time.sleep(4e-3)
    return number


def free_the_lock(number: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", b"a", str(number).encode(), 6000)


def hold_the_lock(number: int) -> int:
    for turn in range(8000):
        number = (number * 31 + turn) & 0xFFFFFFFF
    return number


def draw_globally(number: int) -> float:
    return number + random.random()


def kilobyte(number: int) -> "numpy.ndarray":
    return numpy.zeros(1024 if number % 2 else 512, dtype=numpy.uint8)


def profile(profiles: tuple[StageProfile, ...], name: str, worker: str = "thread") -> StageProfile:
    (found,) = (each for each in profiles if (each.name, each.worker) == (name, worker))
    return found


def test_waiting_takes_no_core_and_no_lock() -> None:
    found = profile(measure_stages(feed(range(10_000)).map(wait).batch(4), budget_bytes=BUDGET_BYTES), "wait")
    assert found.service_seconds >= 0.99 * 4e-3  # less what the scheduler counts as waiting for a core
    assert found.cpu_seconds < 0.2 * found.service_seconds
    assert found.lock_seconds <= found.cpu_seconds


def test_computing_that_frees_the_lock_is_told_from_computing_that_holds_it() -> None:
    """By shares of one another, since how long both take depends on the machine."""
    both = feed(range(10_000)).map(free_the_lock, name="frees").map(len).map(hold_the_lock, name="holds").batch(4)
    profiles = measure_stages(both, budget_bytes=BUDGET_BYTES)
    frees, holds = profile(profiles, "frees"), profile(profiles, "holds")
    assert frees.lock_seconds < 0.5 * frees.cpu_seconds
    assert holds.lock_seconds > 0.5 * holds.cpu_seconds


def test_processes_are_measured_where_threads_would_wait_for_one_another() -> None:
    profiles = measure_stages(feed(range(10_000)).map(hold_the_lock).batch(4), budget_bytes=BUDGET_BYTES)
    thread, process = (profile(profiles, "hold_the_lock", worker) for worker in ("thread", "process"))
    assert process.lock_seconds < thread.lock_seconds
    assert process.worker_bytes > thread.worker_bytes
    assert process.portable


def test_a_stage_that_cannot_travel_has_threads_alone() -> None:
    lock = threading.Lock()

    def guarded(number: int) -> int:
        with lock:
            return hold_the_lock(number)

    profiles = measure_stages(feed(range(1000)).map(guarded).batch(4), budget_bytes=BUDGET_BYTES)
    assert {each.worker for each in profiles} == {"thread"}
    assert not profile(profiles, "guarded").portable
    assert profile(profiles, "batch").portable


def test_bytes_and_inputs_are_those_of_the_items() -> None:
    kept = feed(range(4000)).filter(lambda number: number % 4 < 2, name="half").map(kilobyte).batch(8, collate=list)
    profiles = measure_stages(kept, budget_bytes=BUDGET_BYTES)
    found = profile(profiles, "kilobyte")
    assert profile(profiles, "half").inputs == pytest.approx(2.0)
    assert 700 < found.item_bytes < 1200
    assert found.most_bytes >= 1024
    assert profile(profiles, "batch").inputs == pytest.approx(4.0)  # of eight items that are read, four are left


def test_a_stage_that_draws_and_cannot_travel_is_measured_as_others_are() -> None:
    """It is read in the thread that asks for batches, and a plan must have it, too."""
    lock = threading.Lock()

    def locked(number: int) -> float:
        with lock:
            return random.random()

    profiles = measure_stages(feed(range(1000)).map(locked).batch(4), budget_bytes=BUDGET_BYTES)
    assert [each.name for each in profiles if each.worker == "thread"] == ["source", "locked", "batch"]
    assert [each.portable for each in profiles if each.name == "locked"] == [False]


def test_stages_that_draw_say_so() -> None:
    def crop(number: int, rng: numpy.random.Generator) -> float:
        return number + rng.random()

    profiles = measure_stages(
        feed(range(400)).map(hold_the_lock).map(crop).map(draw_globally).batch(4), budget_bytes=BUDGET_BYTES
    )
    draws = {each.name: each.draws for each in profiles}
    assert draws == {"source": False, "hold_the_lock": False, "crop": True, "draw_globally": True, "batch": False}


def test_a_stream_is_measured_without_knowing_its_length() -> None:
    class Stream:
        def __iter__(self):
            return iter(range(500))

    profiles = measure_stages(feed(Stream()).map(hold_the_lock).batch(4), budget_bytes=BUDGET_BYTES)
    assert profile(profiles, "hold_the_lock").cpu_seconds > 0


def test_what_a_stage_raises_is_raised() -> None:
    def broken(number: int) -> int:
        raise LookupError("not here")

    with pytest.raises(ProgramError, match="stage 'broken' must take every item; item 0 raised LookupError: not here"):
        measure_stages(feed(range(100)).map(broken).batch(4), budget_bytes=BUDGET_BYTES)


def refuse_some(number: int) -> int:
    if number % 7 == 3:
        raise ValueError("no picture")
    return number


def test_items_that_a_feed_may_skip_are_skipped() -> None:
    reading = feed(range(1000), skip=200).map(refuse_some, name="read").batch(4)
    assert profile(measure_stages(reading, budget_bytes=BUDGET_BYTES), "read").service_seconds > 0
    with pytest.raises(ProgramError, match="item 3 raised ValueError"):
        measure_stages(feed(range(1000)).map(refuse_some).batch(4), budget_bytes=BUDGET_BYTES)


def test_a_filter_that_drops_whole_batches_is_read_until_some_come_through() -> None:
    late = feed(range(600)).filter(lambda number: number >= 200).map(hash).batch(10)
    profiles = measure_stages(late, budget_bytes=BUDGET_BYTES)
    assert profile(profiles, "hash").service_seconds > 0
    assert profile(profiles, "batch").inputs == 10


def test_processes_are_not_measured_where_they_would_take_the_budget_by_themselves():
    profiles = measure_stages(feed(range(10_000)).map(hold_the_lock).batch(4), budget_bytes=32 << 20)
    assert {each.worker for each in profiles} == {"thread"}


def test_what_processes_lose_is_what_workers_cores_and_lock_do_not_explain() -> None:
    loop = StageProfile(name="loop", worker="thread", service_seconds=4e-3, cpu_seconds=4e-3)
    read, batch = (dataclasses.replace(loop, name=name) for name in ("read", "batch"))
    model = FeedModel(profiles=(read, loop, batch))  # 12 ms, and 1 ms here: 6.5 ms by two cores
    lost = partial(feed_stages._lost_seconds, model, here=1e-3, beyond=0.0, cores=2)
    assert lost(7e-3) == pytest.approx(1e-3)
    assert lost(6e-3) == 0.0
    assert feed_stages._lost_seconds(model, 5e-3, here=1e-3, beyond=0.0, cores=8) == pytest.approx(3e-3)  # by three
    assert feed_stages._lost_seconds(model, 15e-3, here=14e-3, beyond=0.0, cores=2) == pytest.approx(1e-3)
    waits = FeedModel(profiles=(dataclasses.replace(read, service_seconds=9e-3), loop, batch))
    assert feed_stages._lost_seconds(waits, 20e-3, here=1e-3, beyond=0.0, cores=2) == 0.0
