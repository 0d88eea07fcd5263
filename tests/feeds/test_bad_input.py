"""What can go wrong with a feed, each with what the user is told, and nothing lost."""

import contextlib
import os
import queue
import resource
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from dovetail.feeds.definition import feed
from dovetail.feeds.running import RunningFeed
from dovetail.vocabulary import ProgramError
from tests.feeds.feeds import dies_at_five, draw_python, fails_at_five, large, plan, same, square

BOTH = ["thread", pytest.param("process", marks=pytest.mark.process)]


def read(definition, worker="thread", workers=2, **settings):
    """All batches of an epoch, as workers give them, and what the feed has to say."""
    with RunningFeed(definition, plan=plan(definition, worker, workers), **settings) as running:
        return list(running), running.notes


@pytest.mark.parametrize("worker", BOTH)
def test_a_stage_that_raises_names_the_item(worker):
    definition = feed(range(20)).map(fails_at_five).batch(2)
    message = (
        r"stage 'fails_at_five' must take every item; item 5 raised ValueError: it is five \(line \d+ of feeds.py\)\. "
        r"Mend the item or the function, or leave such items out with dt.feed\(..., skip=...\)\."
    )
    with pytest.raises(ProgramError, match=message):
        list(definition)
    with RunningFeed(definition, plan=plan(definition, worker, 2)) as running:
        iterator = iter(running)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]  # all before it is given
        with pytest.raises(ProgramError, match=message):
            next(iterator)


def test_the_item_of_a_path_is_shown():
    definition = feed(["a.jpg", "b.jpg"]).map(lambda path: 1 / 0)
    with pytest.raises(ProgramError, match=r"item 0 \('a.jpg'\) raised ZeroDivisionError"):
        list(definition)


@pytest.mark.parametrize("worker", BOTH)
def test_items_are_left_out_up_to_a_budget(worker):
    def fails_often(number):
        if number % 4 == 3:
            raise KeyError(number)
        return number

    definition = feed(range(12), skip=3).map(fails_often).batch(4)
    expected = [[0, 1, 2, 4], [5, 6, 8, 9], [10]]
    assert [batch.tolist() for batch in definition] == expected
    with RunningFeed(definition, plan=plan(definition, worker, 2)) as running:
        assert [batch.tolist() for batch in running] == expected
        assert running.stats().skipped == 3
        assert len(list(running)) == 3  # each epoch has its own
    definition = feed(range(16), skip=3).map(fails_often).batch(4)
    with pytest.raises(
        ProgramError, match="3 items of this epoch were left out already, all that skip=3 allows: stage"
    ):
        read(definition, worker)


@pytest.mark.parametrize("worker", BOTH)
def test_unlike_shapes_in_a_batch(worker):
    definition = feed(range(1, 9)).map(torch.zeros).batch(4)
    message = (
        r"items of a batch must be alike; in batch 0 of epoch 0 item 1 is float32\[1\] and item 2 is float32\[2\]\. "
        r"Crop or pad them in a stage before, or give batch\(collate=...\) a function\."
    )
    with pytest.raises(ProgramError, match=message):
        list(definition)
    with pytest.raises(ProgramError, match=message):
        read(definition, worker)


def test_items_that_have_no_batch():
    with pytest.raises(ProgramError, match=r"batch must be given tensors, arrays, numbers or texts, .* has object"):
        list(feed([object(), object()]).batch(2))


class Shrinking:
    def __init__(self, length):
        self.length, self.items = length, list(range(length))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.items[index]


def test_a_source_that_shrinks():
    data = Shrinking(20)
    definition = feed(data).batch(2)
    with RunningFeed(definition, plan=plan(definition, workers=1)) as running:
        del data.items[10:]
        data.length = 20
        with pytest.raises(
            ProgramError,
            match=r"source must keep the items that it had when it was opened; reading item 1[01] raised IndexError",
        ):
            list(running)


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_list_that_shrinks_under_way(window, workers):
    """Its epoch does not just end sooner: that would be another training, and nobody would know."""
    data = list(range(2000))
    definition = feed(data).shuffle(window).batch(2)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(definition.open(plan(definition, workers=workers))) if workers else definition
        batches = iter(running)
        next(batches)
        del data[1000:]
        with pytest.raises(
            ProgramError,
            match=r"source must keep the items that it had when it was opened; reading item \d+ raised IndexError: "
            r"list index out of range, and it has 1000 now\. Do not change it while it is read\.",
        ):
            list(batches)


