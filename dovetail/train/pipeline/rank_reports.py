"""What other ranks found in a step, on rank 0."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.train.pipeline.mail import Mail
from dovetail.train.ranks import Ranks
from dovetail.train.state import pack, unpack

Found = dict[int, tuple[torch.Tensor, Mapping[str, Any]]]


def tell(mine: Found, *, mail: Mail) -> None:
    """Send rank 0 what this rank found of a step, for `collect_losses`."""
    mail.settle()
    mail.write(0, json.dumps([[number, _encode(loss), _encode(dict(m))] for number, (loss, m) in mine.items()]))


def collect_losses(
    mine: Found, sources: Sequence[int], *, first: int, mail: Mail
) -> tuple[list[torch.Tensor], Mapping[str, Any]]:
    """On rank 0, the losses of a step's microbatches in order, and the last one's metrics. `sources` are the ranks that
    computed each of them, numbered from `first`."""
    found = dict(mine)
    for source in sorted(set(sources) - {0}):
        told = json.loads(mail.read(source))
        found |= {number: (_decode(loss), _decode(metrics)) for number, loss, metrics in told}
    losses = [found[first + place][0] for place in range(len(sources))]
    return losses, found[first + len(sources) - 1][1]


def gather_reports(mine: Any, *, ranks: Ranks, mail: Mail) -> list[Any]:
    """What each rank has, by rank, on rank 0; of no use on the others. It must be JSON."""
    if not ranks.leads:
        mail.settle()
        mail.write(0, json.dumps(mine))
        return []
    return [mine, *(json.loads(mail.read(source)) for source in range(1, ranks.size))]


def _encode(value: Any) -> Any:
    """A value as JSON; single numbers in tensors keep their type."""
    if isinstance(value, dict):
        return {"dict": {name: _encode(each) for name, each in value.items()}}
    if isinstance(value, torch.Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), pack(value.detach().item(), "", {})]}
    return {"plain": pack(value, "", {})}


def _decode(told: Any) -> Any:
    ((kind, value),) = told.items()
    if kind == "dict":
        return {name: _decode(each) for name, each in value.items()}
    if kind == "tensor":
        return torch.tensor(unpack(value[1], {}), dtype=getattr(torch, value[0]))
    return unpack(value, {})
