"""Tensors that are elsewhere: they say their shape, type and device, and refuse to be computed with."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from dovetail.train.cutting.model_calls import operation_name
from dovetail.train.cutting.pieces import Like
from dovetail.train.postponed_compiler import uncompiled
from dovetail.train.randomness import uncounted
from dovetail.vocabulary import TechniqueRefused


class Absent(torch.Tensor):
    """A tensor of another stage, for code that asks its shape.

    >>> isinstance(absent(Like(shape=(2,), dtype=torch.int64, requires_grad=False)), torch.Tensor)
    True
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse to compute: called by torch for an operation that no interceptor took."""
        raise TechniqueRefused(
            f"an operation must be seen for it to be cut; {operation_name(func)!r} was called with a value of "
            f"another stage, out of sight. Put it into a module of its own."
        )


def absent(like: Like, *, device: torch.device | str = "cpu", stride: tuple[int, ...] | None = None) -> torch.Tensor:
    """A tensor that stands for a value of another stage.

    >>> value = absent(Like(shape=(2, 3), dtype=torch.float32, requires_grad=True))
    >>> value.shape, value.requires_grad
    (torch.Size([2, 3]), True)
    """
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        Absent,
        like.shape,
        strides=stride,
        dtype=like.dtype,
        device=torch.device(device),
        requires_grad=like.requires_grad,
    )
    return made


def shapes(
    what: Any,
    args: Any,
    kwargs: Any,
    *,
    here: torch.device | str = "cpu",
    there: torch.device | str = "cpu",
) -> list[Any]:
    """The leaves of what a function, or a module, gives for these arguments, tensors as absent ones.

    Nothing is computed, counted or changed.

    What lies `here` is taken to lie `there`, where the weights of a module of another stage are, and back.

    >>> (found,) = shapes(torch.relu, (torch.ones(2),), {})
    >>> type(found).__name__, found.shape
    ('Absent', torch.Size([2]))
    """
    here, there = torch.device(here), torch.device(there)
    module = what if isinstance(what, nn.Module) else None

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, nn.Parameter):
            return leaf
        device = there if leaf.device == here else leaf.device
        made = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=device)
        # No leaf, so that it may be changed in place.
        return made.requires_grad_().clone() if leaf.requires_grad else made

    def back(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        like = Like(shape=tuple(leaf.shape), dtype=leaf.dtype, requires_grad=leaf.requires_grad)
        return absent(like, device=here if leaf.device == there else leaf.device, stride=tuple(leaf.stride()))

    with uncounted(module), uncompiled(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = pytree.tree_map(fake, args), pytree.tree_map(fake, kwargs)
        if module is None:
            found = what(*args, **kwargs)
        else:  # with stand-ins for what it holds: its buffers must not change
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            fakes: dict[str, torch.Tensor] = {name: mode.from_tensor(tensor) for name, tensor in held.items()}
            found = functional_call(module, fakes, args, kwargs)
    return [back(leaf) for leaf in pytree.tree_leaves(found)]
