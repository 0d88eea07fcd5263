"""A loop by NumPy itself, some thousand elements at a time: what passes from operation to operation stays in a cache.

It answers while the compiler runs and where there is none. Knows nothing of compiled code.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from dovetail.frame.loops import Loop
from dovetail.frame.nodes import FrameNode

_BLOCK = 8192
_REDUCERS = {"sum": numpy.add, "mean": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
             "any": numpy.logical_or, "all": numpy.logical_and}  # fmt: skip


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows of a shape, as many at a time as a block has elements."""
    if not shape:
        yield 0, 1
        return
    row = max(1, int(numpy.prod(shape[1:], dtype=int)))
    step = max(1, _BLOCK // row)
    yield from ((start, min(start + step, shape[0])) for start in range(0, shape[0], step))


def rows_of(array: numpy.ndarray, shape: tuple[int, ...], start: int, stop: int) -> numpy.ndarray:
    """An input's part of these rows, or the whole of one that is spread over them."""
    if not shape or array.ndim < len(shape) or array.shape[0] != shape[0]:
        return array
    return array[start:stop]


def interpret(
    loop: Loop,
    shape: tuple[int, ...],
    inputs: Sequence[numpy.ndarray],
    numbers: Sequence[float],
    outputs: Sequence[numpy.ndarray],
    start: int,
    stop: int,
    *,
    keep: Sequence[FrameNode] = (),
) -> list[Any]:
    """Compute some rows of the outputs; gives what these rows add to each reduction, or the values of `keep`."""
    values: dict[FrameNode, Any] = dict(zip(loop.numbers, map(numpy.float64, numbers), strict=True))
    values |= {node: rows_of(array, shape, start, stop) for node, array in zip(loop.inputs, inputs, strict=True)}
    for node in loop.body:
        values[node] = _apply(node, [arg.value if arg.kind == "constant" else values[arg] for arg in node.args])
    for node, output in zip(loop.outputs, outputs, strict=True):
        output[slice(start, stop) if shape else ()] = values[node]
    if keep:
        return [node.value if node.kind == "constant" else values[node] for node in keep]
    return [_reduce(node, values[node.args[0]], (stop - start, *shape[1:])) for node in loop.reductions]


def _apply(node: FrameNode, args: list[Any]) -> Any:
    if node.name == "cast":
        return numpy.asarray(args[0]).astype(node.dtype)
    if node.name == "where":
        return numpy.where(*args)
    if node.name == "erf":
        from scipy.special import erf  # type: ignore[import-untyped]

        return erf(*args)
    return getattr(numpy, node.name)(*args)


def _reduce(node: FrameNode, values: Any, shape: tuple[int, ...]) -> Any:
    whole = numpy.broadcast_to(values, shape)
    dtype = accumulator(node)
    return _REDUCERS[node.name].reduce(whole, axis=node.axis, dtype=dtype)


def accumulator(node: FrameNode) -> numpy.dtype:
    """The type in which partial results are kept: sums of floats in double precision."""
    return numpy.dtype("float64") if node.dtype.kind == "f" and node.name in ("sum", "mean", "prod") else node.dtype


def finish(loop: Loop, shape: tuple[int, ...], parts: Sequence[Sequence[numpy.ndarray]]) -> list[numpy.ndarray]:
    """The reductions, from what each block added, in order."""
    found = []
    for number, node in enumerate(loop.reductions):
        own = [part[number] for part in parts]
        if node.axis is not None:
            total = numpy.concatenate(own) if own else numpy.empty((0, *shape[1:-1]), accumulator(node))
        else:
            total = _REDUCERS[node.name].reduce(numpy.array(own, accumulator(node)), axis=None)
        if node.name == "mean":
            total = total / (shape[-1] if node.axis is not None else numpy.prod(shape, dtype=float))
        found.append(numpy.asarray(total).astype(node.dtype))
    return found
