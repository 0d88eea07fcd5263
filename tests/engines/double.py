"""A program whose file sets things for the whole process as it is imported."""

import os

import torch
from torch import nn

import dovetail as dt

torch.set_default_dtype(torch.float64)
os.environ["DOUBLE_SAYS"] = "1"


def telling() -> dt.Training:
    """Says in its evaluation how many bits its weights have, and what is in the environment."""
    model = nn.Linear(2, 1)
    return dt.Training(
        model=model,
        batches=[torch.ones(4, 2)],
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        evaluate=lambda model: {"bits": torch.ones(1).element_size() * 8, "said": int(os.environ["DOUBLE_SAYS"])},
    )
