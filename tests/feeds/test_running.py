"""A feed that workers read gives what the plain reader gives, whatever its workers are and whatever happens to them."""

import contextlib
import dataclasses
import gc
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.describe.programs import load_file
from dovetail.feeds.assembly import FeedPosition
from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import feed
from dovetail.feeds.flow import REMOTE, FeedFlow
from dovetail.feeds.running import RunningFeed
from dovetail.feeds.stage_chain import ItemRun, StageWork
from dovetail.vocabulary import FeedPlan, ProgramError, StagePlan
from tests.feeds.feeds import (
    PIPELINES,
    brief,
    equal,
    grown_at_once,
    image,
    is_odd,
    large,
    large_later,
    noise,
    pid,
    plan,
    same,
    square,
    uneven,
)

EPOCHS = 2
EXPECTED = {name: [list(definition.epoch(epoch)) for epoch in range(EPOCHS)] for name, definition in PIPELINES.items()}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_threads_give_the_same_batches(name, workers):
    if name in ("draws", "global", "cached"):
        pytest.skip("draws from global generators, so its stages run in processes")
    definition = PIPELINES[name]
    with definition.open(plan(definition, workers=workers)) as running:
        for expected in EXPECTED[name]:
            assert same(list(running), expected)
        assert running.notes == ()


@pytest.mark.process
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_the_same_batches(name, workers):
    definition = PIPELINES[name]
    with definition.open(plan(definition, "process", workers)) as running:
        for expected in EXPECTED[name]:
            assert same(list(running), expected)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["resize", "kill", "move", "resume"]),
        st.integers(0, 3),
        st.sampled_from([1, 2, 5]),
        st.sampled_from(["thread", "process"]),
    ),
    max_size=4,
)


@pytest.mark.process
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(PIPELINES)),
    moments=st.lists(st.integers(0, 12), max_size=4),
    steps=STEPS,
    budget=st.sampled_from([1 << 15, 1 << 22]),
)
def test_whatever_happens_batches_are_equal_to_the_bit(name, moments, steps, budget):
    """Live resizes, other kinds of workers, kills of worker processes, and resumes in another running feed, at any
    moment."""
    definition = PIPELINES[name]
    running = definition.open(plan(definition, workers=2), budget_bytes=budget)
    stages = [stage.name for stage in definition.work_stages()]
    due = dict(zip(moments, steps, strict=False))
    found, epoch, taken = [[] for _ in range(EPOCHS)], 0, 0
    try:
        iterator = iter(running)
        while epoch < EPOCHS:
            if (step := due.pop(taken, None)) is not None:
                what, which, workers, worker = step
                if what == "resize":
                    running.resize(stages[which % len(stages)], workers=workers)
                elif what == "move":
                    running.resize(stages[which % len(stages)], worker=worker)
                elif what == "kill":
                    for number in list(running.worker_pids())[: which + 1]:
                        with contextlib.suppress(ProcessLookupError):  # it may have been replaced already
                            os.kill(number, signal.SIGKILL)
                else:
                    state = running.state_dict()
                    running.close()
                    running = definition.open(plan(definition, worker, workers), budget_bytes=budget)
                    running.load_state_dict(state)
                    iterator = iter(running)
            batch = next(iterator, None)
            taken += 1
            if batch is None:
                epoch += 1
                iterator = iter(running)
            else:
                found[epoch].append(batch)
        stats = running.stats()
        assert stats.most_held_bytes <= budget
    finally:
        running.close()
    assert all(map(same, found, EXPECTED[name]))


@pytest.mark.parametrize("name", PIPELINES)
def test_resuming_from_any_position(name):
    """The plain reader too, and one's position is the other's."""
    definition = PIPELINES[name]
    with definition.open() as running:
        states = [running.state_dict()]
        for _ in iter(running):
            states.append(running.state_dict())
    expected = EXPECTED[name][0]
    assert len(states) == len(expected) + 1
    for taken, state in enumerate(states):
        from dovetail.feeds.plain_reader import PlainReader

        reader = PlainReader(definition)
        reader.load_state_dict(state)
        assert same(list(reader), expected[taken:])
        assert same(list(reader), EXPECTED[name][1])


