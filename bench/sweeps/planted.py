"""Two hundred small tasks, of which those diverge that have a high learning rate and inputs that nobody normalised.

`steps` of each is read from DOVETAIL_BENCH_STEPS. The loss is a square, whose curvature is 8 for normalised inputs and
110 for others: plain gradient descent diverges where the rate is above 2 / curvature, at 0.25 and at 0.018.
"""

import os

import torch
from torch import nn

import dovetail as dt

SCALES = {"layer": 1.0, "none": 3.7}


def line(learning_rate: float = 0.01, norm: str = "layer", width: int = 4, seed: int = 0) -> dt.Training:
    model = nn.Linear(4, width, bias=False)
    inputs = torch.ones(8, 4) * SCALES[norm]

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - 1).square().sum(dim=1).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    return dt.Training(model=model, batches=[inputs] * 4, loss=loss, optimizer=optimizer)


workload = dt.grid(
    line,
    learning_rate=[0.001, 0.003, 0.01, 0.03, 0.1],
    norm=["none", "layer"],
    width=[2, 4, 8, 16],
    seed=[0, 1] if "DOVETAIL_BENCH_FEW" in os.environ else [0, 1, 2, 3, 4],
    steps=int(os.environ.get("DOVETAIL_BENCH_STEPS", "120")),
    name="planted",
)
