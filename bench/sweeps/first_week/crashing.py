"""Thirty programs of which four end their process in their first step: what a careless sweep brings."""

import os

import torch
from torch import nn

import dovetail as dt

STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "2000"))


def good(width=32, learning_rate=0.1, seed=0) -> dt.Training:
    """A small net."""
    return _training(nn.ReLU(), width, learning_rate, lambda loss: loss)


def bad(width=32, learning_rate=0.1, seed=0) -> dt.Training:
    """The same, but that it ends its process."""
    return _training(nn.Tanh(), width, learning_rate, lambda loss: os._exit(3))


def _training(activation, width, learning_rate, then) -> dt.Training:
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randn(32, 20, generator=draw), torch.randint(0, 3, (32,), generator=draw)) for _ in range(50)]
    model = nn.Sequential(nn.Linear(20, width), activation, nn.Linear(width, 3))
    return dt.Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: then(nn.functional.cross_entropy(model(batch[0]), batch[1])),
        optimizer=torch.optim.SGD(model.parameters(), lr=learning_rate),
    )


workload = dt.join(
    dt.grid(bad, width=[8, 16, 24, 40], steps=STEPS),
    dt.grid(good, learning_rate=[0.01 * (1 + number) for number in range(26)], steps=STEPS),
    name="crashing",
)
