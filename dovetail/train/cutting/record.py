"""What one run of a model did: events in the order of the model's code, and the values that flow between them.

An event is an operation of torch's outside torch's own modules, or a call of a module, which holds the events inside
it. Records only; `recorder` makes them, `stage_assignment` says which stage each event belongs to, and `traced_piece`
follows them.
"""

import dataclasses
from typing import Any

import torch
from torch import nn

from dovetail.train.cutting.model_calls import operation_name
from dovetail.train.cutting.pieces import Like, is_plain
from dovetail.train.cutting.tensor_layouts import TensorLayout


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A tensor of the run: an input of the model, or what an event made. `storage` is the same for views of one."""

    name: str
    storage: Any
    producer: "TraceEvent | None"
    device: torch.device
    layout: TensorLayout | None
    history: list[tuple["TraceEvent | None", Like]]
    """What it was like when it was made, and after each event that changed it in place."""

    @property
    def like(self) -> Like:
        """The shape and type that this value has after its last change."""
        return self.history[-1][1]


@dataclasses.dataclass(frozen=True, slots=True)
class Same:
    """An output that is one of the tensors that came in, by its place among these."""

    place: int


@dataclasses.dataclass(eq=False, slots=True)
class TraceEvent:
    """One operation, or one call of a module with the events `number + 1` to `end - 1` inside."""

    number: int
    what: Any
    name: str
    """The operation, or the module's path with the number of its call: `encoder#2`."""
    parent: "TraceEvent | None"
    end: int = 0
    module: nn.Module | None = None
    is_leaf: bool = True
    """No event inside: an operation, or a call of a module that is one operation to us."""
    is_whole: bool = True
    """No call of a module inside."""
    is_read: bool = False
    """It gives no tensor but reads one's numbers: `item`, `bool`."""
    frame: int | None = None
    """The stretch of code that is computed again in backward as one (activation checkpointing) that it is in."""
    draws: bool = False
    """It took numbers from torch's generators."""
    reads: list[Value] = dataclasses.field(default_factory=list)
    held: set[str] = dataclasses.field(default_factory=set)
    """Canonical names of parameters and buffers that it uses."""
    after: list["TraceEvent"] = dataclasses.field(default_factory=list)
    """Events that wrote in place what this one reads."""
    writes: set[Any] = dataclasses.field(default_factory=set)
    """Storages that it changed in place."""
    changes: set[str] = dataclasses.field(default_factory=set)
    """Canonical names of parameters and buffers that it changed in place."""
    reshapes: bool = False
    """It changed the shape or type of a tensor that others hold."""
    outputs_tensor: bool = False
    makes: list[Value] = dataclasses.field(default_factory=list)
    inputs: tuple[Any, ...] = ()
    """What came in, as `signature` has it."""
    tree: Any = None
    """How what came out is nested."""
    outputs: list[Any] = dataclasses.field(default_factory=list)
    """The leaves of what came out: a Value, a Same, plain data, or OPAQUE."""

    @property
    def path(self) -> str:
        """The module's path, or that of the module around an operation."""
        call = self if self.module is not None or self.parent is None else self.parent
        return call.name.split("#")[0]

    @property
    def is_layer(self) -> bool:
        """Whether profiles list it: a call with no call inside, or of a module with parameters of its own."""
        return self.module is not None and (self.is_whole or bool(list(self.module.parameters(recurse=False))))

    def __str__(self) -> str:
        where = f" in {self.path!r}" if self.path else ""
        if self.module is not None:
            return f"the call of {self.name!r} ({type(self.module).__name__})"
        return f"operation {operation_name(self.what)!r}{where}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A whole run: the first event is the call of the model."""

    events: list[TraceEvent]
    inputs: list[Value | None]
    """For each leaf of the call, in order."""
    drew: bool


OPAQUE = object()
"""Stands for an object that is neither a tensor nor plain data."""


def signature(leaves: list[Any]) -> tuple[Any, ...]:
    """What the shapes of a call's outputs depend on.

    >>> signature([torch.ones(2, 3), 4])
    ((torch.Size([2, 3]), torch.float32), 4)
    """
    return tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf if is_plain(leaf) else None
        for leaf in leaves
    )


def storage_of(tensor: torch.Tensor) -> Any:
    """The same for all views of one tensor, while one of them lives.

    >>> base = torch.ones(2)
    >>> storage_of(base) == storage_of(base[:1])
    True
    """
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # sparse tensors have several
        return id(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place.

    >>> version_of(torch.ones(1).add_(1))
    1
    """
    return 0 if tensor.is_inference() else tensor._version
