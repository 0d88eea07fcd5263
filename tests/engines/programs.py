"""Programs for real workers: each does one thing that goes wrong, or tells what it saw."""

import contextlib
import functools
import hashlib
import math
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import numpy
import torch
from torch import nn

import dovetail as dt
from dovetail.feeds import feed
from dovetail.train import Scheduler, Training


def _training(loss, **options):
    model = nn.Linear(4, 1)
    options.setdefault("optimizer", torch.optim.SGD(model.parameters(), lr=0.01))
    return Training(model=model, batches=[torch.randn(8, 4) for _ in range(4)], loss=loss, **options)


def _square(model, batch):
    return model(batch).square().mean()


def steady():
    return _training(_square)


def paced(seed=0, seconds=0.01):
    """Waits in each step, so that any number of them may share a core; its weights are a metric."""
    torch.manual_seed(seed)

    def loss(model, batch):
        time.sleep(seconds)
        return _square(model, batch)

    return _training(loss, evaluate=lambda model: {"norm": float(model.weight.norm())}, evaluate_every=1 << 30)


def telling():
    """Reports its process and its threads as metrics."""
    return _training(_square, evaluate=lambda model: {"process": os.getpid(), "threads": torch.get_num_threads()})


def parental():
    """Starts a process and leaves it; its number is a metric."""
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    return _training(_square, evaluate=lambda model: {"child": child.pid})


HOARD = []


def hoarding(size):
    """Keeps so many bytes for good."""
    HOARD.append(torch.ones(size, dtype=torch.uint8))
    return _training(_square)


def unruly():
    """Leaves the process as no program should."""
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(7)
    training = _training(_square)
    with torch.enable_grad():
        return training


def exiting():
    print("these are my last words")
    os._exit(3)


def raising():
    raise LookupError("the data is not here")


def leaving():
    """Its evaluation exits, and would end the process."""
    return _training(_square, evaluate=lambda model: sys.exit("enough"), evaluate_every=2)


def greedy():
    def loss(model, batch):
        raise torch.OutOfMemoryError("tried to allocate 900 GiB")

    return _training(loss)


def diverging(at=7):
    def loss(model, batch):
        loss.calls += 1  # where nobody looks for what a training changes
        return _square(model, batch) * (math.nan if loss.calls >= at else 1.0)

    loss.calls = 0
    return _training(loss)


def misshapen():
    return _training(lambda model, batch: _square(model, batch[:, :3]))


def not_a_training():
    return 5


def tower(seed=0, width=16):
    """Several segments, dropout among them."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1)) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Training(
        model=model,
        batches=[torch.randn(8, width) for _ in range(4)],
        loss=_square,
        optimizer=optimizer,
        clip_norm=1.0,
        evaluate=lambda model: {"norm": float(next(model.parameters()).norm())},
        evaluate_every=3,
    )


def fickle(at=3):
    """Raises in its own code after some steps."""
    training = tower()

    def loss(model, batch):
        loss.calls += 1
        if loss.calls >= at:
            raise LookupError("a word was missing")
        return _square(model, batch)

    loss.calls, training.loss = 0, loss
    return training


def lopsided(at=3):
    """Raises after some steps where the rows of the second rank are, and nowhere else."""

    def loss(model, batch):
        loss.calls += 1
        if torch.distributed.get_rank() == 1 and loss.calls >= at + 6:  # the first two steps look at three parts more
            raise LookupError("a word was missing")
        return _square(model, batch)

    loss.calls = 0
    return _training(loss)


def contrasting():
    """A loss that is no mean over rows."""
    return _training(lambda model, batch: model(batch).logsumexp(0).mean())


def scripted(scores=(), keep_best=None, every=1, plateau=False):
    """Its first weight counts the steps, and its evaluation gives the score of each from a list."""
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    groups = [{"params": [weight], "lr": rate} for weight, rate in zip(_rows(model), (1.0, 0.5), strict=True)]
    optimizer = torch.optim.SGD(groups)
    rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5, min_lr=[1.0, 0.0])
    return Training(
        model=model,
        batches=[torch.ones(1, 1)] * 3,
        loss=lambda model, batch: model.rows[0].sum() + model.rows[1].sum(),
        optimizer=optimizer,
        evaluate=lambda model: {"score": scores[int(-model.rows[0].item())]},
        evaluate_every=every,
        keep_best=keep_best,
        schedules={"plateau": Scheduler(rates, metric="score")} if plateau else {},
    )


def sharded(places, scores):
    """The same, with its batches and its evaluation on shards."""
    training = scripted(scores, every=2, keep_best="score")
    pieces = [dt.DataShard(name=Path(place).name, path=place, batches=2) for place in places]
    training.batches = dt.Shards(pieces, read=lambda place: [torch.ones(1, 1)] * 2)

    def measure(model, batches):
        assert len(list(batches)) == 2
        return {"score": (scores[int(-model.rows[0].item())], 1)}

    training.evaluate = dt.ShardEvaluation(training.batches, measure)
    return training


def _rows(model):
    """Two weights of one number each, in place of the one that the model has."""
    del model.weight
    model.rows = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(2))
    return list(model.rows)


TASKS, OPTIONS = 0, {"rate": 0.01}


def leaking(seed=0):
    """Tells how many tasks it was built for in this process, by what it finds in its module."""
    global TASKS
    TASKS += 1
    OPTIONS["rate"] *= 2
    found = {"tasks": TASKS, "rate": OPTIONS["rate"]}
    return _training(_square, evaluate=lambda model: {**found, "now": TASKS})


def babbling():
    """Writes to every socket that it finds, its worker's among them."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                os.write(int(descriptor), b"this is no JSON\n")
    time.sleep(60)


