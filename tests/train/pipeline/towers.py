"""Programs for pipelines: enough layers for several stages, and everything a step can have. At the top of a module,
because the other ranks build them too."""

import functools

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
