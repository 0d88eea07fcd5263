"""What races in `bench/race.py`: a small network on synthetic images, whose step can be made slower and whose learning
faster by a known amount, and by nothing else."""

import functools
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


@functools.cache
def ticks_a_second() -> float:
    """How fast the clock of the accelerator ticks while it computes."""
    ticks = 100_000_000
    torch.cuda._sleep(ticks)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda._sleep(ticks)
    torch.cuda.synchronize()
    return ticks / (time.perf_counter() - began)


def net(rate: float = 0.02, pause: float = 0.0, seed: int = 0) -> dt.Training:
    """Plain SGD over all images at once, with steps so small that as many times the rate takes as many times fewer of
    them; `pause` are seconds that each step takes longer: a CPU sleeps, an accelerator counts its clock's ticks, in a
    captured step too."""
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    held_out, answers = images(500, key=2)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if batch[0].is_cuda:
            torch.cuda._sleep(int(pause * ticks_a_second()))
        else:
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
