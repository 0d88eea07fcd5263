"""Values in lists, tuples and mappings: batches, what a module is called with, what it gives."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a nested value, in its order.

    >>> [len(tensor) for tensor in tensors_in({"a": [torch.ones(1), 2], "b": (torch.ones(3),)})]
    [1, 3]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
