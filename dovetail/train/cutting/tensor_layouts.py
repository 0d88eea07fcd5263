"""How tensors lie in memory. What crosses between stages arrives packed, and kernels sum in another order over packed
memory than over transposed or sliced memory; so values and their gradients are laid out again as the whole has them.
"""

import dataclasses
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class TensorLayout:
    """The shape and strides that a tensor had.

    >>> TensorLayout.of(torch.ones(2, 3).t()).lay(torch.ones(3, 2)).stride()
    (1, 3)
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor) -> "TensorLayout | None":
        """The layout of a tensor; None where it is packed, or of a kind that has no strides.

        >>> TensorLayout.of(torch.ones(2, 3)) is None
        True
        """
        if tensor.layout is not torch.strided or tensor.is_contiguous():
            return None
        return TensorLayout(tuple(tensor.shape), tuple(tensor.stride()))

    def lay(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with this layout; where its shape is another, with dimensions in the same order in memory.

        >>> TensorLayout.of(torch.ones(4, 6).t()).lay(torch.ones(3, 2)).stride()
        (1, 3)
        """
        stride = self.stride if tuple(tensor.shape) == self.shape else self._stride(tensor.shape)
        if tensor.stride() == stride:
            return tensor
        # Dimensions without a stride repeat one number: of them the first is kept.
        for dimension, step in enumerate(stride):
            if step == 0 and tensor.shape[dimension] > 1:
                tensor = tensor.narrow(dimension, 0, 1)
        packed = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
        return packed.expand(self.shape) if 0 in stride else packed

    def _stride(self, shape: torch.Size) -> tuple[int, ...]:
        step, found = 1, [0] * len(shape)
        for dimension in sorted(range(len(shape)), key=lambda n: (self.stride[n], -n)):
            found[dimension], step = step, step * shape[dimension]
        return tuple(found)


class Arriving(torch.autograd.Function):
    """A value that arrived, laid out as where it was made. Its gradient goes back as it is.

    >>> Arriving.apply(torch.ones(3, 2), TensorLayout((3, 2), (1, 3))).stride()
    (1, 3)
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, layout: TensorLayout) -> torch.Tensor:
        """The value, laid out as it was where it was made."""
        return layout.lay(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient of the value that arrives."""
        return gradients[0], None


class Leaving(torch.autograd.Function):
    """A value that goes to other stages, whose gradient comes back packed and is laid out as in the whole.

    >>> Leaving.apply(torch.ones(3, 2), None).shape
    torch.Size([3, 2])
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, layout: TensorLayout | None) -> torch.Tensor:
        """Give the value on as it is, and note the layout that its gradient must have."""
        ctx.gradient = layout
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient of the value that leaves."""
        (gradient,) = gradients
        return (gradient.contiguous() if ctx.gradient is None else ctx.gradient.lay(gradient)), None
