"""What a stacked forward does to some of torch's functions before vmap sees them.

- Attention: the members are folded into the batch, so that one kernel of any backend serves all. vmap's own way fails
  in cuDNN's backward on an H200, and is a loop on a CPU.
- Autocast: vmap takes functions such as `layer_norm` or `conv2d` apart above the place where autocast looks, so their
  inputs are cast here, as torch itself would cast them; torch is asked how, not listed.
- Embeddings with a padding index: vmap's own gradient counts what is looked up there, and torch's does not.
- Norms of bf16: vmap takes their weights apart from them, and rounds in between.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dovetail.train.fuse.attention_masks import ATTENTION, AttentionMasks, attend_masked


class Lowering(TorchFunctionMode):
    """Folds attention, lets norms of bf16 compute in float32 and, where `casting`, casts as autocast would."""

    def __init__(self, device: torch.device, *, casting: bool, masks: AttentionMasks) -> None:
        super().__init__()
        self._masks = masks
        self._casts = casts(device.type) if casting else {}
        self.attended = False
        self.acted = False
        """Whether anything came out otherwise than by vmap alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function, or what stands for it. Called by torch."""
        kwargs = kwargs or {}
        if dtype := self._casts.get(func):
            self.acted = True
            args, kwargs = _all_cast(args, kwargs, dtype)
        if func is ATTENTION:
            self.attended = self.acted = True
            return self._attend(*args, **kwargs)
        if func is F.embedding and (padding := _argument(args, kwargs, 2, "padding_idx")) is not None:
            self.acted = True
            return _pad(func(*args, **kwargs), _argument(args, kwargs, 0, "input"), padding)
        if func in _NORMS and args and getattr(args[0], "dtype", None) is torch.bfloat16:
            self.acted = True
            args, kwargs = _all_cast(args, kwargs, torch.float32)
            return func(*args, **kwargs).to(torch.bfloat16)
        if func is torch.Tensor.unflatten:  # which torch.compile does not follow inside a mode
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        **how: Any,
    ) -> torch.Tensor:
        if dropout_p:
            return attend_masked(query, key, value, attn_mask, self._masks.mask(), **how)
        return attention(query, key, value, attn_mask, **how)


def _argument(args: Any, kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _pad(found: torch.Tensor, index: torch.Tensor, padding: int) -> torch.Tensor:
    """What was looked up, without a gradient where it is padding."""
    return torch.where((index == padding).unsqueeze(-1), found.detach(), found)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` inside vmap, the members folded into the batch."""
    if attn_mask is not None and attn_mask.dim() < query.dim():
        attn_mask = attn_mask[(None,) * (query.dim() - attn_mask.dim())]
    found: torch.Tensor = _Folded.apply(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return found


class _Folded(torch.autograd.Function):
    """A function only for its rule under vmap, which calls torch's own on folded tensors; that has its own backward."""

    @staticmethod
    def forward(query: Any, key: Any, value: Any, mask: Any, is_causal: Any, scale: Any, gqa: Any) -> Any:
        return ATTENTION(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise AssertionError("a stacked forward runs inside vmap only")

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: Any, scale: Any, gqa: Any
    ) -> Any:
        size, batch = info.batch_size, None
        if query.dim() - (in_dims[0] is not None) > 2:  # there is a batch to fold into
            batch = query.movedim(in_dims[0], 0).shape[1] if in_dims[0] is not None else query.shape[0]
        tensors = zip((query, key, value, mask), in_dims[:4], strict=True)
        query, key, value, mask = (each if each is None else _fold(each, place, size, batch) for each, place in tensors)
        found = ATTENTION(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)
        return (found if batch is None else found.unflatten(0, (size, batch))), 0


def _fold(tensor: torch.Tensor, place: int | None, size: int, batch: int | None) -> torch.Tensor:
    """The members of a tensor, who are at `place`, in front of its batch."""
    tensor = tensor[None] if place is None else tensor.movedim(place, 0)
    if batch is None:
        return tensor.expand(size, *tensor.shape[1:])
    if place is None and tensor.shape[1] == 1:  # a mask that all share, which attention spreads by itself
        return tensor[0]
    return tensor.expand(size, batch, *tensor.shape[2:]).flatten(0, 1)


@functools.cache
def casts(device_type: str) -> dict[Any, torch.dtype]:
    """To what torch's autocast to bf16 casts the inputs of each function that vmap takes apart.

    >>> casts("cpu")[F.linear]
    torch.bfloat16
    """
    found: dict[Any, torch.dtype] = {}
    device = torch.device(device_type)
    with torch.autocast(device_type, dtype=torch.bfloat16), torch.no_grad():
        for call, functions in _EXAMPLES:
            up, down = (call(torch.ones(1, 2, 4, 4, device=device, dtype=dtype)).dtype for dtype in _DTYPES)
            if up == down:  # whatever comes in
                found |= dict.fromkeys(functions, up)
    return found


def _all_cast(args: Any, kwargs: Mapping[str, Any], dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    return tuple(_cast(value, dtype) for value in args), {name: _cast(value, dtype) for name, value in kwargs.items()}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _DTYPES:
        return value.to(dtype)
    return value


_DTYPES = (torch.float32, torch.bfloat16)
# Their kernels compute bf16 in float32 and round once, and take weights and running statistics of float32 beside it.
_NORMS = {
    *(F.batch_norm, torch.batch_norm, F.layer_norm, torch.layer_norm),
    *(F.group_norm, torch.group_norm, F.instance_norm, torch.instance_norm),
}
_EXAMPLES: tuple[tuple[Callable[[torch.Tensor], torch.Tensor], tuple[Any, ...]], ...] = (
    (lambda x: F.linear(x, x[0, 0]), (F.linear,)),
    (
        lambda x: torch.matmul(x, x),
        (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__),
    ),
    (lambda x: F.conv1d(x[0], x.new_ones(1, 4, 1)), (F.conv1d, torch.conv1d)),
    (lambda x: F.conv2d(x, x.new_ones(1, 2, 1, 1)), (F.conv2d, torch.conv2d)),
    (lambda x: F.conv3d(x[None], x.new_ones(1, 1, 1, 1, 1)), (F.conv3d, torch.conv3d)),
    (lambda x: F.conv_transpose1d(x[0], x.new_ones(4, 1, 1)), (F.conv_transpose1d, torch.conv_transpose1d)),
    (lambda x: F.conv_transpose2d(x, x.new_ones(2, 1, 1, 1)), (F.conv_transpose2d, torch.conv_transpose2d)),
    (lambda x: ATTENTION(x, x, x), (ATTENTION,)),
    (lambda x: F.layer_norm(x, (4,)), (F.layer_norm, torch.layer_norm)),
    (lambda x: F.group_norm(x, 1), (F.group_norm, torch.group_norm)),
    (lambda x: F.softmax(x, -1), (F.softmax, torch.softmax, torch.Tensor.softmax)),
    (lambda x: F.log_softmax(x, -1), (F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax)),
    (lambda x: F.cross_entropy(x[0, 0], torch.zeros(4, dtype=torch.int64, device=x.device)), (F.cross_entropy,)),
    (lambda x: F.nll_loss(x[0, 0], torch.zeros(4, dtype=torch.int64, device=x.device)), (F.nll_loss,)),
    (lambda x: F.binary_cross_entropy_with_logits(x, x), (F.binary_cross_entropy_with_logits,)),
    (lambda x: F.kl_div(x, x, reduction="sum"), (F.kl_div,)),
    (lambda x: F.cosine_similarity(x, x), (F.cosine_similarity, torch.cosine_similarity)),
)
