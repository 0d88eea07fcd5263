"""Plans are carried out: each loop by its kernel where that is ready, by the interpreter until then.

A loop that is being interpreted goes over to its kernel in the middle, once it is compiled. Knows no front end.
"""

import contextlib
import dataclasses
import functools
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

from dovetail.frame.device_loops import choose_place, run_on_device
from dovetail.frame.device_pieces import DeviceRefuses
from dovetail.frame.interpreter import blocks, finish, interpret, rows_of
from dovetail.frame.kernels import Kernel, kernel_of
from dovetail.frame.loops import Loop, LoopPlan, plan_loops
from dovetail.frame.nodes import FrameNode, broadcast

# Below this many elements threads cost more than they bring.
_ALONE = 65536


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PreparedPlan:
    """A plan and the kernels of its loops, which compile meanwhile."""

    plan: LoopPlan
    kernels: dict[Loop, Kernel]
    exact: bool = False
    """Whether the program looked at sizes, so that what calls give must have the very sizes it had then."""


def prepare(plan: LoopPlan, *, exact: bool = False) -> PreparedPlan:
    return PreparedPlan(plan, {loop: kernel_of(loop) for loop in plan.loops()}, exact)


def thread_count() -> int:
    """Threads of a loop: the cores this process may use, or one where the caller is itself one of several threads."""
    if threading.current_thread() is not threading.main_thread():
        return 1
    return _cores()


@functools.cache
def _cores() -> int:
    return int(os.environ.get("DOVETAIL_FRAME_THREADS") or len(os.sched_getaffinity(0)))


def compute(nodes: list[FrameNode]) -> list[numpy.ndarray]:
    """The values of these, now. What was computed is kept on the nodes, for whoever asks next."""
    wanted = [node for node in nodes if node.value is None]
    if wanted:
        plan = plan_loops(wanted, known=lambda node: node.value is not None)
        values = {node: node.value for node in plan.inputs}
        for node, value in zip(wanted, run_plan(prepare(plan), values), strict=True):
            node.value = value
    return [numpy.asarray(node.value) for node in nodes]


class ShapeChanged(Exception):
    """A call gave another type, or shapes that fit together otherwise, than when the plan was made."""


def run_plan(prepared: PreparedPlan, values: dict[FrameNode, Any]) -> list[Any]:
    """The plan's outputs for these values of its inputs, which are left in `values` with everything that is stored."""
    sizes = {0: 0, 1: 1}
    for node in prepared.plan.inputs:
        _require_sizes(node, numpy.shape(values[node]), sizes)
    for step in prepared.plan.steps:
        if isinstance(step, Loop):
            results = run_loop(step, prepared.kernels[step], [values[node] for node in step.inputs],
                               [float(values[node]) for node in step.numbers])  # fmt: skip
            values.update(zip((*step.outputs, *step.reductions), results, strict=True))
        else:
            values[step] = _call(step, values)
            _require_sizes(step, values[step].shape, {} if prepared.exact else sizes, exact=prepared.exact)
    found = [node.value if node.kind == "constant" else values[node] for node in prepared.plan.outputs]
    given: dict[FrameNode, None] = {}
    for number, node in enumerate(prepared.plan.outputs):  # equal values are computed once, and are arrays of their own
        if node in given and not node.is_leaf():
            found[number] = found[number].copy()
        given[node] = None
    return found


def _require_sizes(node: FrameNode, shape: tuple[int, ...], sizes: dict[int, int], *, exact: bool = False) -> None:
    """What had one size when the plan was made must have one size now, since it may be in one loop; and neither no
    element nor a single one may come or go. `sizes` is what has become of each size so far."""
    if exact and shape != node.shape:
        raise ShapeChanged(f"what {node.name} gives has another size than when its size was looked at")
    for before, size in zip(node.shape, shape, strict=True):
        if sizes.setdefault(before, size) != size or (size < 2 and before != size):
            raise ShapeChanged(f"the sizes of what {node.name} gives fit together otherwise than when it was traced")