class CountingData:
    """Remembers which items were read."""

    def __init__(self, length):
        self.length, self.read = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(f"there is no item {index}")
        self.read.append(index)
        return index


def test_resuming_does_not_read_what_was_passed():
    data = CountingData(1000)
    definition = feed(data).batch(10)
    with definition.open(plan(definition, workers=2)) as running:
        running.load_state_dict({"epoch": 0, "index": 90, "position": 900, "skipped": 0, "items": 1000})
        assert next(iter(running)).tolist() == list(range(900, 910))
    assert min(data.read[:80]) >= 900  # and then the next epoch's, ahead


def test_a_stream_is_read_in_its_order_and_again_in_each_epoch():
    class Stream:
        begun = 0

        def __iter__(self):
            Stream.begun += 1
            return iter(range(25))

    definition = feed(Stream()).shuffle(6).map(square).filter(is_odd).batch(3)
    expected = [list(definition.epoch(epoch)) for epoch in range(2)]
    Stream.begun = 0
    with definition.open(plan(definition, workers=3)) as running:
        assert same(list(running), expected[0])
        assert Stream.begun == 1  # the next epoch is not begun before it is asked for
        state = running.state_dict()
        assert same(list(running), expected[1])
        assert Stream.begun == 2
        running.load_state_dict({**state, "epoch": 0, "index": 0, "position": 0})
        assert same(list(running), expected[0])
    with definition.open(plan(definition, workers=2)) as running:
        iterator = iter(running)
        next(iterator)
        state = running.state_dict()
    with definition.open(plan(definition, workers=2)) as running:
        running.load_state_dict(state)
        assert same(list(running), expected[0][1:])


def test_light_items_are_what_plain_python_makes_of_them():
    """Those that take a microsecond go through stages many at once; one that raises is found all the same."""

    def all_but_one(number):
        if number == 777 * 777:
            raise ValueError(number)
        return number

    definition = feed(range(2000), skip=1).map(square).filter(is_odd).map(all_but_one).batch(7)
    numbers = [number * number for number in range(2000) if number % 2 and number != 777]
    expected = [numbers[start : start + 7] for start in range(0, len(numbers), 7)]
    assert [batch.tolist() for batch in definition] == expected
    with definition.open(plan(definition, workers=2)) as running:
        for _ in range(2):
            assert [batch.tolist() for batch in running] == expected
        assert running.stats().skipped == 1
    with pytest.raises(ProgramError, match=f"item 777 raised ValueError: {777 * 777}"):
        list(feed(range(2000)).map(square).map(all_but_one))


def test_a_light_item_that_raises_stop_iteration_ends_no_epoch():
    def all_but_one(number):
        if number == 1777:
            raise StopIteration
        return number

    with pytest.raises(ProgramError, match="item 1777 raised StopIteration"):
        list(feed(range(2000)).map(all_but_one).batch(8))
    assert sum(len(batch) for batch in feed(range(2000), skip=1).map(all_but_one).batch(8)) == 1999


class LightFlow:
    """A flow of light items for three threads, and what they do, without threads."""

    def __init__(self, definition):
        self.flow = FeedFlow(definition, budget=ByteBudget(limit_bytes=1 << 24), cache=None)
        self.flow.set_workers(
            ["thread"] * len(definition.work_stages()), {"thread": 3, "process": 0, REMOTE: 0}, 1 << 20
        )
        self.flow.start(FeedPosition())

    def take(self):
        return self.flow.take("thread", wait=False)

    def finish(self, unit, **how):
        work = [StageWork(items=16, bytes=512, most_bytes=32), StageWork(items=1, bytes=328, most_bytes=328)]
        self.flow.finish(unit, ItemRun(0, [], [], [], held_bytes=328), work[: unit.upto], **how)

    def count_readers(self):
        """How many may read at once."""
        taken = list(itertools.takewhile(lambda unit: unit is not None, (self.take() for _ in range(3))))
        for unit in taken:
            self.flow.abandon(unit)
        return len(taken)


def test_light_items_are_one_threads_work_until_they_are_not_light():
    light = LightFlow(feed(range(512)).batch(16))
    light.finish(light.take(), is_light=True)
    assert light.count_readers() == 1
    light.finish(light.take(), is_light=True)
    assert light.count_readers() == 1
    light.finish(light.take(), is_light=False)
    assert light.count_readers() == 3


