"""Programs for pipelines: enough layers for several stages, and everything a step can have. At the top of a module,
because the other ranks build them too."""

import dataclasses
import functools
import random

import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import Training


def layers(*, dropout=0.2, width=8, blocks=4):
    """Eight layers that train, dropouts between."""
    inner = [
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(), nn.Dropout(dropout))
        for _ in range(blocks)
    ]
    return nn.Sequential(nn.Linear(4, width), *inner, nn.Linear(width, 1))


def tower(*, microbatches=4, clip_norm=0.1, optimizer="AdamW", dropout=0.2, precision="fp32", evaluates=False):
    """AdamW or SGD with momentum, a schedule, clipping, dropout; so many batches a step."""
    model = layers(dropout=dropout)
    options = {"lr": 1e-2} if optimizer == "AdamW" else {"lr": 1e-2, "momentum": 0.9}
    made = getattr(torch.optim, optimizer)(model.parameters(), **options)
    held_out = programs.pairs(1)[0]
    return Training(
        model=model,
        batches=programs.pairs(3 * microbatches + 1),
        loss=lambda model, batch: (programs.squared(model, batch), {"seen": len(batch[0])}),
        optimizer=made,
        schedule=torch.optim.lr_scheduler.StepLR(made, step_size=3, gamma=0.7),
        accumulate=microbatches,
        clip_norm=clip_norm,
        precision=precision,
        evaluate=(lambda model: {"loss": float(programs.squared(model, held_out))}) if evaluates else None,
    )


def of(**options):
    """A tower that other processes can build."""
    return functools.partial(tower, **options)


class Language(nn.Module):
    """Blocks between an embedding and the same weights as output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)


def language():
    """Tied weights, in the first stage and the last."""
    model = Language()
    return Training(
        model=model,
        batches=[torch.randint(7, (4, 6)) for _ in range(9)],
        loss=lambda model, words: nn.functional.cross_entropy(
            model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()
        ),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        accumulate=4,
        clip_norm=0.5,
    )


class Thrice(Language):
    """The embedding is read twice at the beginning, and once more in the middle, before it is the output layer."""

    def forward(self, words):
        x = self.embedding(words) + 0.5 * torch.tanh(self.embedding(words.flip(1)))
        for number, block in enumerate(self.blocks):
            x = x + torch.tanh(block(x))
            if number == 3:
                x = x + self.embedding((words + 1) % 7)
        return self.head(x)


def thrice():
    """Tied weights, of which one stage has several uses."""
    training = language()
    training.model.__class__ = Thrice
    return training


def noisy():
    """A loss that draws what it adds to the inputs, as diffusion does, and dropout."""

    def loss(model, batch):
        noise = torch.randn_like(batch[0])
        return (model(batch[0] + noise) - noise.mean(1, keepdim=True)).square().mean()

    return dataclasses.replace(tower(), loss=loss)


def late():
    """A loss that draws after the call."""

    def loss(model, batch):
        output = model(batch[0])
        return (output - torch.rand_like(output)).square().mean()

    return dataclasses.replace(tower(), loss=loss)


def unkeyed():
    """A loss that draws from Python's generator."""
    return dataclasses.replace(tower(), loss=lambda model, batch: model(batch[0]).mean() * random.random())
