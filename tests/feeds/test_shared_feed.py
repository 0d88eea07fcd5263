"""Trainings that share a feed each get all its batches, whoever asks first, and each has a position of its own."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.feeds import Cursor, SharedFeed
from dovetail.feeds.definition import feed
from tests.feeds.feeds import is_odd, noise, plan, same

DEFINITION = feed(range(26), seed=4).shuffle(10).map(noise).batch(4)
FILTERED = feed(range(40)).filter(is_odd).batch(3)
EXPECTED = {
    definition: [batch for epoch in range(6) for batch in definition.epoch(epoch)]
    for definition in (DEFINITION, FILTERED)
}


def no_seeding(epoch: int, index: int) -> None:
    pass


def cursor(batches):
    return Cursor(batches, before_draw=no_seeding)


class Readers:
    """Opens readers, and counts them."""

    def __init__(self, definition) -> None:
        self.definition, self.opened, self.parts = definition, [], []

    def __call__(self, readers: int):
        self.parts.append(readers)
        self.opened.append(self.definition.open(plan(self.definition, workers=2)))
        return self.opened[-1]

    def close(self) -> None:
        for each in self.opened:
            each.close()


@pytest.fixture
def readers():
    found = Readers(DEFINITION)
    yield found
    found.close()


@given(st.sampled_from([DEFINITION, FILTERED]), st.lists(st.integers(0, 2), max_size=40))
@settings(deadline=None, max_examples=25)
def test_each_gets_every_batch_in_whatever_order_they_ask(definition, turns) -> None:
    """Also who falls behind, and is read plainly from there."""
    readers = Readers(definition)
    cursors = [cursor(view) for view in SharedFeed([definition] * 3, open_reader=readers).views]
    found: list[list] = [[], [], []]
    try:
        for turn in turns:
            found[turn] += cursors[turn].take(1)
    finally:
        readers.close()
    assert len(readers.opened) == (1 if turns else 0)
    for each in found:
        assert same(each, EXPECTED[definition][: len(each)])


def test_in_step_each_batch_is_read_once_over_the_ends_of_epochs(readers) -> None:
    cursors = [cursor(view) for view in SharedFeed([DEFINITION] * 3, open_reader=readers, together=2).views]
    for step in range(9):  # epochs have seven batches, of which steps of two take six
        epoch, place = divmod(step, 3)
        expected = list(DEFINITION.epoch(epoch))[2 * place : 2 * place + 2]
        for each in cursors:
            assert same(each.take(2), expected)
    assert len(readers.opened) == 1
    assert readers.opened[0].stats().batches == 3 * 6 + 2  # what is left of two epochs was looked at


def test_who_writes_into_a_batch_does_so_for_itself(readers) -> None:
    one, other = (cursor(view) for view in SharedFeed([DEFINITION] * 2, open_reader=readers).views)
    (mine,) = one.take(1)
    mine.zero_()
    assert same(other.take(1), EXPECTED[DEFINITION][:1])
    assert torch.equal(mine, torch.zeros_like(mine))


def test_those_who_stand_elsewhere_have_a_reader_for_each_place(readers) -> None:
    ahead = cursor(DEFINITION)
    for _ in range(9):
        ahead.take(1)
    cursors = [cursor(view) for view in SharedFeed([DEFINITION] * 3, open_reader=readers).views]
    cursors[1].restore(ahead.state())
    found = [[batch for _ in range(8) for batch in each.take(1)] for each in cursors[:2]]
    assert same(found[0], EXPECTED[DEFINITION][:8])
    assert same(found[1], EXPECTED[DEFINITION][9:17])
    assert readers.parts == [2, 2]


@pytest.mark.parametrize("taken", [1, 7, 8])
def test_positions_are_those_of_the_feed_alone(readers, taken) -> None:
    one, _ = (cursor(view) for view in SharedFeed([DEFINITION] * 2, open_reader=readers).views)
    for _ in range(taken):
        one.take(1)
    alone = cursor(DEFINITION)
    alone.restore(one.state())
    assert same(alone.take(1), EXPECTED[DEFINITION][taken : taken + 1])


def test_a_feed_that_rests_holds_nothing_and_goes_on_where_it_was() -> None:
    with DEFINITION.open(plan(DEFINITION, workers=2)) as running:
        batches, found = iter(running), []
        for number in range(7):
            found.append(next(batches))
            if number in (0, 3):
                running.rest()
                while running.stats().held_bytes:  # what is in work is dropped as it ends
                    time.sleep(1e-3)
        assert same(found, EXPECTED[DEFINITION][:7])
