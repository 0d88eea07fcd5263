"""A small model on three shards that lie on two nodes."""

import torch
from torch import nn

import dovetail as dt

STEPS = {"s0": 4, "s1": 6, "s2": 5}
NODES = {"s0": "n0", "s1": "n1", "s2": "n0"}


def read(place, seed):
    batches = torch.load(place)
    return batches[torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))]


def write_shards(folder):
    for number, (name, steps) in enumerate(STEPS.items()):
        torch.save(torch.randn(steps, 8, 4, generator=torch.Generator().manual_seed(number)), folder / name)


def small(folder, order="any", rate=0.01, seed=0) -> dt.Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    pieces = [
        dt.DataShard(name=name, path=f"{folder}/{name}", batches=steps, node=NODES[name])
        for name, steps in STEPS.items()
    ]
    return dt.Training(
        model=model,
        batches=dt.Shards(pieces, read=read, order=order, seed=seed),
        loss=lambda model, batch: (model(batch) - 1).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        evaluate=lambda model: {"norm": float(model[0].weight.norm())},
    )
