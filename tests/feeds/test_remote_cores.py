"""Workers on other nodes give the same batches to the bit, whatever becomes of them, and their cores are given back."""

import dataclasses
import os
import time

import pytest

from dovetail.feeds.definition import feed
from dovetail.feeds.remote_cores import NoIdleCore, RemoteCores
from dovetail.feeds.running import RunningFeed
from dovetail.vocabulary import ProgramError
from tests.feeds.feeds import PIPELINES, dies_at_five, fails_at_five, plan, same, uneven
from tests.feeds.lender import Lender

pytestmark = pytest.mark.process


@pytest.fixture
def lender(tmp_path):
    with Lender(tmp_path, 2) as lender:
        yield lender


def remotely(definition, workers=2, **stages):
    return dataclasses.replace(plan(definition, **stages), remote_workers=workers)


def wait_until(condition):
    while not condition():
        time.sleep(0.01)


def slow(number):
    time.sleep(0.01)
    return number


@pytest.mark.parametrize("name", PIPELINES)
def test_batches_are_the_same_to_the_bit(lender, name):
    definition = PIPELINES[name]
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        for epoch in range(3):
            assert same(list(running), list(definition.epoch(epoch)))


def test_workers_on_other_nodes_read_a_part_of_it(lender):
    definition = feed(range(400)).map(slow).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        assert same(list(running), list(definition))
        stats = running.stats()
    assert (stats.remote_workers, stats.notes) == (2, ())
    assert stats.remote_items > 100
    assert stats.stage("slow").items + stats.remote_items >= 400  # stages count what is done on this node
    assert lender.borrowed == 2


def test_cores_are_given_back_when_the_feed_shrinks_and_when_it_ends(lender):
    definition = feed(range(2000)).map(slow).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        batches = iter(running)
        next(batches)
        wait_until(lambda: lender.remote.count_idle() == 0)
        running.follow(remotely(definition, workers=1))
        while lender.remote.count_idle() != 1:
            next(batches)
        running.follow(remotely(definition, workers=2))
        while lender.remote.count_idle() != 0:
            next(batches)
    wait_until(lambda: lender.remote.count_idle() == 2)


def test_cores_that_are_taken_back_in_the_middle_lose_and_repeat_nothing(lender):
    definition = feed(range(200)).map(uneven).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        batches = iter(running)
        found = [next(batches)]
        wait_until(lambda: running.stats().remote_items)
        lender.take_back()
        found += batches
        assert same(found, list(definition))
        assert "A core of another node was taken back or is gone; its items are read again." in running.notes
        assert running.stats().remote_workers == 0


def test_an_item_that_ends_a_worker_on_another_node_is_read_here(lender):
    here = os.getpid()

    def dies_elsewhere(number):
        return number if os.getpid() == here else dies_at_five(number)

    definition = feed(range(40)).map(dies_elsewhere).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        for _ in range(3):
            assert same(list(running), list(feed(range(40)).batch(4)))


def test_what_another_node_cannot_read_is_read_here_and_that_is_said(lender, tmp_path):
    here = os.getpid()

    def open_file(number):  # as where a file lies on this node's disk only
        if os.getpid() != here:
            raise FileNotFoundError(f"no such file: {number}.jpg")
        time.sleep(0.01)
        return number

    definition = feed(range(200)).map(open_file).batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        assert same(list(running), list(feed(range(200)).batch(4)))
        wait_until(lambda: not running.stats().remote_workers)
        assert "Items that a worker on another node could not read are read here: stage 'open_file'" in running.notes[0]
        running.follow(remotely(definition))  # it is not tried for ever
        assert running.stats().remote_workers == 0


def test_an_item_that_raises_everywhere_is_named_as_ever(lender):
    definition = feed(range(20)).map(fails_at_five).batch(2)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        batches = iter(running)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(ProgramError, match="stage 'fails_at_five' must take every item; item 5 raised ValueError"):
            next(batches)


def test_where_no_core_is_idle_the_feed_reads_by_itself(tmp_path):
    definition = feed(range(40)).map(slow).batch(4)
    with Lender(tmp_path, 0) as lender:
        with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
            assert same(list(running), list(definition))
            assert running.notes == ("A core of another node could not be borrowed: none is idle.",)
        assert lender.remote.count_idle() == 0


class OnlyHere:
    """A stage that can be pickled, and unpickled in the process that has made it only."""

    def __init__(self):
        self.process = os.getpid()

    def __call__(self, number):
        time.sleep(0.01)
        return number

    def __setstate__(self, state):
        if state["process"] != os.getpid():
            raise ImportError("no module named 'installed_here_only'")


def test_what_other_nodes_cannot_import_is_read_here_and_they_are_not_asked_again(lender):
    definition = feed(range(200)).map(OnlyHere(), name="here").batch(4)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        assert running.can_be_remote()
        assert same(list(running), list(feed(range(200)).batch(4)))
        wait_until(lambda: not running.stats().remote_workers)
        assert running.notes == (
            "A core of another node could not be borrowed: a stage of a feed must be importable where its workers run; "
            "unpickling it raised ImportError: no module named 'installed_here_only'.",
        )
        assert not running.can_be_remote()
        running.follow(remotely(definition))
        assert running.stats().remote_workers == 0


def test_a_large_dataset_in_memory_is_not_sent(lender):
    definition = feed([bytes(1 << 20)] * 1 + [os.urandom(65 << 20)]).map(len)
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote) as running:
        assert not running.can_be_remote()
        assert list(running) == [1 << 20, 65 << 20]
        assert running.stats().remote_workers == 0


def test_where_nobody_lends_there_is_nothing_to_borrow(tmp_path):
    remote = RemoteCores(str(tmp_path / "nowhere"))
    assert remote.count_idle() == 0
    with pytest.raises(NoIdleCore, match="nobody lends one"):
        remote.borrow(b"")
    with pytest.raises(NoIdleCore, match="the other node does not answer"):
        remote.round_trip(1)


def test_the_budget_holds_with_workers_on_other_nodes(lender):
    definition = feed(range(300)).map(lambda number: [number] * 2000).map(lambda many: __import__("torch").tensor(many))
    definition = definition.batch(8)
    budget = 4 << 20
    with RunningFeed(definition, plan=remotely(definition), remote=lender.remote, budget_bytes=budget) as running:
        assert same(list(running), list(definition))
        assert running.stats().most_held_bytes <= budget
