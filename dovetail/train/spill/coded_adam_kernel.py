"""The host's own Adam and AdamW with moments or weights in fewer bits, as `adamw_kernel` is with exact ones. The same
bits as plain torch gives (`train/numeric/coded_optimizers`)."""

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dovetail.native import WIDEST_VECTORS
from dovetail.train.numeric.coded_optimizers import WEIGHT, CodedAdam, Slots, key_of, local, prepare_slots
from dovetail.train.spill.adamw_kernel import ThreadPool, load_kernel

_SOURCE = Path(__file__).with_name("coded_adam.c")
# Vectors, and every operation as it is written.
_FLAGS = ("-pthread", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", *WIDEST_VECTORS)
_NUMBERS = ("kept", "decay", "beta1", "new1", "beta2", "new2", "step_size", "inverse_root", "epsilon")


class CodedStretch(ctypes.Structure):
    """The update of one parameter, as the kernel takes it. Holds on to the tensors that it points into."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "mean", "square", "mean_scale", "square_scale")),
        *((name, ctypes.c_void_p) for name in ("gradients", "travel")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("bits", "half_weights", "half_gradients", "decoupled")),
        *((name, ctypes.c_uint32) for name in ("weight_key", "mean_key", "square_key")),
        *((name, ctypes.c_float) for name in ("scale", *_NUMBERS)),
    )
    tensors: tuple[torch.Tensor | None, ...]


@functools.cache
def load() -> ctypes.CDLL | None:
    """The compiled kernel, or None without a compiler."""
    return load_kernel(_SOURCE, _FLAGS)


def suits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the kernel does what this optimizer does.

    >>> suits(torch.optim.AdamW([torch.zeros(1)]))
    False
    """
    return isinstance(optimizer, CodedAdam)


def stretch_of(
    optimizer: CodedAdam,
    master: torch.Tensor,
    slots: dict[str, Any],
    *,
    gradient: torch.Tensor,
    travel: torch.Tensor | None,
    options: Mapping[str, Any],
    scale: float,
    zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
) -> CodedStretch:
    """One update of one parameter for a thread pool; `slots` is its state, made of `zeros` where there is none yet, and
    counts this step already."""
    prepare_slots(slots, master, optimizer.moments, zeros)
    slots["step"] += 1
    numbers = optimizer.numbers(options, int(slots["step"]))
    return _stretch(master, gradient, slots, numbers, travel=travel, scale=scale)


def update(
    weights: torch.Tensor, gradients: torch.Tensor, slots: Slots, numbers: Mapping[str, float], first: int
) -> None:
    """One step of one parameter, or of its part from a place on, by as many threads as torch has here."""
    _pool(torch.get_num_threads()).update([_stretch(weights, gradients, slots, numbers, first=first)])


@functools.cache
def _pool(threads: int) -> ThreadPool:
    return ThreadPool(threads, library=load())


def _stretch(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    slots: Slots,
    numbers: Mapping[str, float],
    *,
    travel: torch.Tensor | None = None,
    scale: float = 1.0,
    first: int = 0,
) -> CodedStretch:
    moments = [slots.get(f"{slot}{end}") for end in ("", "_scale") for slot in ("exp_avg", "exp_avg_sq")]
    mean, square, mean_scale, square_scale = (None if each is None else local(each) for each in moments)
    tensors = (weights, mean, square, mean_scale, square_scale, gradients, travel)
    assert mean is not None
    made = CodedStretch(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        weights.numel(),
        8 * mean.element_size(),
        int(weights.dtype == torch.bfloat16),
        int(gradients.dtype == torch.bfloat16),
        int(numbers["decoupled"]),
        *((key_of(slots, name) + first) & 0xFFFFFFFF for name in (WEIGHT, "exp_avg", "exp_avg_sq")),
        scale,
        *(numbers[name] for name in _NUMBERS),
    )
    made.tensors = tensors
    return made
