"""Pictures as people read them: a loader with a worker process, augmentation per picture, batch normalisation."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dovetail as dt


class Pictures(Dataset):
    """Striped pictures, flipped and shifted at random as each is read."""

    def __init__(self, count: int = 512):
        draw = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (count,), generator=draw)
        waves = torch.linspace(0, 3.14, 24)[None, :] * (1 + self.labels[:, None])
        self.pictures = waves.sin()[:, None, None, :].expand(-1, 3, 24, -1) + torch.randn(
            count, 3, 24, 24, generator=draw
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[place]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        picture = picture.roll(int(torch.randint(-2, 3, ())), dims=-2)
        return (picture - picture.mean()) / picture.std(), self.labels[place]


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return F.relu(pictures + self.body(pictures))


def resnet(learning_rate=0.05, seed=0) -> dt.Training:
    """A residual net, its pictures read by a worker of the loader."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).append(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4)
    return dt.Training(
        model=model,
        batches=DataLoader(Pictures(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200),
    )


def _six(program, *, steps: int) -> dt.Workload:
    steps = int(os.environ.get("DOVETAIL_BENCH_STEPS", steps))
    return dt.grid(program, learning_rate=[3e-4, 1e-3, 3e-3], seed=[0, 1], steps=steps)


resnets = _six(resnet, steps=200)
