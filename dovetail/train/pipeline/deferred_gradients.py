"""Backward in two: gradients of inputs at once, gradients of weights later.

Each layer of torch's own that holds weights and no other layer computes in a graph of its own, behind a node of the
outer one. That node's backward derives its input and remembers the rest; `catch_up` derives the weights. A layer is
one kernel, which computes only what it is asked for, so nothing is computed twice, and the bits are those of one
backward. Other weights get their gradients with the inputs'. A weight that has both, a layer and a use outside of it,
is refused: its parts would be added up in another order than one backward has.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.vocabulary import TechniqueRefused

_Later = tuple[torch.Tensor, tuple[nn.Parameter, ...], torch.Tensor]


class Deferred:
    """Puts off the gradients of these modules' weights, from when it is made until `close`.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> deferred = Deferred({"layer": layer})
    >>> with deferred.putting_off(0):
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is None
    True
    >>> deferred.catch_up(0)
    >>> layer.weight.grad
    tensor([[1., 1.]])
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._left: dict[int, list[_Later]] = {}
        self._microbatch: int | None = None
        self._direct: set[torch.Tensor] = set()  # weights that got a gradient otherwise, in this backward
        self._changed = [module for module in modules.values() if _is_layer(module)]
        for module in self._changed:
            module.forward = _behind(module.forward, module, self)
        self._names = {
            weight: f"{name}.{own}"
            for name, module in modules.items()
            if module in self._changed
            for own, weight in module._parameters.items()
            if weight is not None and weight.requires_grad
        }
        self._hooks = [weight.register_post_accumulate_grad_hook(self._direct.add) for weight in self._names]

    def close(self) -> None:
        """Leave the modules as they were. May be called twice."""
        for module in self._changed:
            vars(module).pop("forward", None)
        for hook in self._hooks:
            hook.remove()
        self._changed, self._hooks = [], []

    @contextlib.contextmanager
    def putting_off(self, microbatch: int) -> Iterator[None]:
        """Within, backward is that of this microbatch, and leaves its weights. Raises `TechniqueRefused` for a weight
        of which only a part was left, before anything was done with either part."""
        self._microbatch = microbatch
        self._direct.clear()
        try:
            yield
        finally:
            self._microbatch = None
        left = {weight for _, weights, _ in self._left.get(microbatch, ()) for weight in weights}
        if both := sorted(self._names[weight] for weight in left & self._direct):
            raise TechniqueRefused(
                f"'zero_bubble' must have all of a weight's gradients from its layer; {both[0]!r} is also used outside "
                f"of it. Use '1f1b'."
            )

    def catch_up(self, microbatch: int) -> None:
        """Derive the weights that were left, each one's parts summed up as one backward sums them."""
        sums: dict[nn.Parameter, torch.Tensor] = {}
        for output, weights, gradient in self._left.pop(microbatch, ()):
            for weight, part in zip(weights, torch.autograd.grad(output, weights, gradient), strict=True):
                sums[weight] = sums[weight] + part if weight in sums else part
        for weight, total in sums.items():
            weight.grad = total if weight.grad is None else weight.grad.add_(total)

    def leave(self, output: torch.Tensor, weights: tuple[nn.Parameter, ...], gradient: torch.Tensor) -> None:
        """Remember what is to be derived; outside `putting_off`, derive it now."""
        microbatch = -1 if self._microbatch is None else self._microbatch
        self._left.setdefault(microbatch, []).append((output, weights, gradient))
        if self._microbatch is None:
            self.catch_up(microbatch)


def _is_layer(module: nn.Module) -> bool:
    own = [weight for weight in module._parameters.values() if weight is not None and weight.requires_grad]
    is_plain = "forward" not in vars(module) and not any(True for _ in module.children())
    return bool(own) and is_plain and type(module).__module__.startswith("torch.nn.modules")


def _behind(forward: Callable[..., Any], module: nn.Module, deferred: Deferred) -> Callable[..., Any]:
    def deferring(*arguments: Any, **named: Any) -> Any:
        is_simple = len(arguments) == 1 and isinstance(arguments[0], torch.Tensor) and not named
        if not is_simple or not torch.is_grad_enabled():
            return forward(*arguments, **named)
        (x,) = arguments
        inner = x.detach().requires_grad_(x.requires_grad)
        output = forward(inner)
        weights = tuple(w for w in module._parameters.values() if w is not None and w.requires_grad)
        if not isinstance(output, torch.Tensor):
            return forward(x)
        # The last argument lets the node be there where `x` wants no gradient.
        anchor = torch.empty(0, device=x.device).requires_grad_()
        return _DeferredNode.apply(x, (output, inner, weights, deferred), anchor)

    return deferring


class _DeferredNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, parts: Any, anchor: Any) -> Any:
        ctx.parts = parts  # in a tuple, so that the outer graph does not see the inner one
        return parts[0].detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        output, inner, weights, deferred = ctx.parts
        ctx.parts = None
        derived = None
        if inner.requires_grad:
            (derived,) = torch.autograd.grad(output, inner, gradient, retain_graph=True)
        deferred.leave(output, weights, gradient)
        return derived, None, None
