"""Programs of orders for real workers."""

import time

import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import Training
from tests.train.pipeline import towers


def tower(microbatches=4):
    """A tower with everything."""
    return towers.tower(microbatches=microbatches, evaluates=True)


class Sifting(nn.Module):
    """Goes on with as many rows as have a positive first number."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = self.first(x)
        return self.third(self.second(x[x[:, 0] > 0]))


def sifting():
    """What crosses from the first stage to the second has another shape for every microbatch."""
    model = Sifting()
    return Training(
        model=model,
        batches=programs.pairs(6),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
        accumulate=3,
    )


def stalling(at=5):
    """The last stage's process goes on living in its step, and does nothing more."""
    training = towers.tower(microbatches=2)
    loss = training.loss

    def sleepy(model, batch):
        found = loss(model, batch)  # of the last stage only: elsewhere the loss ends at the model's call
        if sleepy.calls == 2 * at:
            time.sleep(600)
        sleepy.calls += 1  # where nobody looks for what a training changes
        return found

    sleepy.calls, training.loss = 0, sleepy
    return training
