"""A program with three classes in the plane, some of them with wrong labels."""

import pytest

PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dovetail as dt


def points(count=90, wrong=9):
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    inputs = centres[labels] + 0.4 * torch.randn(count, 2, generator=generator)
    labels[:wrong] = (labels[:wrong] + 1) % 3
    return TensorDataset(inputs, labels)


def plane(count=90, wrong=9, feed=False, rate=0.1, seed=0):
    data = points(count, wrong)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return dt.Training(
        model=model,
        batches=dt.feed(data).shuffle(count).batch(10) if feed else DataLoader(data, batch_size=10, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, 10),
        evaluate=lambda model: {"nothing": 0.0},
    )
"""


@pytest.fixture
def plane(tmp_path):
    (tmp_path / "plane.py").write_text(PROGRAM)
    return f"{tmp_path / 'plane.py'}:plane"
