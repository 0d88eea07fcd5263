"""Small trainings that the tests of this folder measure."""

import torch
from torch import nn

from dovetail.train.base import Training


class Net(nn.Module):
    """A chain of linear layers."""

    def __init__(self, width=8, depth=2):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.body:
            x = layer(x).relu()
        return self.head(x)


def mean_square(model, batch):
    return model(batch["x"]).square().mean()


def training(
    *, width=8, depth=2, learning_rate=0.1, seed=0, optimizer=torch.optim.AdamW, loss=mean_square, options=None, **rest
):
    torch.manual_seed(seed)
    model = Net(width, depth)
    return Training(
        model=model,
        batches=[{"x": torch.randn(16, 4)}, {"x": torch.randn(16, 4)}],
        optimizer=optimizer(model.parameters(), lr=learning_rate, **(options or {})),
        loss=loss,
        **rest,
    )


def of(model, loss=None, **rest):
    """A training around a model."""
    return Training(
        model=model,
        batches=[],
        loss=loss or (lambda model, batch: model(batch).square().mean()),
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad] or [nn.Parameter()], lr=0.1),
        **rest,
    )
