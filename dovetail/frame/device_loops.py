"""Loops on a device: whether one is tried there, and how it is run there.

For each loop and class of sizes a few calls at each place are timed, all copies counted in, and from then on it runs
where it was fastest. Loops that the link alone would take longer for than the host are never sent.
"""

import math
import threading
from collections.abc import Sequence

import numpy

from dovetail.frame.device_link import LinkRates, is_cut_off, link_rates
from dovetail.frame.device_pieces import run_in_pieces
from dovetail.frame.interpreter import finish
from dovetail.frame.loops import Loop
from dovetail.frame.placement import PlaceSeconds
from dovetail.frame.torch_loops import TorchLoop, can_be_torchs

# A few launches take longer than the host takes for as many elements.
_LEAST_ELEMENTS = 1 << 16


def choose_place(
    loop: Loop, known: dict[int, PlaceSeconds], arrays: Sequence[numpy.ndarray], shape: tuple[int, ...]
) -> tuple[str, PlaceSeconds | None]:
    """`host` or `cuda`, and where the seconds that it takes there are to be noted, if anywhere.

    Threads other than the first are several at once, as a feed's; a device would be shared by all.
    """
    elements = math.prod(shape)
    if elements < _LEAST_ELEMENTS or not shape or threading.current_thread() is not threading.main_thread():
        return "host", None
    if is_cut_off():
        return "host", None
    if (last := known.get(elements.bit_length())) is not None and last.settled:  # to look again takes microseconds
        return last.settled, last if last.settled != "host" else None
    rates = link_rates()
    if rates is None or not can_be_torchs(loop) or not any(_has_rows(array, shape) for array in arrays):
        return "host", None
    seconds = known.setdefault(elements.bit_length(), PlaceSeconds())
    return seconds.choose(["host", "cuda"], {"cuda": _least_seconds(loop, arrays, elements, rates)}), seconds


def _least_seconds(loop: Loop, arrays: Sequence[numpy.ndarray], elements: int, rates: LinkRates) -> float:
    there = sum(array.nbytes for array in arrays)
    back = sum(node.dtype.itemsize for node in loop.outputs) * elements
    return rates.least_seconds(there, back, len(loop.body))


def run_on_device(
    loop: Loop,
    arrays: Sequence[numpy.ndarray],
    numbers: Sequence[float],
    shape: tuple[int, ...],
    *,
    device: str = "cuda",
    memory_bytes: int | None = None,
) -> list[numpy.ndarray]:
    """The outputs and then the reductions of one loop. Raises `DeviceFull` where there is no room even for pieces."""
    spread = [array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays]
    found = run_in_pieces(
        TorchLoop(loop, numbers, shape[1:]),
        spread,
        device=device,
        split=True,
        rows=shape[0],
        memory_bytes=memory_bytes,
    )
    outputs, partial = found[: len(loop.outputs)], found[len(loop.outputs) :]
    return [*outputs, *finish(loop, shape, _group_by_reduction(loop, partial))]


def _group_by_reduction(loop: Loop, partial: Sequence[numpy.ndarray]) -> list[list[numpy.ndarray]]:
    """What each piece added to each reduction, as `finish` takes it; along rows all pieces are one already."""
    if loop.rows:
        return [list(partial)]
    return [list(each) for each in zip(*partial, strict=True)]


def _has_rows(array: numpy.ndarray, shape: tuple[int, ...]) -> bool:
    return array.ndim == len(shape) and array.shape[0] == shape[0]
