"""The host's own Adam and AdamW: compiled once a process where there is a compiler, absent where there is none."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dovetail.native import load_library
from dovetail.vocabulary import DovetailError

_SOURCE = Path(__file__).with_name("adamw.c")
# What vectors need of -ffast-math, and not the whole: linked into a library, that makes the process take small numbers
# for zero from then on, in everything it computes. Infinities and NaN are kept.
_FLAGS = (
    *("-pthread", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffp-contract=fast"),
)


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
def load() -> ctypes.CDLL | None:
    """The compiled kernel, or None without a compiler."""
    return load_kernel(_SOURCE, _FLAGS)


def load_kernel(source: Path, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """A kernel with the pool of `update_pool.h`, or None without a compiler."""
    library = load_library(source, flags)
    if library is None:
        return None
    library.pool_start.restype = ctypes.c_void_p
    library.pool_start.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.pool_update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.pool_wait.argtypes = library.pool_stop.argtypes = [ctypes.c_void_p]
    library.pool_update.restype = library.pool_wait.restype = library.pool_stop.restype = None
    return library


class Stretch(ctypes.Structure):
    """The update of one parameter, as the kernel takes it. Holds on to the tensors that it points into."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "mean", "square", "gradients", "travel")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("half_gradients", "decoupled")),
        *(
            (name, ctypes.c_float)
            for name in ("scale", "rate", "beta1", "beta2", "epsilon", "decay", "step_size", "inverse_root")
        ),
    )
    tensors: tuple[torch.Tensor | None, ...]


def stretch_of(optimizer: torch.optim.Optimizer, master: torch.Tensor, slots: dict[str, Any], **how: Any) -> "Stretch":
    """One update of one parameter as this optimizer does it."""
    options = how["options"]
    decoupled = isinstance(optimizer, torch.optim.AdamW) or bool(options.get("decoupled_weight_decay"))
    return stretch(master, slots, decoupled=decoupled, **how)


def stretch(
    master: torch.Tensor,
    slots: dict[str, Any],
    *,
    gradient: torch.Tensor,
    travel: torch.Tensor | None,
    options: Mapping[str, Any],
    decoupled: bool,
    scale: float,
    zeros: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
) -> Stretch:
    """One update of one parameter for a thread pool; `slots` is torch's state of it, made of `zeros` where
    there is none yet, and counts this step already."""
    if not slots:
        slots |= {"step": torch.tensor(0.0), "exp_avg": zeros(master), "exp_avg_sq": zeros(master)}
    slots["step"] += 1
    step, (beta1, beta2) = float(slots["step"]), options["betas"]
    rate, decay = float(options["lr"]), float(options["weight_decay"])
    numbers = (scale, rate, beta1, beta2, options["eps"], decay, rate / (1 - beta1**step), (1 - beta2**step) ** -0.5)
    tensors = (master, slots["exp_avg"], slots["exp_avg_sq"], gradient, travel)
    places = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    half = int(gradient.dtype == torch.bfloat16)
    made = Stretch(*places, master.numel(), half, int(decoupled), *numbers)
    made.tensors = tensors
    return made


class ThreadPool:
    """Threads that share each update, bound to `cores` where these are given. One caller after another is served."""

    def __init__(self, threads: int, cores: Sequence[int] | None = None, *, library: ctypes.CDLL | None = None) -> None:
        library = library or load()
        assert library is not None, "ask load() before"
        self._library = library
        self._pool = library.pool_start(threads, (ctypes.c_int * threads)(*cores) if cores else None)
        if not self._pool:
            raise DovetailError(f"the host's updates must have threads of their own; {threads} could not be started.")

    def update(self, stretches: Sequence[Any]) -> tuple[float, float]:
        """Carry these out, all of the pool's own kernel; others may use the interpreter meanwhile. Gives from when
        until when they were."""
        assert self._pool, "a thread pool that was closed does nothing more"
        times = (ctypes.c_double * 2)()
        work = (type(stretches[0]) * len(stretches))(*stretches) if stretches else None
        self._library.pool_update(self._pool, work, len(stretches), times)
        return times[0], times[1]

    def wait(self) -> None:
        """Until what it carries out is nearly done, or there is nothing."""
        assert self._pool, "a thread pool that was closed does nothing more"
        self._library.pool_wait(self._pool)

    def close(self) -> None:
        """End the threads. May be called twice."""
        pool, self._pool = self._pool, None
        if pool:
            self._library.pool_stop(pool)
