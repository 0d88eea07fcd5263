"""A small model on three shards that lie on two nodes."""

import os

import torch
from torch import nn

import dovetail as dt

STEPS = {"s0": 4, "s1": 6, "s2": 5}
NODES = {"s0": "n0", "s1": "n1", "s2": "n0"}
ASKED = {"asked here": "n0", "asked there": "n1", "asked again": "n1"}


def read(place, seed):
    batches = torch.load(place.removeprefix("file://"))
    if "shards-copied" in place:
        with open(os.path.join(os.environ["HOP_READS"], "reads"), "a") as reads:
            reads.write(f"{place}\n")
    return batches[torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))]


def _place(path, copy):
    return {"url": f"file://{path}", "copy": True, "size_bytes": 1 << 40} if copy else {"path": path}


def write_shards(folder):
    for number, (name, steps) in enumerate(STEPS.items()):
        torch.save(torch.randn(steps, 8, 4, generator=torch.Generator().manual_seed(number)), folder / name)
    for number, name in enumerate(ASKED, start=10):
        torch.save(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(number)), folder / name)


def errors(model, batches):
    """Sums of floats, whose order counts."""
    found, count = 0.0, 0
    for batch in batches:
        found += float((model(batch) - 1).square().sum())
        count += len(batch)
    return {"error": (found, count)}


def small(folder, order="any", rate=0.01, seed=0, copy=False, asked=False, every=None) -> dt.Training:
    """With `copy`, the second shard is read by a URL, from a copy; if `asked`, it is evaluated on shards, too."""
    os.environ["HOP_READS"] = folder
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    pieces = [
        dt.DataShard(name=name, batches=steps, node=NODES[name], **_place(f"{folder}/{name}", copy and name == "s1"))
        for name, steps in STEPS.items()
    ]
    shards = [dt.DataShard(name=n, batches=3, node=node, path=f"{folder}/{n}") for n, node in ASKED.items()]
    evaluation = dt.ShardEvaluation(dt.Shards(shards, read=torch.load), errors)
    return dt.Training(
        model=model,
        batches=dt.Shards(pieces, read=read, order=order, seed=seed),
        loss=lambda model, batch: (model(batch) - 1).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        evaluate=evaluation if asked else lambda model: {"norm": float(model[0].weight.norm())},
        evaluate_every=every,
    )
