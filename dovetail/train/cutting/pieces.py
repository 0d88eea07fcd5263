"""What cutting gives: pieces, and what crosses between them. Records and their interface only."""

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dovetail.train.cutting.model_calls import ModelCall
from dovetail.vocabulary import TechniqueRefused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """What a value that crosses was like in the example call. `requires_grad`: a gradient may come back for it.

    >>> Like(shape=(2, 3), dtype=torch.float32, requires_grad=True).nbytes
    24
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """The bytes that a tensor of this shape and type takes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Piece(nn.Module, abc.ABC):
    """The computation of one stage: from the values it `takes` to those it `gives`, by name.

    The first takes the model's own inputs (`Cut.inputs`), the last gives the model's output as the model returns it,
    under the name "output". `likes` says what each value was like in the example call, "output" excepted.

    Parameters and buffers are the original model's own objects under their canonical names (the first of
    `model.named_parameters()`): `named_parameters()`, `named_buffers()` and `state_dict()` of a piece give those that
    its stage uses, and moving a piece (`to`) moves just these, for the model too.

    >>> from dovetail.train.cutting import cut
    >>> model, call = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), ModelCall(args=(torch.ones(1, 2),))
    >>> first, second = cut(model, call, stages=[["0"], ["1"]]).pieces
    >>> list(second.names), second.takes, second.gives, second.likes["0:1.0"].shape
    (['1.weight', '1.bias'], ('0:1.0',), ('output',), (1, 2))
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    likes: Mapping[str, Like]
    _model: nn.Module

    def __init__(self, model: nn.Module, held: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        # Not as a child: a piece has the parameters of its stage, not the model's.
        vars(self)["_model"] = model
        # Canonical names have dots, which `register_parameter` forbids and nothing else minds.
        self._parameters.update({name: each for name, each in held.items() if isinstance(each, nn.Parameter)})
        self._buffers.update({name: each for name, each in held.items() if not isinstance(each, nn.Parameter)})
        self._sites = _sites(model, self._buffers)

    @property
    def names(self) -> dict[str, nn.Parameter]:
        """The parameters by canonical name, frozen ones too."""
        return dict(self.named_parameters())

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers as the model has them now: its code may have put others in their places."""
        self._sync()
        return super().named_buffers(*args, **kwargs)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._sync()
        super()._save_to_state_dict(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> "Piece":
        self._sync()
        super()._apply(fn, recurse)  # torch moves parameters within their objects, and puts others for buffers
        for name, places in self._sites.items():
            for place, key in places:
                place[key] = self._buffers[name]
        return self

    def _sync(self) -> None:
        for name, places in self._sites.items():
            self._buffers[name] = places[0][0][places[0][1]]

    @abc.abstractmethod
    def forward(self, values: Mapping[str, Any], *, call: ModelCall | None = None) -> dict[str, Any]:
        """What it gives for what it takes. `call` tells the sizes of the model's inputs where they vary by step."""


def _sites(model: nn.Module, buffers: Mapping[str, Any]) -> dict[str, list[tuple[dict[str, Any], str]]]:
    names = {id(buffer): name for name, buffer in buffers.items()}
    found: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if id(buffer) in names:
                found.setdefault(names[id(buffer)], []).append((module._buffers, key))
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A model in pieces. `shared` are parameters and buffers that several pieces use, with the numbers of these.

    `is_ordered` says that stages follow one another in the order in which the model's code runs; only then have sums of
    three and more gradients the order of the whole, and is every bit the same. `example` is the call it was cut by."""

    pieces: tuple[Piece, ...]
    shared: Mapping[str, tuple[int, ...]]
    example: ModelCall
    is_ordered: bool = True

    def inputs(self, call: ModelCall) -> dict[str, torch.Tensor]:
        """What the first piece takes for a call: the tensors in it, by their place.

        Refuses a call that differs from the example in anything that is no tensor, for later pieces do not see it.
        """
        ours, tree = pytree.tree_flatten((self.example.args, dict(self.example.kwargs)))
        leaves, other = pytree.tree_flatten((call.args, dict(call.kwargs)))
        if tree != other:
            raise TechniqueRefused(
                f"the calls of a model that is cut must have the same arguments at every step; the example call "
                f"has {tree}, this one {other}."
            )
        for one, leaf in zip(ours, leaves, strict=True):
            if isinstance(one, torch.Tensor) != isinstance(leaf, torch.Tensor) or (is_plain(one) and one != leaf):
                raise TechniqueRefused(
                    f"arguments of a model that is cut must be tensors or the same at every step; the example "
                    f"call has {one!r:.60} where this one has {leaf!r:.60}. Give it as a tensor."
                )
        return {f"input.{n}": leaf for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}


_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, type)


def is_plain(leaf: Any) -> bool:
    """Whether a leaf can be kept and given again.

    >>> is_plain(3), is_plain(torch.float32), is_plain(object())
    (True, True, False)
    """
    return isinstance(leaf, _PLAIN)
