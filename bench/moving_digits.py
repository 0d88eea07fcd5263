"""Handwritten digits that move: the models of `recipes/digits.py`, and wider ones, trained on pictures of which each is
moved by up to a cell in both directions and has noise of its own, anew in every epoch, and judged on such pictures.
"""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import dovetail as dt

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
import digits as recipe  # noqa: E402  # found by the line before

BATCH, NOISE = 64, 0.1


def draw(images: torch.Tensor, labels: torch.Tensor, count: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many pictures, each moved and noisy, and what they show."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(images), (count,), generator=generator)
    down, right = torch.randint(3, (2, count, 1, 1), generator=generator)
    rows, columns = torch.arange(8).view(1, 8, 1) + down, torch.arange(8).view(1, 1, 8) + right
    padded = torch.nn.functional.pad(images[which, 0], (1, 1, 1, 1))
    moved = padded[torch.arange(count).view(-1, 1, 1), rows, columns].unsqueeze(1)
    return moved + NOISE * torch.randn(moved.shape, generator=generator), labels[which]


class MovingPictures:
    """As many pictures an epoch as there are to train on, in batches, drawn by seed and epoch."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, seed: int) -> None:
        self._images, self._labels, self._seed, self._epoch = images, labels, seed, 0

    def __len__(self) -> int:
        return len(self._images) // BATCH

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        images, labels = draw(self._images, self._labels, len(self) * BATCH, seed=1000 * self._seed + self._epoch)
        return (list(batch) for batch in zip(images.split(BATCH), labels.split(BATCH), strict=True))


def moving(kind: str = "cnn", size: int = 16, learning_rate: float = 2e-3, seed: int = 0) -> dt.Training:
    """A model of the recipe, by the name of its function, trained and judged on pictures that move."""
    train, (images, labels) = recipe._data()
    training = getattr(recipe, kind)(size, learning_rate=learning_rate)
    held_out = draw(images, labels, 4000, seed=7)
    return dataclasses.replace(
        training,
        batches=MovingPictures(*train.tensors, seed),
        evaluate=lambda model: recipe._evaluate(model, *held_out),
    )
