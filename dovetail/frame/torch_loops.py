"""A loop as a function on torch's tensors: what a device computes. Knows no C, and imports torch when it is asked.

Only what gives NumPy's answers there is taken: whole numbers are neither divided nor made of floats, since what becomes
of zero and of what is out of range differs on a device. A device's own functions are within 4 units in the last
place of the true value (CUDA's tables say 2 for doubles).
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy

from dovetail.frame.interpreter import accumulator
from dovetail.frame.loops import Loop
from dovetail.frame.nodes import FrameNode
from dovetail.frame.operations import OPERATIONS

_TYPES = {"?": "bool", "b": "int8", "h": "int16", "i": "int32", "l": "int64", "q": "int64", "B": "uint8",
          "f": "float32", "d": "float64"}  # fmt: skip
_WHOLE = {"add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "where", "cast"}
_NOT_THERE = {"floor_divide", "remainder", "sign"}
_REDUCTIONS = {"sum", "mean", "min", "max", "any", "all"}


@functools.lru_cache(maxsize=1024)
def can_be_torchs(loop: Loop) -> bool:
    """Whether a device gives NumPy's answers for all operations of a loop.

    >>> from dovetail.frame.loops import plan_loops
    >>> from dovetail.frame.nodes import input_node, map_node
    >>> x, n = input_node(numpy.zeros(3)), input_node(numpy.arange(3))
    >>> floats, whole = map_node("sin", numpy.sin, (x,)), map_node("floor_divide", numpy.floor_divide, (n, n))
    >>> [can_be_torchs(plan_loops([node]).loops()[0]) for node in (floats, whole)]
    [True, False]
    """
    nodes = [*loop.inputs, *loop.body]
    return (
        all(node.dtype.char in _TYPES for node in nodes)
        and all(map(_is_known, loop.body))
        and all(node.name in _REDUCTIONS for node in loop.reductions)
        and not loop.kept
    )


def _is_known(node: FrameNode) -> bool:
    if node.name in _NOT_THERE or not (OPERATIONS[node.name].torch or node.name == "cast"):
        return False
    of = node.args[-1].dtype.kind
    if node.name == "cast":
        return not (of == "f" and node.dtype.kind in "iu")
    return of == "f" or node.dtype.kind == "b" or node.name in _WHOLE


class TorchLoop:
    """A loop on tensors: called with its inputs, cut to some rows, it gives its outputs and what these rows add to each
    of its reductions."""

    def __init__(self, loop: Loop, numbers: Sequence[float], row_shape: tuple[int, ...]) -> None:
        self._loop, self._numbers, self._row_shape = loop, numbers, row_shape
        self._known: dict[FrameNode, Any] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs first; each reduction with one row more, so that rows of pieces can be put together."""
        rows = max(len(each) if each.dim() else 1 for each in inputs)
        shape = (rows, *self._row_shape)
        self._known = self._known or self._send_numbers(inputs[0].device)
        values: dict[FrameNode, Any] = dict(zip(self._loop.inputs, inputs, strict=True)) | self._known
        for node in self._loop.body:
            values[node] = _apply(node, [values[arg] for arg in node.args])
        outputs = tuple(values[node].expand(shape) for node in self._loop.outputs)
        return (*outputs, *(_reduce(node, values[node.args[0]].expand(shape)) for node in self._loop.reductions))

    def _send_numbers(self, device: Any) -> dict[FrameNode, Any]:
        """Numbers and constants on the device: sent once, since each waits there for the piece before it."""
        import torch

        given = dict(zip(self._loop.numbers, self._numbers, strict=True))
        given |= {arg: arg.value for node in self._loop.body for arg in node.args if arg.kind == "constant"}
        return {n: torch.as_tensor(value, dtype=_torch_type(n.dtype), device=device) for n, value in given.items()}


def _torch_type(dtype: numpy.dtype) -> Any:
    import torch

    return getattr(torch, _TYPES[dtype.char])


def _apply(node: FrameNode, args: list[Any]) -> Any:
    import torch

    dtype = _torch_type(node.dtype)
    if node.name == "cast":
        return args[0].to(dtype)
    if node.dtype.kind == "b" and node.name in ("add", "multiply"):
        return torch.logical_or(*args) if node.name == "add" else torch.logical_and(*args)
    return getattr(torch, OPERATIONS[node.name].torch)(*args).to(dtype)


def _reduce(node: FrameNode, values: Any) -> Any:
    """What these rows add: along the last axis a number for each, or else one for all."""
    axis = -1 if node.axis is not None else tuple(range(values.dim()))
    dtype = _torch_type(accumulator(node))
    if node.name in ("sum", "mean"):
        found = values.sum(dim=axis, dtype=dtype)
    elif node.name in ("any", "all"):
        found = getattr(values, node.name)() if node.axis is None else getattr(values, node.name)(dim=-1)
    else:
        found = getattr(values, "a" + node.name)(dim=axis)
    return found if node.axis is not None else found.reshape(1)
