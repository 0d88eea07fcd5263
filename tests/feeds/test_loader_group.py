"""Loaders whose orders are equal are read once, and each gets what it would alone."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dovetail.feeds import Cursor, RunningLoader
from dovetail.feeds.loader_group import LoaderGroup
from dovetail.train.randomness import KeyedRandomness
from tests.feeds.feeds import same


class Rows(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((3,), float(index))


ROWS = Rows()


def loader():
    return DataLoader(ROWS, batch_size=3, shuffle=True)


def cursor(batches, seed):
    random = KeyedRandomness(torch.nn.Identity(), seed=seed, device=torch.device("cpu"))
    return Cursor(batches, before_draw=random.before_batch)


def taken(cursor, count):
    return [cursor.take(1)[0] for _ in range(count)]


@pytest.fixture
def group():
    loaders = [RunningLoader(loader()) for _ in range(3)]
    LoaderGroup(loaders)
    yield loaders
    for each in loaders:
        each.close()


def test_one_reads_for_all_whose_order_is_the_same(group):
    cursors = [cursor(each, seed=5) for each in group]
    expected = taken(cursor(loader(), seed=5), 16)  # epochs have seven batches
    for batch in expected:
        for each in cursors:
            assert same(each.take(1), [batch])
    assert [each.stats().batches for each in group] == [16, 0, 0]


def test_those_with_another_order_read_for_themselves(group):
    cursors = [cursor(each, seed=seed) for seed, each in enumerate(group)]
    expected = [taken(cursor(loader(), seed=seed), 16) for seed in range(3)]
    for number in range(16):
        for each, batches in zip(cursors, expected, strict=True):
            assert same(each.take(1), [batches[number]])
    assert [each.stats().batches for each in group] == [16, 16, 16]


def test_one_that_falls_behind_and_one_that_ends_are_not_waited_for(group):
    first, second, _ = (cursor(each, seed=5) for each in group)
    expected = taken(cursor(loader(), seed=5), 16)
    assert same(taken(first, 6), expected[:6])
    assert same(taken(second, 16), expected)
    assert same(taken(first, 10), expected[6:])


def test_those_that_go_on_from_the_same_place_are_read_once(group):
    expected = taken(cursor(loader(), seed=5), 16)
    first, second, _ = (cursor(each, seed=5) for each in group)
    before = cursor(loader(), seed=5)
    taken(before, 4)
    for each in (first, second):
        each.restore(before.state())
    for number in range(4, 16):
        assert same(first.take(1), [expected[number]])
        assert same(second.take(1), [expected[number]])
    assert group[1].stats().batches == 0
