"""Items count as light by what reading them takes and by how large they can be."""

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
