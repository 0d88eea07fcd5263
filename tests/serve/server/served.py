"""A small sweep for the tests of the server."""

import torch
from torch import nn

import dovetail as dt

CENTRES = torch.tensor([[3.0, 0.0], [-3.0, 0.0]])


def rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=draw)
    return CENTRES[labels] + torch.randn(count, 2, generator=draw), labels


def classify(width=4, rate=0.01, seed=0):
    model = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    held_out = rows(2000, seed=1)

    def evaluate(model):
        return {"accuracy": (model(held_out[0]).argmax(1) == held_out[1]).float().mean().item() + width / 1e6}

    return dt.Training(
        model=model,
        batches=[list(rows(64, seed=2))],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        evaluate=evaluate,
        held_out=[rows(2000, seed=3)],
    )


workload = dt.grid(classify, width=[4, 1024], steps=40, name="served")
