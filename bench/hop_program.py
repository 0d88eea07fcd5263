"""What `bench/hop.py` trains: a small model whose steps sleep, on shards that lie on nodes or behind a limited link.

Computing is slept, since the nodes of the bench share one machine's cores: a step takes as long as it says, on however
many nodes at once. Bytes are real.
"""

import io
import time

import torch
from limited_link import ask
from torch import nn

import dovetail as dt


class Wide(nn.Module):
    """So many parameters, of which a step uses all, at hardly any cost."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(parameters) * 0.01)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.table[: rows.shape[1]] + self.table.sum() * 1e-6


def read(place: str):
    """The batches of a shard, from this node's disk or through the link."""
    if place.startswith("limited://"):
        _, content = ask("get", place)
        return torch.load(io.BytesIO(content))["batches"]
    return torch.load(place, mmap=True)["batches"]  # what else is in it stays on the disk


def model(places, batches, step_seconds, parameters, size_bytes=0, rate=0.1, order="any", seed=0):
    """`places` are the shards' paths or URLs, each with the label of the node where it lies, if it lies on one."""
    torch.manual_seed(seed)
    wide = Wide(parameters)
    shards = [
        dt.DataShard(
            name=f"s{number}",
            batches=batches,
            node=node,
            size_bytes=size_bytes,
            **({"url": place} if place.startswith("limited://") else {"path": place}),
        )
        for number, (place, node) in enumerate(places)
    ]

    def loss(model, batch):
        time.sleep(step_seconds)
        return (model(batch) - 1.0).square().mean()

    return dt.Training(
        model=wide,
        batches=dt.Shards(shards, read=read, order=order, seed=seed),
        loss=loss,
        optimizer=torch.optim.SGD(wide.parameters(), lr=rate),
    )
