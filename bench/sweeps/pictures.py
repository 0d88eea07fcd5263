"""Networks over JPEG pictures: what reads them is the wall, or what learns from them is, by DOVETAIL_BENCH_PICTURES.

`light` and `heavy` are convolutional networks with batch norm that take less and more than reading does on one H200
with 16 cores; `large` is a network whose optimizer works on the host where the model is spilled; `mix` are two of which
reading is the wall and two of which it is not, for a machine with two cores. With DOVETAIL_BENCH_LOADER a `DataLoader`
with so many workers reads, and no feed.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it can be loaded from anywhere

from feed_pipelines import decode_picture, open_picture

import dovetail as dt

ROW = os.environ.get("DOVETAIL_BENCH_PICTURES", "mix")
STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "0"))
LOADER = os.environ.get("DOVETAIL_BENCH_LOADER", "")
ITEMS, LABELS = 100_000, 10


def label(picture, number):
    return torch.from_numpy(picture).permute(2, 0, 1), number % LABELS


def read(number):
    return label(decode_picture(open_picture(number)), int(number))


def make(number):
    """A picture that nobody has to decode."""
    return torch.full((3, 128, 128), int(number) % 251, dtype=torch.uint8), int(number) % LABELS


class Pictures(torch.utils.data.Dataset):
    """The same items for a loader."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, number):
        return read(number)


def batches_of(function, *, batch, seed):
    if LOADER:
        workers = int(LOADER)
        ahead = {"prefetch_factor": 4} if workers else {}
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(
            Pictures(),
            batch_size=batch,
            shuffle=True,
            generator=generator,
            num_workers=workers,
            pin_memory=True,
            **ahead,
        )
    return dt.feed(range(ITEMS), seed=seed).map(function).shuffle(1000).batch(batch)


def convolutions(width, depth):
    parts, channels = [], 3
    for number in range(depth):
        wide = width * 2 ** min(number, 2)
        parts += [
            nn.Conv2d(channels, wide, 3, stride=2 if number < 4 else 1, padding=1),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
        ]
        channels = wide
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(channels, LABELS))


def loss_of(model, batch):
    return functional.cross_entropy(model(batch[0].float() / 255), batch[1])


def network(width=16, depth=4, batch=64, reads=True, seed=0) -> dt.Training:
    model = convolutions(width, depth)
    return dt.Training(
        model=model,
        batches=batches_of(read if reads else make, batch=batch, seed=seed),
        loss=loss_of,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


def large(width=8192, depth=6, batch=1024, seed=0) -> dt.Training:
    middle = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    pooled = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(768, width))
    model = nn.Sequential(pooled, *middle, nn.Linear(width, LABELS))
    return dt.Training(
        model=model,
        batches=batches_of(read, batch=batch, seed=seed),
        loss=loss_of,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        precision="bf16" if torch.cuda.is_available() else "fp32",
    )


workload = {
    "light": lambda: dt.grid(network, width=[16], steps=STEPS or 1000, name="pictures"),
    "heavy": lambda: dt.grid(network, width=[384], depth=[8], steps=STEPS or 400, name="pictures"),
    "large": lambda: dt.grid(large, steps=STEPS or 60, name="pictures"),
    "mix": lambda: dt.workload(
        [
            *dt.grid(network, width=[8], batch=[32], seed=[0, 1], steps=STEPS or 60).tasks,
            *dt.grid(network, width=[24], depth=[5], batch=[32], reads=[False], seed=[0, 1], steps=STEPS or 60).tasks,
        ],
        name="pictures",
    ),
}[ROW]()
