import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from dovetail.feeds import Cursor, digest
from dovetail.testing.programs import Counting
from dovetail.train.randomness import reseed
from dovetail.vocabulary import ProgramError

DATA = TensorDataset(torch.arange(14))


class Noisy(torch.utils.data.Dataset):
    """Draws for every example, as augmentation does."""

    def __getitem__(self, index):
        return torch.rand(()) + index

    def __len__(self):
        return 14


class Given(torch.utils.data.IterableDataset):
    """Gives its examples, and draws for them from a generator of its own."""

    def __init__(self):
        self._generator = numpy.random.default_rng(5)

    def __iter__(self):
        return (torch.tensor(self._generator.random()) for _ in range(14))


class Augmented(Noisy):
    """Draws from a generator of its own, which is carried from epoch to epoch."""

    def __init__(self):
        self._generator = random.Random(2)

    def __getitem__(self, index):
        return torch.tensor(self._generator.random()) + index


class Shuffled:
    """An iterable of the user's own that carries a generator from epoch to epoch."""

    def __init__(self):
        self._generator = torch.Generator().manual_seed(3)

    def __iter__(self):
        return iter(torch.randperm(7, generator=self._generator))


FEEDS = {
    "list": lambda: [torch.tensor(n) for n in range(7)],
    "tuple": lambda: tuple(range(7)),
    "global": lambda: DataLoader(DATA, batch_size=2, shuffle=True),
    "generator": lambda: DataLoader(DATA, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "in order": lambda: DataLoader(DATA, batch_size=2),
    "noisy": lambda: DataLoader(Noisy(), batch_size=2, shuffle=True),
    "own": Shuffled,
    "given": lambda: DataLoader(Given(), batch_size=2),
    "augmented": lambda: DataLoader(Augmented(), batch_size=2, shuffle=True),
    "stateful": lambda: Counting([torch.tensor(n) for n in range(7)]),
}


def cursor_of(feed):
    return Cursor(FEEDS[feed](), before_draw=lambda epoch, index: reseed(0, "batch", epoch, index))


def digests(cursor, times, *, count=1):
    return [digest(cursor.take(count)) for _ in range(times)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 7, 8, 15])
@pytest.mark.parametrize("feed", sorted(FEEDS))
def test_it_goes_on_where_it_stood(feed, stop, count):
    whole = digests(cursor_of(feed), 18, count=count)
    first = cursor_of(feed)
    before = digests(first, stop, count=count)
    second = cursor_of(feed)
    second.restore(first.state())
    assert (second.epoch, second.index) == (first.epoch, first.index)
    assert before + digests(second, 18 - stop, count=count) == whole


@pytest.mark.parametrize("feed", ["global", "generator", "own", "stateful", "noisy"])
def test_epochs_differ_where_batches_are_shuffled(feed):
    cursor = cursor_of(feed)
    assert digests(cursor, 7) != digests(cursor, 7)


@pytest.mark.parametrize("feed", ["global", "generator", "noisy"])
def test_draws_of_others_change_nothing(feed):
    calm, disturbed = cursor_of(feed), cursor_of(feed)
    for _ in range(15):
        expected = digest(calm.take(1))
        torch.rand(3)
        assert digest(disturbed.take(1)) == expected


def test_what_is_left_of_an_epoch_is_dropped():
    cursor = Cursor(range(7), before_draw=lambda epoch, index: None)
    assert [cursor.take(3) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert cursor.epoch == 1


def test_a_generator_runs_once():
    cursor = Cursor((n for n in range(3)), before_draw=lambda epoch, index: None)
    cursor.take(3)
    with pytest.raises(ProgramError, match=r"epoch 1 gave 0. A generator runs once only: use a list, a DataLoader"):
        cursor.take(1)


def test_too_few_batches_for_a_step():
    with pytest.raises(ProgramError, match=r"at least 4 each time they are iterated; epoch 1 gave 3"):
        Cursor([1, 2, 3], before_draw=lambda epoch, index: None).take(4)


class Unseeded:
    """Shuffles by a generator that nobody seeded."""

    def __iter__(self):
        generator = torch.Generator()
        generator.seed()
        return iter(torch.randperm(1000, generator=generator))


def test_batches_that_do_not_repeat_are_noticed():
    first = Cursor(Unseeded(), before_draw=lambda epoch, index: None)
    first.take(3)
    second = Cursor(Unseeded(), before_draw=lambda epoch, index: None)
    with pytest.raises(ProgramError, match=r"must repeat themselves.*Seed their order from the task's seed"):
        second.restore(first.state())


def test_batches_that_became_fewer_are_noticed():
    first = Cursor([1, 2, 3], before_draw=lambda epoch, index: None)
    first.take(3)
    with pytest.raises(ProgramError, match="2 of 3 batches passed"):
        Cursor([1, 2], before_draw=lambda epoch, index: None).restore(first.state())


def test_passing_epochs_loads_no_data():
    class Costly(torch.utils.data.Dataset):
        loaded = 0

        def __getitem__(self, index):
            Costly.loaded += 1
            return index

        def __len__(self):
            return 8

    def loader():
        return DataLoader(Costly(), batch_size=2, shuffle=True)

    first = Cursor(loader(), before_draw=lambda epoch, index: reseed(epoch, index))
    first.take(4), first.take(4), first.take(1)
    Costly.loaded = 0
    Cursor(loader(), before_draw=lambda epoch, index: reseed(epoch, index)).restore(first.state())
    assert Costly.loaded == 2  # the batch of the epoch it stands in


leaves = st.integers() | st.text() | st.binary() | st.none() | st.booleans()
batches = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)


@settings(max_examples=50)
@given(batches)
def test_equal_batches_have_equal_digests(batch):
    assert digest(batch) == digest(batch)


def test_digests_see_values_shapes_and_dtypes():
    tensors = [torch.zeros(4), torch.zeros(2, 2), torch.ones(4), torch.zeros(4, dtype=torch.int32), torch.zeros(0)]
    tensors += [torch.zeros(4).bfloat16(), torch.zeros(4) > 1, torch.tensor(1.0), {"a": torch.zeros(4)}]
    assert len({digest(tensor) for tensor in tensors}) == len(tensors)