@pytest.mark.parametrize("worker", BOTH)
def test_a_file_that_is_gone(worker, tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(str(number))
    definition = feed(f"{tmp_path}/*.txt").map(lambda path: int(Path(path).read_text())).batch(1)
    (tmp_path / "4.txt").unlink()
    with pytest.raises(
        ProgramError,
        match=r"must take every item; item 4 \('.*4\.txt'\) raised FileNotFoundError: .* Mend the item or the function",
    ):
        read(definition, worker)


def test_a_source_that_is_another_when_training_goes_on():
    definition = feed(range(20)).batch(2)
    with definition.open() as running:
        next(iter(running))
        state = running.state_dict()
    with (
        feed(range(19)).batch(2).open() as running,
        pytest.raises(ProgramError, match=r"it had 20 and has 19 now. Restore them, or begin a task of another name"),
    ):
        running.load_state_dict(state)


@pytest.mark.process
def test_a_worker_process_that_is_killed():
    def slow(number):
        time.sleep(0.01)
        return number

    definition = feed(range(100)).map(slow).batch(4)
    expected = list(definition)
    with RunningFeed(definition, plan=plan(definition, "process", 1)) as running:
        iterator = iter(running)
        found = [next(iterator) for _ in range(2)]
        for _ in range(2):
            for pid in running.worker_pids():
                os.kill(pid, signal.SIGKILL)
            found += [next(iterator) for _ in range(4)]
        found += list(iterator)
        assert same(found, expected)
        assert any(
            "A worker process was replaced in the stages ['source', 'slow', 'batch']: it was killed, or crashed" in note
            for note in running.notes
        )


@pytest.mark.process
def test_an_item_that_ends_its_worker_each_time():
    # The first item is tried in this process, so it must not be that one.
    definition = feed(range(20)).map(dies_at_five)
    with pytest.raises(
        ProgramError,
        match=r"worker process must survive its items; item.* of epoch [01] ended it 3 times \(it was killed, or "
        r"crashed\) in the stages \['source', 'dies_at_five'\]",
    ):
        read(definition, "process", 1)


@pytest.mark.process
def test_a_worker_process_that_hangs(tmp_path):
    marker = tmp_path / "hung"

    def hangs_once(number):
        if number == 7 and not marker.exists():
            marker.touch()
            time.sleep(3600)
        return number

    numbers = dict.fromkeys(range(20))  # a stream, which is not read ahead into the next epoch, where there is a 7 too
    definition = feed(numbers).map(hangs_once).batch(5)
    found, notes = read(definition, "process", 1, hang_seconds=1.0)
    assert same(found, list(definition))
    assert any("it said nothing for 1 seconds; its items are read again" in note for note in notes)


@pytest.mark.process
def test_an_item_that_hangs_its_worker_each_time():
    def hangs(number):
        if number == 7:
            time.sleep(3600)
        return number

    definition = feed(range(20)).map(hangs)
    with pytest.raises(
        ProgramError,
        match=r"worker process must survive its items; items? [\d, ]+(and \d+ more)? of epoch 0 ended it 3 times \(it "
        r"said nothing for 0.3 seconds\) in the stages \['source', 'hangs'\]\. Read them in a process of yours to "
        r"see why\.",
    ):
        read(definition, "process", 1, hang_seconds=0.3)


@pytest.mark.parametrize("worker", BOTH)
def test_an_item_larger_than_the_budget(worker):
    def suddenly(number):
        return torch.zeros(16 if number < 9 else 1 << 20)

    definition = feed(range(20)).map(suddenly)
    with pytest.raises(
        ProgramError,
        match=r"a feed's budget must hold what is worked at; (item \d+|a batch of \d+ items) takes [\d.]+ MiB in the "
        r"stages \['source'(, 'suddenly')?\], and the budget is 2.0 MiB. Raise budget_bytes, or make items or "
        r"batches smaller",
    ):
        read(definition, worker, budget_bytes=2 << 20)


def test_a_budget_too_small_for_one_batch():
    definition = feed(range(20)).map(large).batch(4)
    with pytest.raises(
        ProgramError,
        match=r"budget must hold one item in each stage, and a batch of 4 items, twice while it is put together: "
        r"[\d,]+ bytes, as large as its first item is; it is 1,048,576 bytes\. Raise budget_bytes",
    ):
        read(definition, budget_bytes=1 << 20)


def test_a_budget_too_small_for_one_item():
    with pytest.raises(
        ProgramError,
        match=r"budget must hold one item in each stage, and one item: [\d,]+ bytes, as large as its first item is; it "
        r"is 262,144 bytes\. Raise budget_bytes, or make items or batches smaller\.",
    ):
        read(feed(range(20)).map(large), budget_bytes=1 << 18)


@pytest.mark.process
def test_a_function_that_cannot_travel_runs_in_threads_and_that_is_said():
    lock = threading.Lock()

    def locked(number):
        with lock:
            return number

    definition = feed(range(20)).map(square).map(locked).batch(4)
    found, notes = read(definition, "process")
    assert same(found, list(definition))
    assert [note.partition(":")[0] for note in notes] == [
        "Stage 'locked' cannot travel to a process, so it runs in threads"
    ]


def test_a_function_that_draws_and_cannot_travel_runs_in_the_consumer():
    lock = threading.Lock()

    def locked(number):
        with lock:
            return draw_python(number)

    definition = feed(range(20)).map(locked).batch(4)
    found, notes = read(definition)
    assert same(found, list(definition))
    assert "draws from global generators and cannot travel" in notes[0]
    assert "so everything is read in the thread that asks for batches, without workers" in notes[0]


class Threaded:
    """A dataset that has a thread wherever it is, as some libraries have as soon as they are imported."""

    def __init__(self):
        self.__setstate__({})

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        self.answers = queue.Queue()
        self.questions = queue.Queue()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self):
        while True:
            self.answers.put(self.questions.get())

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.questions.put(index)
        return self.answers.get(timeout=300), os.getpid()