def _call(step: FrameNode, values: dict[FrameNode, Any]) -> Any:
    assert step.function is not None
    args = [arg.value if arg.kind == "constant" else values[arg] for arg in step.args]
    with numpy.errstate(all="ignore"):
        found = numpy.asarray(step.function(*(each if numpy.ndim(each) else numpy.asarray(each)[()] for each in args)))
    if found.dtype != step.dtype or found.ndim != len(step.shape):
        raise ShapeChanged(f"{step.name} gives another type than when it was traced")
    return found


def run_loop(loop: Loop, kernel: Kernel, inputs: Sequence[Any], numbers: Sequence[float]) -> list[numpy.ndarray]:
    """The outputs and then the reductions of one loop."""
    arrays = [numpy.asarray(array) for array in inputs]
    shape = broadcast(array.shape for array in arrays) if arrays else ()
    if kernel.state == "ready" and 0 not in shape:
        return _run_where_fastest(loop, kernel, arrays, numbers, shape)
    outputs = [numpy.empty(shape, node.dtype) for node in loop.outputs]
    return [*outputs, *_interpret(loop, kernel, shape, arrays, numbers, outputs)]


def _run_where_fastest(
    loop: Loop, kernel: Kernel, arrays: list[numpy.ndarray], numbers: Sequence[float], shape: tuple[int, ...]
) -> list[numpy.ndarray]:
    kernel.place, known = choose_place(loop, kernel.places, arrays, shape)
    if known is None:
        return _run_compiled(loop, kernel, arrays, numbers, shape)
    began = time.perf_counter()
    try:
        run = run_on_device(loop, arrays, numbers, shape) if kernel.place == "cuda" else None
    except DeviceRefuses:
        known.give_up("cuda")
        kernel.place, run = "host", None
    found = run if run is not None else _run_compiled(loop, kernel, arrays, numbers, shape)
    known.add(kernel.place, time.perf_counter() - began)
    return found


def _run_compiled(
    loop: Loop, kernel: Kernel, arrays: list[numpy.ndarray], numbers: Sequence[float], shape: tuple[int, ...]
) -> list[numpy.ndarray]:
    outputs = [numpy.empty(shape, node.dtype) for node in loop.outputs]
    reduced = [numpy.empty(shape[:-1] if node.axis is not None else (), node.dtype) for node in loop.reductions]
    kernel.run([*arrays, *outputs, *reduced], numbers, shape, thread_count())
    return [*outputs, *reduced]


def _interpret(
    loop: Loop,
    kernel: Kernel,
    shape: tuple[int, ...],
    arrays: list[numpy.ndarray],
    numbers: Sequence[float],
    outputs: list[numpy.ndarray],
) -> list[numpy.ndarray]:
    def piece(bounds: tuple[int, int]) -> list[numpy.ndarray]:
        with numpy.errstate(all="ignore"):
            return interpret(loop, shape, arrays, numbers, outputs, *bounds)

    todo = list(blocks(shape))
    parts: list[list[numpy.ndarray]] = []
    threads = thread_count() if numpy.prod(shape, dtype=int) > _ALONE else 1
    with ThreadPoolExecutor(threads) if threads > 1 else contextlib.nullcontext() as pool:
        while len(parts) < len(todo):
            ahead = todo[len(parts) : len(parts) + 4 * threads]
            parts += list(pool.map(piece, ahead) if pool else map(piece, ahead))
            if kernel.state == "ready" and not loop.reductions and len(parts) < len(todo):
                start, stop = todo[len(parts)][0], todo[-1][1]
                rest = [rows_of(array, shape, start, stop) for array in arrays]
                views = [output[start:stop] for output in outputs]
                kernel.run([*rest, *views], numbers, (stop - start, *shape[1:]), thread_count())
                break
    return finish(loop, shape, parts)
