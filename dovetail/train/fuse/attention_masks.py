"""Dropout inside attention (`dropout_p`) in a stack: its masks are drawn outside, as those of dropout modules are.

Alone, attention draws from the key of the module that was entered last. On a CPU it draws as a dropout of its weights
would, so that the same masks can be had beforehand. Kernels of accelerators draw in ways of their own: masks of ours
are of the same distribution there, and are used where the training allows it by name.
"""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dovetail.train.fuse.dropout_masks import DROPOUTS, Draw, Masked
from dovetail.train.randomness import draws
from dovetail.vocabulary import TechniqueRefused

ALLOWED = "attention-masks"
"""The name by which a training allows masks that are drawn otherwise than an accelerator's attention draws them."""
ATTENTION = F.scaled_dot_product_attention
_HALVES = (torch.bfloat16, torch.float16)


class AttentionMasks:
    """Whose turn it is to draw, in the skeleton of a gang, and the masks that attention takes there."""

    def __init__(self, skeleton: nn.Module, *, device: torch.device, allow: Collection[str]) -> None:
        self._is_reproduced = device.type == "cpu" or ALLOWED in allow
        self._calls: Counter[str] = Counter()
        self._last: tuple[str, nn.Module] | None = None
        self._modules: dict[str, nn.Module] = {}
        for name, module in skeleton.named_modules():
            if isinstance(module, Masked) or draws(module):
                self._modules[name] = module
                module.register_forward_pre_hook(functools.partial(self._enter, name))

    def begin(self) -> None:
        """Begin a microbatch: its attention calls are counted from zero."""
        self._calls.clear()
        self._last = None

    def _enter(self, name: str, module: nn.Module, arguments: Any) -> None:
        self._calls[name] += 1
        # Dropouts are masked: what is drawn after one goes on in its stream, which nobody draws from here.
        self._last = None if isinstance(module, Masked) else (name, module)

    def _take_turn(self) -> tuple[str, nn.Module, int]:
        """Who draws now, and in which of its calls: each call has one draw, the first from its key."""
        last, self._last = self._last, None
        if last is None:
            raise TechniqueRefused(
                "attention with dropout_p must be the first in its module's forward to draw random numbers; another "
                "draws before it. Set dropout_p to 0, or put attention into a module of its own"
            )
        name, module = last
        return name, module, self._calls[name] - 1

    def record(self, query: torch.Tensor, key: torch.Tensor, rate: float) -> Draw:
        """The mask that an attention would want."""
        if not self._is_reproduced:
            raise TechniqueRefused(
                "random numbers must be drawn by modules; attention with dropout_p draws inside its kernel here. Set "
                f"it to 0, or allow masks of the same distribution: Training(allow={{{ALLOWED!r}}})"
            )
        name, _, call = self._take_turn()
        shape = (*query.shape[:-1], key.shape[-2])
        # Torch's own weights attention in float32 where it is given halves.
        dtype = torch.float32 if query.dtype in _HALVES else query.dtype
        strides = torch.empty(shape, device="meta").stride()
        return Draw(name=name, call=call, shape=shape, stride=strides, dtype=dtype, rate=rate)

    def mask(self) -> torch.Tensor:
        """The mask of the attention that is called now."""
        name, module, call = self._take_turn()
        mask = module._buffers.get(f"dropped{call}")
        if mask is None:
            raise TechniqueRefused(f"attention in {name!r} must drop in every batch as in the first; it does not")
        return mask

    def prepare(self, wanted: Iterable[Draw]) -> None:
        """Give modules places for the masks of their attention."""
        for draw in wanted:
            if draw.rate is not None and f"dropped{draw.call}" not in self._modules[draw.name]._buffers:
                self._modules[draw.name].register_buffer(f"dropped{draw.call}", torch.empty(0), persistent=False)


class RecordedAttention(TorchFunctionMode):
    """Within, attention that drops is written down, and does not."""

    def __init__(self, masks: AttentionMasks, recording: list[Draw]) -> None:
        super().__init__()
        self._masks, self._recording = masks, recording

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the dropout of a call of attention, and make the call without it. Called by torch."""
        kwargs = dict(kwargs or {})
        if func is ATTENTION and (rate := kwargs.pop("dropout_p", args[4] if len(args) > 4 else 0.0)):
            named = dict(zip(("query", "key"), args, strict=False)) | kwargs
            self._recording.append(self._masks.record(named["query"], named["key"], float(rate)))
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return func(*args, **kwargs)


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropped: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention whose weights are multiplied by a mask, computed as torch computes it where it has no kernel.

    >>> q = torch.ones(1, 1, 2, 4)
    >>> attend_masked(q, q, q, None, torch.ones(1, 1, 2, 2)).equal(ATTENTION(q, q, q))
    True
    """
    kind, scale = query.dtype, query.shape[-1] ** -0.5 if scale is None else scale
    if kind in _HALVES:
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(groups, dim=-3) for each in (key, value))
    weights = (query * scale**0.5) @ (key * scale**0.5).transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        weights = weights.masked_fill(attn_mask.logical_not(), -torch.inf)
    elif attn_mask is not None:
        weights = weights + attn_mask
    return ((torch.softmax(weights, dim=-1) * dropped) @ value).to(kind)


def rates_of(model: nn.Module) -> dict[str, float]:
    """The rates of a model's dropout modules, which models pass on to attention."""
    return {name: module.p for name, module in model.named_modules() if isinstance(module, DROPOUTS)}
