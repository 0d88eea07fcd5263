"""A tower with dropout, clipping, a schedule and AdamW, for two ranks: what pipelines are killed with."""

import torch
from torch import nn
from torch.nn import functional as F

import dovetail as dt


def tower(width: int = 64, rows: int = 32, microbatches: int = 4, seed: int = 0) -> dt.Training:
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(8)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return dt.Training(
        model=model,
        batches=[(torch.randn(rows, width), torch.randn(rows, width)) for _ in range(5 * microbatches)],
        loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9),
        accumulate=microbatches,
        clip_norm=0.5,
    )
