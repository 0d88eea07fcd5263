"""Random search over small nets on a table."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import dovetail as dt


def small(width=32, depth=1, learning_rate=1e-2, dropout=0.0, seed=0) -> dt.Training:
    """A small net on a table."""
    layers: list[nn.Module] = [nn.Linear(20, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(width, 2))
    draw = torch.Generator().manual_seed(4)
    rows = torch.randn(512, 20, generator=draw)
    labels = (rows[:, 0] * rows[:, 1] > 0).long()
    return dt.Training(
        model=model,
        batches=DataLoader(list(zip(rows, labels, strict=True)), batch_size=64),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
        evaluate=lambda model: {
            "accuracy": float((model(rows).argmax(1) == (rows[:, 0] * rows[:, 1] > 0)).float().mean())
        },
        evaluate_every=100,
    )


def _search(count: int, steps: int = 300) -> dt.Workload:
    return dt.sample(
        small,
        count=count,
        width=dt.choice([16, 32, 64]),
        depth=dt.integers(1, 3),
        learning_rate=dt.log_uniform(1e-3, 1e-1),
        dropout=dt.uniform(0.0, 0.3),
        steps=int(os.environ.get("DOVETAIL_BENCH_STEPS", steps)),
        seed=0,
    )


search_100 = _search(100)
search_200 = _search(200, steps=500)  # about a second each
search_500 = _search(500, steps=500)
