"""A device that holds the activations of only so many blocks at once, as programs of tests have it."""

import weakref
from typing import Any

import torch


class Holding:
    """Give each block's output through this: it counts for as long as autograd keeps what the block saved."""

    def __init__(self) -> None:
        self.most = 1000
        self._live: dict[int, weakref.ref[torch.Tensor]] = {}

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if not value.requires_grad:
            return value
        saved = torch.empty(1)
        number = id(saved)
        self._live[number] = weakref.ref(saved, lambda _: self._live.pop(number, None))
        if len(self._live) > self.most:
            raise torch.OutOfMemoryError(f"the device holds at most {self.most} blocks")
        held: torch.Tensor = _Held.apply(value, saved)
        return held


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(saved)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.saved_tensors  # noqa: B018  torch computes again what was not kept when it is asked for
        return gradient, None