@pytest.mark.process
def test_what_starts_threads_is_not_forked():
    """In a fork there would be nobody to answer."""
    found, notes = read(feed(Threaded()), "process", 2)
    assert notes == (
        "What the stages need starts threads, which a forked process would lack, so each worker process loads it by "
        "itself, and takes the longer to start.",
    )
    assert [number for number, _ in found] == list(range(20))
    assert os.getpid() not in {pid for _, pid in found}


@pytest.mark.process
def test_full_shared_memory_falls_back_to_the_pipe():
    def without_memory(number):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
        return large(number)

    definition = feed(range(12)).map(without_memory).batch(2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        expected = list(feed(range(12)).map(large).batch(2))
        found, notes = read(definition, "process")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert same(found, expected)
    assert [note.partition(":")[0] for note in notes] == [
        "Batches go through a pipe, which is slower than shared memory; the system gave none"
    ]


@pytest.mark.process
def test_what_cannot_be_sent_back():
    definition = feed(range(4)).map(lambda number: threading.Lock())
    with pytest.raises(
        ProgramError, match=r"what a stage in a worker process gives must be picklable; .* cannot pickle"
    ):
        read(definition, "process")


@pytest.mark.parametrize("workers", [1, 5])
def test_a_stream_that_raises_does_so_behind_what_it_gave(workers):
    class Broken:
        def __iter__(self):
            yield from range(5)
            raise OSError("the disk is gone")

    definition = feed(Broken()).map(lambda number: number).batch(2)
    for _ in range(20):  # whoever is first must not matter
        with RunningFeed(definition, plan=plan(definition, "thread", workers)) as running:
            given = iter(running)
            assert [next(given).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
            with pytest.raises(OSError, match="the disk is gone"):
                next(given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: feed(5), "source must be a dataset, a list, paths or an iterable, got int"),
        (lambda: feed(x for x in [1]), "a generator runs once only. Use a list, or a class with __iter__"),
        (lambda: feed("nowhere/*.jpg"), "a feed's pattern must match files; 'nowhere/.*' matches none"),
        (lambda: feed([1], skip=-1), "skip must be a count of at least 0, got -1"),
        (lambda: feed([1]).map(3), "map must be given a function, got int"),
        (lambda: feed([1]).batch(0), "batch's size must be a whole number of at least 1, got 0"),
        (lambda: feed([1]).shuffle(2.5), "shuffle's window must be a whole number of at least 1, got 2.5"),
        (lambda: feed([1]).batch(2).batch(2), "batch must stand before batch; this feed has batches already"),
        (lambda: feed([1]).batch(2).shuffle(2), "Shuffle items before they are put into batches"),
        (lambda: feed([1]).batch(2).cache(memory_bytes=1), "cache must stand before batch"),
        (lambda: feed([1]).cache(), "memory_bytes or disk_bytes of more than 0, got 0 and 0"),
        (lambda: feed([1]).cache(disk_bytes=1).cache(disk_bytes=1), "one cache at most; this is a second one"),
        (lambda: feed({1: 2}.keys()).cache(disk_bytes=1), "must have a source that reads items by number"),
        (lambda: feed([1]).batch(2).map_batches(list, size=3), "takes batches as they are, without size; got size=3"),
        (lambda: feed([1]).cache(memory_bytes=9).open(budget_bytes=9), "must be larger than what its cache keeps"),
        (lambda: list(feed([1, 2]).map_batches(lambda each: [], size=2)), "it was given 2 and gave 0"),
    ],
)
def test_feeds_that_cannot_be(make, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ProgramError, match=message):
            make()


def test_a_feed_that_filters_has_no_length():
    with pytest.raises(TypeError, match="has no length where it filters or skips items, or reads a stream"):
        len(feed([1]).filter(bool))
