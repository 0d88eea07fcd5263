"""How fast a host updates parameters with AdamW while its device computes: the wall of spilled training.

Measured with the very code that spilling uses: its own kernel on all cores where there is a compiler, torch's fused
update where there is none. Knows a host; knows nothing of models.
"""

import contextlib
import functools
import time

import torch

from dovetail.train.spill import adamw_kernel as kernel

# Beyond any cache: 28 bytes each.
_PARAMETERS = 1 << 25
_BUDGET_SECONDS = 0.5


def measure_updates(*, threads: int) -> float:
    """How many parameters a second this host updates.

    >>> measure_updates(threads=1) > 1e6
    True
    """
    master, gradient = torch.zeros(_PARAMETERS), torch.ones(_PARAMETERS, dtype=torch.bfloat16)
    travel = torch.zeros_like(gradient)
    with contextlib.ExitStack() as stack:
        update = _with_torch
        if kernel.load() is not None:
            pool = kernel.ThreadPool(threads)
            stack.callback(pool.close)
            update = functools.partial(_with_kernel, pool)
        slots: dict[str, torch.Tensor] = {}
        update(master, slots, gradient, travel)  # touches all memory once
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < _BUDGET_SECONDS:
            update(master, slots, gradient, travel)
            count += 1
        return count * _PARAMETERS / (time.perf_counter() - began)


_OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
_Slots = dict[str, torch.Tensor]


def _with_kernel(
    pool: kernel.ThreadPool, master: torch.Tensor, slots: _Slots, gradient: torch.Tensor, travel: torch.Tensor
) -> None:
    one = kernel.stretch(master, slots, gradient=gradient, travel=travel, options=_OPTIONS, decoupled=True, scale=1.0)
    pool.update([one])


def _with_torch(master: torch.Tensor, slots: _Slots, gradient: torch.Tensor, travel: torch.Tensor) -> None:
    if not slots:
        slots |= {name: torch.zeros_like(master) for name in ("exp_avg", "exp_avg_sq")}
    parameter = torch.nn.Parameter(master)
    parameter.grad = gradient.float()
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.state[parameter] = {"step": torch.zeros(()), **slots}
    optimizer.step()
    travel.copy_(master)