def test_light_items_that_are_waited_for_are_read_by_several_for_a_while():
    light = LightFlow(feed(range(1 << 16)).batch(16))
    waits, computes = {"seconds": 0.015, "busy_seconds": 0.001}, {"seconds": 0.015, "busy_seconds": 0.015}
    light.finish(light.take(), is_light=True)
    for _ in range(4):  # two of them are long enough to tell
        light.finish(light.take(), is_light=True, **waits)
    for _ in range(4):  # it may have been a core that somebody else had
        light.finish(light.take(), is_light=True, **computes)
    assert light.count_readers() == 1
    for _ in range(6):
        light.finish(light.take(), is_light=True, **waits)
    for _ in range(1000):
        assert light.count_readers() == 3
        light.finish(light.take(), is_light=True, **waits)
    assert light.count_readers() == 1


@pytest.mark.parametrize("stage", ["batches", "waits", "cached"])
def test_threads_work_side_by_side_where_light_items_only_begin_or_wait(stage):
    """Numbers are light to read; what becomes of them need not be."""
    working, most = set(), 0

    def look(value):
        nonlocal most
        working.add(threading.get_ident())
        time.sleep(0.02 if stage == "batches" else 0.001)
        most = max(most, len(working))
        working.discard(threading.get_ident())
        return value

    numbers = feed(range(4096))
    definition = {
        "batches": numbers.batch(64).map(look),
        "waits": numbers.map(look).batch(64),
        "cached": numbers.map(float).cache(memory_bytes=1 << 20).map(look).batch(64),
    }[stage]
    with definition.open(plan(definition, workers=2)) as running:
        for _ in range(2):
            most = 0
            assert sum(len(batch) for batch in running) == 4096
            assert most > 2


def test_an_iteration_that_was_left_off_is_not_taken_up():
    definition = PIPELINES["plain"]
    with definition.open(plan(definition, workers=2)) as running:
        next(iter(running))
        assert same(list(running), EXPECTED["plain"][1])


@pytest.mark.parametrize("made", [lambda number: torch.zeros(10), float], ids=["tensors", "light"])
def test_a_slow_item_does_not_hold_back_the_workers_behind_it(made):
    begun = []
    release = threading.Event()

    def slow_first(number):
        begun.append(number)
        if number == 0:
            assert release.wait(60)
        return number

    items = 20_000  # more than are read ahead until the second start: of another epoch, the first would wait, too
    definition = feed(range(items)).map(slow_first).map(made)
    with definition.open(plan(definition, workers=2)) as running:
        running.load_state_dict({"epoch": 0, "index": 0, "position": 0, "skipped": 0, "items": items})
        release.set()  # for the one item that is tried first
        iterator = iter(running)
        next(iterator)
        release.clear()
        running.load_state_dict({"epoch": 0, "index": 0, "position": 0, "skipped": 0, "items": items})
        begun.clear()
        taker = threading.Thread(target=lambda: next(iter(running)))
        taker.start()
        deadline = time.monotonic() + 300
        while len(set(begun)) < 50 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(set(begun)) >= 50  # though the first one is still being worked at
        release.set()
        taker.join(60)


@pytest.mark.parametrize("own", [0, 12 << 20, 1 << 30])
def test_what_workers_hold_by_themselves_is_of_the_budget_too(own):
    definition = feed(range(400)).map(lambda number: torch.zeros(1 << 18)).batch(4)
    asked = dataclasses.replace(plan(definition, workers=2), worker_bytes=own)
    with definition.open(asked, budget_bytes=64 << 20) as running:
        for _ in itertools.islice(running, 10):
            time.sleep(0.02)
        held = running.stats().most_held_bytes
    assert 0 < held <= max((64 << 20) - own - (8 << 20), 32 << 20)


@pytest.mark.parametrize("budget", [3 << 20, 64 << 20])
def test_the_budget_is_never_exceeded(budget):
    definition = feed(range(64)).map(large).batch(2)
    expected = list(definition)
    with definition.open(plan(definition, workers=3), budget_bytes=budget) as running:
        assert same(list(running), expected)
        stats = running.stats()
        assert 0 < stats.most_held_bytes <= budget


