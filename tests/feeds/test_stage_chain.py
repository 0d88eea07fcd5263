"""Items count as light by what reading them takes and by how large they can be."""

import numpy
import pytest
import torch

from dovetail.feeds.definition import feed
from dovetail.feeds.stage_chain import ItemRun, StageChain

ITEMS = 2048


def run(chain, *, begin=0):
    """Put items through all stages, as a worker does with a part of an epoch; whether they seemed light."""
    numbers = range(begin, begin + ITEMS)
    chain.run(ItemRun(0, numbers, numbers), 0, len(chain.stages), owns_generators=False)
    return chain.is_light


def test_items_that_a_filter_leaves_out_were_read_all_the_same():
    chain = StageChain(feed(range(1 << 20)).filter(lambda number: number % 500 == 0 and number < ITEMS))
    assert run(chain)
    assert run(chain)
    assert run(chain, begin=ITEMS), "none was kept, and they were as quick"


def test_of_items_that_are_all_left_out_nobody_knows_how_large_they_were():
    chain = StageChain(feed(range(1 << 20)).filter(lambda number: number < ITEMS).map(lambda number: torch.zeros(1)))
    assert not run(chain, begin=ITEMS)
    assert not run(chain)
    assert not run(chain, begin=ITEMS)


@pytest.mark.parametrize("value", [7, 7.0, 7j, True, numpy.float32(7), numpy.int64(7), numpy.bool_(True)], ids=type)
def test_numbers_are_light(value):
    chain = StageChain(feed(range(ITEMS)).map(lambda number: value))
    assert [run(chain) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(
    "value", [1 << 4096, numpy.str_("x"), numpy.bytes_(b"x"), numpy.void(b"x"), "x", (7,)], ids=type
)
def test_what_the_next_may_be_larger_than_is_not_light(value):
    chain = StageChain(feed(range(ITEMS)).map(lambda number: value))
    assert [run(chain) for _ in range(3)] == [False] * 3
