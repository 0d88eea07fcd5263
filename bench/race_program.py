"""What races in `bench/race.py`: a small network on synthetic images, whose step can be made slower and whose learning
faster by a known amount, and by nothing else."""

import time

import torch
from torch import nn
from torch.nn import functional as F

import dovetail as dt

CLASSES, SIDE, IMAGES = 10, 16, 500
EVALUATE_EVERY = 4


def images(count: int, key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of ten templates: nothing is downloaded, and every machine has the same."""
    templates = torch.randn(CLASSES, SIDE * SIDE, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(key)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return templates[labels] + 5.0 * torch.randn(count, SIDE * SIDE, generator=generator), labels


def net(rate: float = 0.02, pause: float = 0.0, seed: int = 0) -> dt.Training:
    """Plain SGD over all images at once, with steps so small that as many times the rate takes as many times fewer of
    them; `pause` are seconds that each step sleeps."""
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    held_out, answers = images(500, key=2)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        time.sleep(pause)
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        found = model(held_out.to(device)).argmax(dim=1).cpu()
        return {"accuracy": (found == answers).float().mean().item()}

    return dt.Training(
        model=model,
        batches=[images(IMAGES, key=1)],
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        evaluate=evaluate,
        evaluate_every=EVALUATE_EVERY,
    )
