"""The host's own Adam and AdamW: compiled once a process where there is a compiler, absent where there is none."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_SOURCE = Path(__file__).with_name("adamw.c")
# What vectors need of -ffast-math, and not the whole: linked into a library, that makes the process take small numbers
# for zero from then on, in everything it computes. Infinities and NaN are kept.
_FLAGS = (
    *("-O3", "-march=native", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffp-contract=fast"),
)
CHUNK = 1 << 21
"""Elements of one call: long enough for Python's part to vanish, short enough for sixteen threads to end together."""


def suits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the kernel does what this optimizer does.

    >>> suits(torch.optim.AdamW([torch.zeros(1)])), suits(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    (True, False)
    """
    plain = all(
        not (group.get("amsgrad") or group.get("maximize") or group.get("differentiable") or group.get("capturable"))
        for group in optimizer.param_groups
    )
    floats = all(p.dtype == torch.float32 for group in optimizer.param_groups for p in group["params"])
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and plain and floats


@functools.cache
def load() -> Callable[..., None] | None:
    """The compiled kernel, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:  # a loaded library outlives its file
        library = Path(folder) / "adamw.so"
        command = [compiler, *_FLAGS, "-o", str(library), str(_SOURCE), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            function = ctypes.CDLL(str(library)).adamw
        except (OSError, subprocess.SubprocessError):
            return None
    function.restype = None
    pointers, numbers = [ctypes.c_void_p] * 5, [ctypes.c_float] * 8
    function.argtypes = [*pointers, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, *numbers]
    found: Callable[..., None] = function
    return found


def chunks(
    master: torch.Tensor,
    slots: dict[str, Any],
    *,
    gradient: torch.Tensor,
    travel: torch.Tensor | None,
    options: Mapping[str, Any],
    decoupled: bool,
    scale: float,
) -> list[Callable[[], None]]:
    """One update of one parameter as calls that may run on any threads at once; `slots` is torch's state of it."""
    kernel = load()
    assert kernel is not None, "ask load() before"
    if not slots:
        slots |= {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }
    slots["step"] += 1
    step, (beta1, beta2) = float(slots["step"]), options["betas"]
    rate, decay = float(options["lr"]), float(options["weight_decay"])
    numbers = (scale, rate, beta1, beta2, options["eps"], decay, rate / (1 - beta1**step), (1 - beta2**step) ** -0.5)
    tensors = (master, slots["exp_avg"], slots["exp_avg_sq"], gradient, travel)
    half = int(gradient.dtype == torch.bfloat16)

    def run(start: int) -> None:
        count = min(CHUNK, master.numel() - start)
        places = [None if t is None else t.data_ptr() + start * t.element_size() for t in tensors]
        kernel(*places, count, half, int(decoupled), *numbers)

    return [functools.partial(run, start) for start in range(0, master.numel(), CHUNK)]
