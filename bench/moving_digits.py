"""Handwritten digits that move: the models of `recipes/digits.py`, trained on pictures of which each is moved by up to
a cell in both directions and has noise of its own, drawn anew for every batch, and judged on such pictures.
"""

import dataclasses
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, default_collate

import dovetail as dt

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
import digits as recipe  # found by the line before

NOISE = 0.1


def move(images: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """These pictures, each moved, and noisy."""
    count = len(images)
    down, right = torch.randint(3, (2, count, 1, 1), generator=generator)
    rows, columns = torch.arange(8).view(1, 8, 1) + down, torch.arange(8).view(1, 1, 8) + right
    padded = torch.nn.functional.pad(images[:, 0], (1, 1, 1, 1))
    moved = padded[torch.arange(count).view(-1, 1, 1), rows, columns].unsqueeze(1)
    return moved + NOISE * torch.randn(moved.shape, generator=generator)


def draw(count: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many of the pictures that no model is trained on, each moved, and what they show."""
    _, (images, labels) = recipe._data()
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(images), (count,), generator=generator)
    return move(images[which], generator), labels[which]


def moving(kind: str = "cnn", size: int = 16, learning_rate: float = 2e-3, seed: int = 0) -> dt.Training:
    """A model of the recipe, by the name of its function, trained and judged on pictures that move."""
    train, _ = recipe._data()
    held_out = draw(4000, seed=7)
    return dataclasses.replace(
        getattr(recipe, kind)(size, learning_rate=learning_rate),
        batches=DataLoader(train, batch_size=recipe.BATCH, shuffle=True, drop_last=True, collate_fn=_moved),
        evaluate=lambda model: recipe._evaluate(model, *held_out),
        evaluate_every=220,
    )


def _moved(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    images, labels = default_collate(rows)
    return [move(images), labels]
