"""A model whose steps sleep, so that any number of nodes may share this machine's cores; its weights are a metric."""

import time

import torch
from torch import nn

import dovetail as dt


def paced(seed: int = 0, seconds: float = 0.02) -> dt.Training:
    """A tower with dropout, which draws in every step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Linear(32, 1))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        return (model(batch) - 1).square().mean()

    return dt.Training(
        model=model,
        batches=[torch.randn(16, 8) for _ in range(20)],
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        evaluate=lambda model: {"norm": sum(float(each.norm()) for each in model.parameters())},
        evaluate_every=1 << 30,
    )
