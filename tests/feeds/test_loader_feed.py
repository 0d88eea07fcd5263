"""A loader that workers read gives a cursor what the loader itself gives it, to the bit."""

import itertools
import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, get_worker_info

from dovetail.feeds import Cursor
from dovetail.feeds.loader_feed import FETCH, RunningLoader, explain_refusal
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.train.randomness import KeyedRandomness
from dovetail.vocabulary import FeedPlan, ProgramError, StagePlan
from tests.feeds.feeds import same

HIDDEN = {"draw": random.random}
DATA = TensorDataset(torch.arange(30.0).reshape(10, 3), torch.arange(10))


class Plain(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index


class FromTorch(Plain):
    def __getitem__(self, index):
        return torch.rand(3) + index, index


class FromPython(Plain):
    """Draws from Python's generator, but not for the first items."""

    def __getitem__(self, index):
        return torch.rand(3), (random.random() if index > 5 else 0.5)


class FromNumPy(Plain):
    def __getitem__(self, index):
        return numpy.random.rand(3) + index, index


class Quietly(Plain):
    """Draws where neither its code nor its first item shows it."""

    def __getitem__(self, index):
        return torch.tensor([HIDDEN["draw"]() if index > 5 else 0.5]), index


class Twos(Plain):
    def __getitems__(self, indices):
        return [torch.full((3,), 2.0 * index) for index in indices]


LOADERS = {
    "in order": lambda: DataLoader(DATA, batch_size=3),
    "shuffled": lambda: DataLoader(Plain(), batch_size=3, shuffle=True),
    "own generator": lambda: DataLoader(
        Plain(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(1), drop_last=True
    ),
    "weighted": lambda: DataLoader(Plain(), batch_size=4, sampler=WeightedRandomSampler(range(1, 11), num_samples=14)),
    "torch": lambda: DataLoader(FromTorch(), batch_size=3, shuffle=True),
    "python": lambda: DataLoader(FromPython(), batch_size=2, shuffle=True),
    "numpy": lambda: DataLoader(FromNumPy(), batch_size=2),
    "quietly": lambda: DataLoader(Quietly(), batch_size=2),
    "at once": lambda: DataLoader(Twos(), batch_size=3),
    "collate": lambda: DataLoader(Plain(), batch_size=3, collate_fn=lambda items: [each for each, _ in items]),
    "workers": lambda: DataLoader(Plain(), batch_size=3, shuffle=True, num_workers=2),
}


def plan(worker, workers):
    return FeedPlan(
        stages=(
            StagePlan(name="source", worker="thread", workers=1),
            StagePlan(name=FETCH, worker=worker, workers=workers),
        )
    )


def cursor(batches):
    """As a session has it."""
    return Cursor(
        batches, before_draw=KeyedRandomness(torch.nn.Identity(), seed=5, device=torch.device("cpu")).before_batch
    )


def taken(cursor, count):
    return [cursor.take(1)[0] for _ in range(count)]


@pytest.mark.process
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("workers", [1, 2])
def test_processes_give_what_the_loader_gives(name, workers):
    expected = taken(cursor(LOADERS[name]()), 14)
    with RunningLoader(LOADERS[name](), plan=plan("process", workers)) as running:
        assert same(taken(cursor(running), 14), expected)


@pytest.mark.parametrize("name", ["in order", "shuffled", "own generator", "weighted", "at once", "collate"])
def test_threads_give_what_the_loader_gives(name):
    expected = taken(cursor(LOADERS[name]()), 14)
    with RunningLoader(LOADERS[name](), plan=plan("thread", 3)) as running:
        assert same(taken(cursor(running), 14), expected)
        assert running.notes == ()


@pytest.mark.process
@pytest.mark.parametrize("name", ["shuffled", "own generator", "torch", "weighted"])
@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5, 9])
def test_positions_are_the_loaders_own(name, stop):
    expected = taken(cursor(LOADERS[name]()), 14)
    plainly = cursor(LOADERS[name]())
    taken(plainly, stop)
    with RunningLoader(LOADERS[name](), plan=plan("process", 2)) as running:
        resumed = cursor(running)
        resumed.restore(plainly.state())
        assert same(taken(resumed, 14 - stop), expected[stop:])
    with RunningLoader(LOADERS[name](), plan=plan("process", 1)) as running:
        by_workers = cursor(running)
        taken(by_workers, stop)
        back = cursor(LOADERS[name]())
        back.restore(by_workers.state())
        assert same(taken(back, 14 - stop), expected[stop:])