@pytest.mark.parametrize("worker", ["thread", pytest.param("process", marks=pytest.mark.process)])
def test_items_that_grow_stall_and_do_not_overflow(worker):
    definition = feed(range(80)).map(large_later).batch(4)
    expected = list(definition)
    with definition.open(plan(definition, worker, 2), budget_bytes=12 << 20) as running:
        assert same(list(running), expected)
        assert running.stats().most_held_bytes <= 12 << 20


@pytest.mark.process
def test_units_that_wait_for_a_worker_give_way_to_the_one_that_it_is_at():
    """Admitted while items were small, they held the room that the only process waited for."""
    definition = feed(range(4000)).map(grown_at_once).batch(8)
    kinds = ("thread", "process", "thread")
    stages = tuple(
        StagePlan(name=stage.name, worker=kind, workers=1)
        for stage, kind in zip(definition.work_stages(), kinds, strict=True)
    )
    with definition.open(FeedPlan(stages=stages), budget_bytes=6 << 20) as running:
        for number, batch in enumerate(itertools.islice(running, 60)):
            assert same([batch], [torch.stack([torch.as_tensor(grown_at_once(8 * number + n)) for n in range(8)])])
        assert running.stats().most_held_bytes <= 6 << 20


@pytest.mark.process
def test_memory_of_all_processes_stays_within_the_budget():
    """By what the system counts, not by our accounting: what is held beyond the workers themselves."""
    definition = feed(range(400)).map(large).batch(4)
    budget = 24 << 20
    with definition.open(plan(definition, "process", 2), budget_bytes=budget) as running:
        iterator = iter(running)
        next(iterator)
        state = running.state_dict()
        running.load_state_dict(state)  # nothing is under way but what the workers are made of
        time.sleep(0.5)
        gc.collect()
        before = _memory(running)
        iterator, most = iter(running), 0
        for _ in range(60):
            next(iterator)
            most = max(most, _memory(running) - before)
    assert most <= budget


def _memory(running):
    """What is shared counts once, memory that was handed over included. Pages of files do not count: those of libraries
    are shared with everything else that runs, and the share of each grows whenever another program ends."""
    pids = [os.getpid(), *running.worker_pids()]
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return 1024 * sum(int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:"))


@pytest.mark.process
def test_workers_of_both_kinds_come_and_go():
    definition = feed(range(10_000_000)).map(pid)  # much more than is ever read ahead
    with definition.open(plan(definition, workers=2)) as running:
        given = enumerate(running)

        def first(wanted):
            """The first process that does the work and is one of those that are wanted; everything is in order."""
            for place, (number, process) in given:
                assert number == place
                if wanted(process):
                    return process
            raise AssertionError("there was none")

        assert first(lambda process: True) == os.getpid()
        running.resize("pid", worker="process", workers=2)
        assert first(lambda process: process != os.getpid()) in running.worker_pids()
        running.resize("pid", worker="thread", workers=1)
        assert first(lambda process: process == os.getpid())
        deadline = time.monotonic() + 300
        while running.worker_pids() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert running.worker_pids() == []


@pytest.mark.process
def test_processes_that_always_have_work_end_when_there_are_too_many():
    """A consumer that takes all there is never lets them run out of what was sent ahead."""
    definition = feed(range(10_000_000)).map(brief).batch(4)
    with definition.open(plan(definition, "process", brief=("process", 4))) as running:
        given, taken = iter(running), 0

        def take_until(is_so, seconds):
            nonlocal taken
            deadline = time.monotonic() + seconds
            while not is_so() and time.monotonic() < deadline:
                assert next(given).tolist() == list(range(4 * taken, 4 * taken + 4))
                taken += 1
            assert is_so()

        take_until(lambda: len(running.worker_pids()) == 6 and taken > 200, 300)
        running.resize("brief", workers=1)
        take_until(lambda: len(running.worker_pids()) == 3, 10)
        after = taken
        take_until(lambda: taken > after + 200, 300)
        assert len(running.worker_pids()) == 3


@pytest.mark.process
def test_nothing_is_left_behind():
    definition = feed(range(100)).map(image).batch(4)
    running = definition.open(plan(definition, "process", 2))
    next(iter(running))
    server = running._inner._workers._server.pid
    pids = [server, *running.worker_pids()]
    assert len(pids) >= 2
    del running
    gc.collect()
    deadline = time.monotonic() + 300
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, pids))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed ")]


