"""Which functions draw, and what they draw."""

import functools
import random

import numpy
import pytest
import torch
from torch import nn

from dovetail.feeds.definition import feed
from dovetail.feeds.keyed_draws import as_before, global_state, make_rng, may_draw, one_thread, wants_rng
from tests.feeds.feeds import draw_numpy, draw_python, draw_torch, equal, noise, square


class Flip:
    def __call__(self, item):
        return item if torch.rand(()) < 0.5 else -item


class Compose:
    def __init__(self, parts):
        self.parts = parts

    def __call__(self, item):
        for part in self.parts:
            item = part(item)
        return item


def calls_another(item):
    return draw_python(item)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (draw_python, True),
        (draw_numpy, True),
        (draw_torch, True),
        (calls_another, True),
        (Flip(), True),
        (Compose([square, Flip()]), True),
        (Compose([square, abs]), False),
        (functools.partial(calls_another), True),
        (nn.Dropout(0.5), True),
        (square, False),
        (lambda operand: operand, False),
        (torch.neg, False),
        (str.upper, False),
    ],
)
def test_functions_that_may_draw_are_told_by_their_code(function, expected):
    assert may_draw(function) is expected


@pytest.mark.parametrize("function", [noise, draw_python, draw_numpy, draw_torch])
def test_draws_depend_on_seed_epoch_stage_and_item(function):
    first = list(feed(range(4)).map(function))
    again = list(feed(range(4)).map(function))
    assert all(map(equal, first, again))
    backwards = list(feed([3, 2, 1, 0]).map(function))
    assert not equal(first[1], backwards[2])  # it is the item's place in the source that counts
    for other in (feed(range(4), seed=1).map(function), feed(range(4)).map(abs).map(function)):
        assert not any(map(equal, first, other))
    assert not any(map(equal, first, feed(range(4)).map(function).epoch(1)))


def test_before_a_cache_every_epoch_draws_the_same():
    definition = feed(range(4)).map(noise).cache(memory_bytes=1000).map(noise, name="again")
    plain = feed(range(4)).map(noise).cache(memory_bytes=1000)
    assert list(plain.epoch(0)) == list(plain.epoch(1))
    assert list(definition.epoch(0)) != list(definition.epoch(1))


def test_shuffling_changes_the_order_and_nothing_else():
    assert sorted(feed(range(20)).map(noise).shuffle(5)) == sorted(feed(range(20)).map(noise))


HIDDEN = {"draw": random.random}


def draws_unseen(number):
    return HIDDEN["draw"]() if number > 2 else 0.5


def test_what_draws_unseen_is_keyed_all_the_same():
    definition = feed(range(6)).map(draws_unseen).batch(2)
    assert all(map(equal, definition, definition))


def test_generators_are_put_back():
    before = global_state()
    with as_before():
        random.random()
        numpy.random.rand()
        torch.rand(1)
    assert global_state() == before


def test_rng_is_given_by_name():
    assert wants_rng(noise)
    assert not wants_rng(square)
    assert make_rng(3).random() == make_rng(3).random() != make_rng(4).random()


def test_one_thread_is_for_this_thread_only():
    before = torch.get_num_threads()
    with one_thread():
        pass
    assert torch.get_num_threads() == before