def test_going_on_does_not_read_what_was_passed():
    read = []

    class Noted(Plain):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            read.append(index)
            return index

    first = cursor(DataLoader(Noted(), batch_size=2))
    taken(first, 400)
    with RunningLoader(DataLoader(Noted(), batch_size=2), plan=plan("thread", 1)) as running:
        read.clear()
        resumed = cursor(running)
        resumed.restore(first.state())
        assert resumed.take(1)[0].tolist() == [800, 801]
    # But for the first ones, which tell whether the loader repeats itself.
    assert {index for index in read if index < 800} == {0, 1, 2, 3}


def test_models_train_the_same():
    def trained(batches):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        training = Training(
            model=model,
            batches=batches,
            loss=lambda model, batch: model(batch[0]).square().mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        )
        session = RESIDENT.open([SessionMember(training=training)], device=torch.device("cpu"), threads=1)
        for _ in range(9):
            session.advance()
        return list(session.state().tensors.values())

    loader = LOADERS["shuffled"]
    with RunningLoader(loader(), plan=plan("thread", 2)) as running:
        assert same(trained(running), trained(loader()))


class Streaming(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class Asking(Plain):
    def __getitem__(self, index):
        return index, get_worker_info() is None


class Carrying(Plain):
    def __init__(self):
        self.generator = random.Random(0)


class OwnLoader(DataLoader):
    pass


class EndlessOrder:
    def __iter__(self):
        return iter([[1], [2]])


class PythonOrder:
    def __iter__(self):
        order = list(range(10))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return 10


class Endless(torch.utils.data.Sampler):
    def __iter__(self):
        return itertools.cycle(range(2))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: [1, 2], "it is no DataLoader of torch's, but a list"),
        (lambda: OwnLoader(Plain()), "it is no DataLoader of torch's, but a OwnLoader"),
        (lambda: DataLoader(Streaming()), "a Streaming gives its items in an order of its own"),
        (lambda: DataLoader(Plain(), batch_size=None), r"it gives items and no batches \(batch_size=None\)"),
        (lambda: DataLoader(Plain(), batch_sampler=EndlessOrder()), "its sampler has no length"),
        (lambda: DataLoader(Plain(), num_workers=1, persistent_workers=True), r"\(persistent_workers\)"),
        (
            lambda: DataLoader(Plain(), num_workers=1, worker_init_fn=print),
            "its worker_init_fn is for workers of its own",
        ),
        (lambda: DataLoader(Carrying()), "its dataset carries a generator from item to item"),
        (lambda: DataLoader(Asking(), num_workers=1), r"which of the loader's workers reads it \(get_worker_info\)"),
        (lambda: DataLoader(FromTorch(), num_workers=1), "with num_workers=0 they do not"),
        (lambda: DataLoader(Plain(), sampler=Endless(), batch_size=2), "its sampler has no length"),
        (
            lambda: DataLoader(Plain(), sampler=PythonOrder()),
            "its PythonOrder may draw its order from Python's or NumPy's",
        ),
    ],
)
def test_loaders_that_are_left_alone(make, why):
    loader = make()
    with pytest.raises(ProgramError, match=f"must give its items when they are asked for; .*{why}"):
        RunningLoader(loader)
    assert explain_refusal(loader)


@pytest.mark.process
def test_a_loader_with_workers_whose_dataset_draws_unseen():
    loader = DataLoader(Quietly(), batch_size=2, num_workers=1)
    with (
        RunningLoader(loader, plan=plan("process", 1)) as running,
        pytest.raises(ProgramError, match=r"this one has drawn some. Draw from torch's, or use num_workers=0"),
    ):
        taken(cursor(running), 5)
