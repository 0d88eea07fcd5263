"""Six unlike models that read the same augmented images: making a batch takes longer than learning from it, and is done
once for all that run together.

`steps` is scaled by DOVETAIL_BENCH_STEPS, so that a smoke run is short.
"""

import os

import torch
from torch import nn
from torch.nn import functional

import dovetail as dt

STEPS = int(os.environ.get("DOVETAIL_BENCH_STEPS", "4000")) // 8
SIDE, BATCH = 24, 128


class Augmented:
    """Noisy images of ten patterns, each turned, scaled and moved by its own random transformation."""

    def __init__(self, *, seed: int, count: int = 200) -> None:
        self._seed, self._count = seed, count
        generator = torch.Generator().manual_seed(1234)
        self._patterns = torch.randn(10, 1, SIDE, SIDE, generator=generator)

    def __len__(self) -> int:
        return self._count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(self._count):
            labels = torch.randint(10, (BATCH,), generator=generator)
            turns = 0.3 * torch.randn(BATCH, 2, 3, generator=generator) + torch.eye(2, 3)
            grid = functional.affine_grid(turns, [BATCH, 1, SIDE, SIDE], align_corners=False)
            images = functional.grid_sample(self._patterns[labels], grid, mode="bicubic", align_corners=False)
            yield images + 0.1 * torch.randn(images.shape, generator=generator), labels


def reader(shape: str = "linear", width: int = 32, learning_rate: float = 1e-3, seed: int = 0) -> dt.Training:
    """A small classifier of these images."""
    torch.manual_seed(seed)
    pixels = SIDE * SIDE
    model = {
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, 10)),
        "narrow": lambda: nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 10)),
        "deep": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        ),
    }[shape]()
    return dt.Training(
        model=model,
        batches=Augmented(seed=seed),
        shares=f"augmented {seed}",
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate),
    )


workload = dt.grid(reader, shape=["linear", "narrow", "deep"], width=[32, 64], steps=STEPS, name="readers")