def test_what_a_feed_says_of_itself():
    definition = feed(range(64)).map(uneven).batch(8)
    with definition.open(plan(definition, workers=2)) as running:
        batches = list(running)
        stats = running.stats()
    assert stats.batches == len(batches) == 8
    assert stats.stage("uneven").items >= 64
    assert stats.stage("uneven").busy_seconds > 0.02 * 3
    assert stats.stage("batch").items >= 8
    assert stats.stage("batch").bytes > 0
    assert stats.waited_seconds > 0


def test_main_thread_draws_are_left_alone():
    definition = feed(range(64)).map(noise).batch(8)
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with definition.open(plan(definition, workers=3)) as running:
        list(running)
        assert equal(torch.rand(4), expected)
    torch.manual_seed(5)
    list(PIPELINES["draws"])
    assert equal(torch.rand(4), expected)


def test_a_closed_feed_says_so():
    running = PIPELINES["plain"].open()
    running.close()
    with pytest.raises(ProgramError, match="a feed must be open while it is read; this one was closed"):
        next(iter(running))


def test_a_plan_is_for_the_stages_of_its_feed():
    with pytest.raises(
        ProgramError, match=r"must be for its stages, \['source', 'square', 'batch'\]; this one is for \['source'\]"
    ):
        PIPELINES["plain"].open(plan(feed([1])))


def test_a_doctest_of_the_handle_is_a_context():
    with RunningFeed(PIPELINES["plain"]) as running:
        assert len(running) == 10


def test_a_feed_reads_ahead_of_its_first_batch_and_each_item_once(tmp_path):
    read = tmp_path / "read"

    def note(item):
        with read.open("a") as file:
            file.write(f"{item}\n")
        return item

    definition = feed(range(100_000)).map(note).batch(4)
    with definition.open() as running:
        running.begin()
        deadline = time.monotonic() + 300
        while not running.is_ready() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert running.is_ready()
        running.load_state_dict(running.state_dict())  # where it stands: nothing is dropped
        assert next(iter(running)).tolist() == [0, 1, 2, 3]
        lines = read.read_text().split()
        assert [lines.count(item) for item in "123"] == [1, 1, 1]


def test_a_feed_that_reads_ahead_can_still_be_put_elsewhere():
    definition = feed(range(12)).batch(4)
    with definition.open() as running:
        begun = iter(running)
        next(begun)
        second = running.state_dict()
    with definition.open() as running:
        running.begin()
        running.load_state_dict(second)
        assert [batch.tolist() for batch in running] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_an_open_feed_that_nobody_else_holds_is_read_to_its_end():
    assert [batch.tolist() for batch in feed(range(4)).batch(2).open()] == [[0, 1], [2, 3]]


@pytest.mark.process
def test_items_of_the_programs_own_classes_pass_through_processes_as_what_they_are(tmp_path):
    program = tmp_path / "own.py"
    program.write_text(
        "import typing, torch\n"
        "class Sample(typing.NamedTuple):\n    x: torch.Tensor\n    y: int\n"
        "def read(number): return Sample(torch.zeros(3) + number, number)\n"
        "def turn(sample): return sample._replace(y=-sample.y)\n"
    )
    own = load_file(program)
    definition = feed(range(8)).map(own.read).map(own.turn)
    for kinds in (("thread", "thread", "process"), ("thread", "process", "thread")):  # in, and out
        stages = tuple(
            StagePlan(name=name, worker=kind, workers=1)
            for name, kind in zip(("source", "read", "turn"), kinds, strict=True)
        )
        with definition.open(FeedPlan(stages=stages), budget_bytes=64 << 20) as running:
            found = list(running)
        assert running.notes == ()
        assert {type(each) for each in found} == {own.Sample}
        assert [each.y for each in found] == [-number for number in range(8)]
