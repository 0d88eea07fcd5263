"""What became of a fused function, in words: loops, bytes, back ends, and what NumPy was asked."""

import math
from typing import Any

from dovetail.frame.c_source import describe
from dovetail.frame.kernels import Kernel
from dovetail.frame.loops import Loop
from dovetail.frame.operations import OPERATIONS


def explain_fused(name: str, traced: Any) -> str:
    """A text for people, of what a function became at its last call."""
    if traced is None:
        return f"{name}: not called yet"
    if traced.mode != "loops":
        how = {"lazy": "runs each time, on lazy arrays", "plain": "is called as it is"}[traced.mode]
        return "\n".join([f"{name}: {how}", *(f"  because {reason}" for reason in dict.fromkeys(traced.reasons))])
    loops = traced.prepared.plan.loops()
    operations = sum(len(loop.body) + len(loop.reductions) for loop in loops)
    lines = [f"{name}: {_count(operations, 'operation')} in {_count(len(loops), 'loop')}"]
    for number, loop in enumerate(loops, 1):
        lines += _explain_loop(number, loop, traced.prepared.kernels[loop])
    if traced.calls:
        lines.append(f"  NumPy itself, between loops: {', '.join(dict.fromkeys(traced.calls))}")
    if traced.seconds:
        before = f"{traced.predicted_seconds:.3g} s predicted, " if traced.predicted_seconds else ""
        lines.append(f"  last call: {before}{traced.seconds:.3g} s measured")
    return "\n".join(lines)


def _explain_loop(number: int, loop: Loop, kernel: Kernel) -> list[str]:
    before, after = bytes_per_element(loop)
    ulp = max((OPERATIONS[node.name].ulp for node in loop.body), default=0.5)
    state = {
        "ready": f"compiled C, ready after {kernel.compile_seconds:.2g} s",
        "compiling": "NumPy in blocks, while it is compiled",
        "failed": "NumPy in blocks, since there is no compiler that could compile it",
    }[kernel.state]
    return [
        f"  loop {number} over {_shape(loop)}: {before} bytes an element as written, {after} fused",
        f"    back end: {state}; each operation within {ulp:g} ulp",
        *([f"    place: {kernel.place}; {_describe_places(kernel)}"] if kernel.places else []),
        *(f"    {line}" for line in describe(loop)),
    ]


def _describe_places(kernel: Kernel) -> str:
    """The seconds at each place, by the size that they were measured at."""
    return "; ".join(
        f"at {2 ** (bits - 1):,} elements and more {seconds.describe()}"
        for bits, seconds in sorted(kernel.places.items())
    )


def bytes_per_element(loop: Loop) -> tuple[int, int]:
    """Bytes that are read and written for each element, by one operation after another and by the loop."""
    size = max(1, math.prod(loop.shape))
    share = [node.dtype.itemsize * (math.prod(node.shape) / size) for node in loop.inputs]
    fused = sum(share) + sum(node.dtype.itemsize for node in loop.outputs)
    whole = [node for node in loop.body if node.shape == loop.shape]
    apart = sum(
        node.dtype.itemsize + sum(a.dtype.itemsize for a in node.args if a.shape == loop.shape) for node in whole
    )
    return round(apart + sum(node.args[0].dtype.itemsize for node in loop.reductions)), round(fused)


def _shape(loop: Loop) -> str:
    kind = "one number" if not loop.shape else f"{len(loop.shape)} dimension{'s' * (len(loop.shape) > 1)}"
    return f"{kind}{', reduced along the last' if loop.rows else ''}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
