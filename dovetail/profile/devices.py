"""How fast a kind of device multiplies matrices and moves memory, measured on one device of it.

On a CPU one device is one core, so one thread is measured, in single precision; on CUDA bfloat16, which is what
matrix units are for. Knows devices; knows nothing of models.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from dovetail.profile.clocks import clock_for, synchronize
from dovetail.vocabulary import Kind

_BUDGET_SECONDS = 0.4  # for each of the two rates
_LONG_ENOUGH_SECONDS = 2e-3  # a product this long hides what launching it takes
_CPU_COPY_BYTES = 64 << 20  # beyond any core's share of cache
_CUDA_COPY_BYTES = 512 << 20  # likewise


def measure_kind(kind: Kind, *, device: torch.device) -> Kind:
    """The kind with its rates measured on `device`, in about a second.

    >>> measured = measure_kind(Kind(name="cpu", processor="cpu"), device=torch.device("cpu"))
    >>> measured.matrix_flops_per_second > 0, measured.memory_bytes_per_second > 0
    (True, True)
    """
    if kind.processor != device.type:
        raise ValueError(f"device must be of the kind's processor {kind.processor!r}, got {str(device)!r}.")
    with _one_thread(device):
        return dataclasses.replace(
            kind,
            matrix_flops_per_second=_matrix_flops_per_second(device),
            memory_bytes_per_second=_memory_bytes_per_second(device),
        )


def median_seconds(action: Callable[[], object], *, device: torch.device, budget_seconds: float) -> float:
    """The median time of an action on a device, repeated at least thrice and until the budget is spent.

    >>> median_seconds(lambda: None, device=torch.device("cpu"), budget_seconds=0.0) >= 0
    True
    """
    action()
    timed: list[float] = []
    begin = time.perf_counter()
    while len(timed) < 3 or time.perf_counter() - begin < budget_seconds:
        timed.append(_seconds(action, device))
    return max(statistics.median(timed), 1e-9)  # a clock's tick, so that rates stay finite


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    clock = clock_for(device)
    synchronize(device)
    start = clock.mark()
    action()
    return clock.seconds(start, clock.mark())


@contextlib.contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _matrix_flops_per_second(device: torch.device) -> float:
    size, most = (512, 1024) if device.type == "cpu" else (1024, 8192)
    while size < most and _product_seconds(size, device, budget_seconds=0.0) < _LONG_ENOUGH_SECONDS:
        size *= 2
    return 2.0 * size**3 / _product_seconds(size, device, budget_seconds=_BUDGET_SECONDS)


def _product_seconds(size: int, device: torch.device, *, budget_seconds: float) -> float:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    # Random values: zeros draw less power, so a device runs them faster than it runs training.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return median_seconds(lambda: torch.mm(left, right, out=out), device=device, budget_seconds=budget_seconds)


def _memory_bytes_per_second(device: torch.device) -> float:
    size = _CPU_COPY_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_CUDA_COPY_BYTES, free // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device=device, budget_seconds=_BUDGET_SECONDS)
    return 2.0 * size / seconds  # read and written
