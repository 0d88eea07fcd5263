"""How many bytes an item holds. An estimate from above for what pipelines carry; objects of users count what is in
their fields."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy
import torch

_DEPTH = 8
# What a tensor or an array takes beside its numbers.
_HEADER_BYTES = 200
# What says itself how large it is. Numbers of NumPy are among them, for they are what small items are made of.
_PLAIN = {int, float, bool, complex, str, bytes, bytearray, type(None)} | set(numpy.sctypeDict.values())
_PLAIN -= {numpy.void, numpy.object_}


def item_bytes(value: Any) -> int:
    """The bytes that a value holds, those of the tensors, arrays, texts and containers in it included.

    >>> item_bytes(torch.zeros(1000)) >= 4000, item_bytes([b"x" * 1000] * 3) >= 3000
    (True, True)
    """
    return _bytes(value, _DEPTH)


def _bytes(value: Any, depth: int) -> int:
    """Called for each item that is read: what items mostly are made of comes first."""
    kind = type(value)
    if kind in _PLAIN:
        return sys.getsizeof(value)
    if kind is torch.Tensor or kind is numpy.ndarray:
        return int(value.nbytes) + _HEADER_BYTES
    if not depth:
        return sys.getsizeof(value, 64)
    if kind is tuple or kind is list or isinstance(value, list | tuple | set | frozenset):
        total = sys.getsizeof(value)
        for each in value:
            total += _bytes(each, depth - 1)
        return total
    if isinstance(value, torch.Tensor):
        return int(value.nbytes) + _HEADER_BYTES
    if isinstance(value, numpy.generic):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        pairs = sum(_bytes(key, depth - 1) + _bytes(each, depth - 1) for key, each in value.items())
        return sys.getsizeof(value, 64) + pairs
    return _object_bytes(value, depth)


def _object_bytes(value: Any, depth: int) -> int:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):  # memory views, Arrow tables, arrays of other libraries
        return size + _HEADER_BYTES
    # An image of Pillow, whose pixels are behind its fields.
    if hasattr(value, "getbands") and hasattr(value, "size"):
        width, height = value.size
        return int(width * height * max(3, len(value.getbands()))) + 1024
    fields = getattr(value, "__dict__", None)
    inner = sum(_bytes(each, depth - 1) for each in fields.values()) if isinstance(fields, dict) else 0
    return sys.getsizeof(value, 64) + inner
