"""A model's buffers as they were at some moment."""

from collections.abc import Iterable

import torch
from torch import nn


class Buffers:
    """The buffers of some modules now, to be put back later.

    >>> norm = nn.BatchNorm1d(1)
    >>> before = Buffers([norm])
    >>> _ = norm(torch.ones(2, 1))
    >>> before.put_back()
    >>> norm.running_mean
    tensor([0.])
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._found = [
            (module._buffers, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def changed(self) -> list[str]:
        """The names, within their modules, of those that are other now."""
        return [n for place, n, old, value in self._found if place[n] is not old or not torch.equal(old, value)]

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were; one that was replaced is the old one again."""
        for place, name, buffer, value in self._found:
            place[name] = buffer.copy_(value)
