"""Examples by number behind loaders and feeds, and batches that have none."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

import dovetail as dt
from dovetail.selection.examples import examples_of
from dovetail.vocabulary import ProgramError

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


@pytest.mark.parametrize(
    "batches",
    [
        DataLoader(DATA, batch_size=3, shuffle=True),
        DataLoader(Subset(DATA, range(10)), batch_size=3, drop_last=True),
        DataLoader(list(DATA), batch_size=3),
        dt.feed(DATA).map(lambda item: (item[0], item[1])).shuffle(10).batch(3),
        dt.feed(DATA).cache(memory_bytes=1000).batch(3, drop_last=True),
    ],
    ids=["rows", "subset", "items", "feed", "cached"],
)
def test_batches_of_any_examples(batches):
    examples = examples_of(batches)
    assert len(examples) == 10
    assert examples.batch_size == 3
    rows, labels = examples.read([7, 2, 2, 0])
    assert labels.tolist() == [7, 2, 2, 0]
    assert torch.equal(rows, DATA.tensors[0][labels])


def test_a_loaders_own_collation_is_used():
    examples = examples_of(DataLoader(DATA, batch_size=2, collate_fn=lambda items: len(items)))
    assert examples.read([1, 2, 3]) == 3


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([torch.ones(2)], "batches of type list have none.*Give Training.batches a DataLoader"),
        (DataLoader(Stream()), "a Stream gives its items in an order of its own"),
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), "whose WeightedRandomSampler does that"),
        (DataLoader(DATA, batch_sampler=[[1, 2]]), "whose list does that"),
        (DataLoader(DATA, batch_size=None), "whose SequentialSampler does that"),
        (dt.feed({1: 2}.keys()).batch(2), "the items of a stream of dict_keys have none"),
        (dt.feed(range(9)), "must put them into batches"),
        (dt.feed(range(9)).filter(bool).batch(2), "filters or skips some"),
    ],
)
def test_batches_without_numbers_are_refused(batches, words):
    with pytest.raises(ProgramError, match=words):
        examples_of(batches)


def test_a_sampler_of_ones_own_is_refused_by_its_name():
    class Balanced(BatchSampler):
        pass

    own = Balanced(range(10), batch_size=2, drop_last=False)
    with pytest.raises(ProgramError, match="whose Balanced does that"):
        examples_of(DataLoader(DATA, batch_sampler=own))