def misnaming():
    """Names a metric by half of a character."""
    return _training(_square, evaluate=lambda model: {"half a \ud800": 1.0})


class _Slow:
    """Batches that take a while to come."""

    def __iter__(self):
        for _ in range(4):
            time.sleep(0.01)
            yield torch.ones(8, 4)


def hungry():
    """Waits for its data for most of the time."""
    training = _training(_square)
    training.batches = _Slow()
    return training


def _noisy(number, rng):
    return torch.from_numpy(rng.normal(size=4).astype("float32")) + number


def fed(plainly=False):
    """Reads a feed that shuffles and draws, or the very same batches, epoch after epoch, without one."""
    noise = feed(range(32)).map(_noisy).shuffle(8).batch(8)
    training = _training(_square)
    training.batches = _Epochs(noise) if plainly else noise
    return training


def _refuse(number):
    if number == 13:
        raise ValueError("no such picture")
    return _noisy(number, numpy.random.default_rng(number))


def fed_badly():
    """Reads a feed of which one item cannot be read."""
    training = _training(_square)
    training.batches = feed(range(32)).map(_refuse).batch(8)
    return training


def _hash(number):
    found = hashlib.sha256(bytes([number % 256]) * 8_000_000).digest()
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)[:4].float() / 255


def hashed():
    """Reads a feed whose items take several milliseconds of a core each."""
    training = _training(_square)
    training.batches = feed(range(100_000)).map(_hash).batch(8)
    return training


class _Epochs:
    def __init__(self, feed):
        self._feed, self._epoch = feed, -1

    def __iter__(self):
        self._epoch += 1
        return iter(list(self._feed.epoch(self._epoch)))


class Slow(torch.utils.data.Dataset):
    """Waits for each item, as one does for a disk far away."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(4e-3)
        return torch.full((4,), index / 64) + torch.arange(4.0) / 4


def loaded(shuffle=True, seed=0, shares=""):
    """Reads a loader, for which its steps wait."""
    training = _training(_square, shares=shares)
    training.batches = torch.utils.data.DataLoader(Slow(), batch_size=8, shuffle=shuffle)
    return training


class Noted(Slow):
    """Writes down which items were read."""

    def __init__(self, log):
        self.log = log

    def __getitem__(self, index):
        with open(self.log, "a") as file:
            file.write(f"{index}\n")
        return torch.full((4,), index / 64)


_common = functools.cache(Noted)


def alike(log, rate=0.01, shuffle=True, accumulate=1):
    """Reads a loader of a dataset that all tasks have in common."""
    training = _training(_square, accumulate=accumulate)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=rate)
    training.batches = torch.utils.data.DataLoader(_common(log), batch_size=4, shuffle=shuffle)
    return training


class Streaming(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(256.0).reshape(64, 4) / 256)


def streamed():
    """Reads a loader that gives its items in an order of its own."""
    training = _training(_square)
    training.batches = torch.utils.data.DataLoader(Streaming(), batch_size=8)
    return training


def quick():
    """Reads a loader of what is in memory."""
    training = _training(_square)
    training.batches = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8, shuffle=True)
    return training


def _note(item):
    log, number = item
    with open(log, "a") as file:
        file.write(f"{number}\n")
    return torch.full((4,), number / 100)


def staying():
    """Reads a feed whose stage cannot travel to a process."""
    lock = threading.Lock()

    def held(number):
        with lock:
            return torch.full((4,), number / 100)

    training = _training(_square)
    training.batches = feed(range(64)).map(held).batch(8)
    return training


def noted(log, seed=0, order=0, rate=0.01, shares="", accumulate=1):
    """Reads a feed that writes down which items it has read, in an order of its own."""
    training = _training(_square, accumulate=accumulate, shares=shares)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=rate)
    training.batches = feed([(log, number) for number in range(20_000)], seed=order).map(_note).batch(8)
    return training
