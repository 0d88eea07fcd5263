"""What a batch is made of, whatever it is made of: tensors in dicts, lists, tuples, records and objects.

Knows containers and tensors; knows nothing of models.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

_DEEPEST = 8  # deeper than any batch, and an end for objects that hold one another


def batch_bytes(batch: Any) -> int:
    """The bytes of every tensor and array in a batch.

    >>> batch_bytes({"x": torch.zeros(4, 2), "y": [torch.zeros(4, dtype=torch.int64)], "name": "a"})
    64
    """
    return sum(tensor.nbytes for tensor in tensors_in(batch, objects=True))


def structure(batch: Any, *, depth: int = 0) -> Any:
    """The shape of a batch as plain data: containers, shapes and types, but no values.

    >>> structure({"x": torch.zeros(4, 2), "y": ["a", "b"]})
    {'dict': [['x', ['float32', [4, 2]]], ['y', {'list': 2, 'each': 'str'}]]}
    """
    if isinstance(batch, torch.Tensor | numpy.ndarray):
        return [str(batch.dtype).removeprefix("torch."), list(batch.shape)]
    parts = None if depth >= _DEEPEST else _parts(batch, objects=True)
    if parts is None:
        return type(batch).__qualname__
    inner = [[key, structure(value, depth=depth + 1)] for key, value in parts]
    if isinstance(batch, list | tuple) and inner and all(item == inner[0][1] for _, item in inner):
        return {type(batch).__qualname__: len(inner), "each": inner[0][1]}
    return {type(batch).__qualname__: inner}


def tensors_in(tree: Any, *, objects: bool = False, depth: int = 0) -> Iterator[Any]:
    """Every tensor in nested containers and records; with `objects`, also arrays and what objects hold.

    >>> [tensor.shape[0] for tensor in tensors_in({"a": torch.zeros(1), "b": (torch.zeros(2), None)})]
    [1, 2]
    """
    if isinstance(tree, torch.Tensor) or (objects and isinstance(tree, numpy.ndarray)):
        yield tree
    elif depth < _DEEPEST:
        for _, value in _parts(tree, objects=objects) or ():
            yield from tensors_in(value, objects=objects, depth=depth + 1)


def _parts(tree: Any, *, objects: bool) -> list[tuple[str, Any]] | None:
    if isinstance(tree, Mapping):  # BatchEncoding and ModelOutput too
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [(str(number), value) for number, value in enumerate(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    if objects and hasattr(tree, "__dict__") and not callable(tree):
        return sorted(vars(tree).items())
    return None
