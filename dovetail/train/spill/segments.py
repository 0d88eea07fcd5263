"""Cutting a model into segments: modules whose parameters come to the device and leave it together.

No module is rewritten. A segment is a subtree that is called as one; parameters that several subtrees share make them
one segment with several places of entry. Knows modules; knows nothing of memory or streams.
"""

import dataclasses
import functools
from collections.abc import Iterator

import torch
from torch import nn

from dovetail.planning.techniques.spill import Segment
from dovetail.train.spill.lanes import align
from dovetail.train.weights import read_dtype, sites

# These hold modules and are never called themselves.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# Segments are at most an eighth of the budget or of the model: several must be on the device at once.
_SHARE = 8
# What is smaller than this share of them is not worth copying.
_FIXED_SHARE = 1024


@dataclasses.dataclass(eq=False, slots=True)
class Entry:
    """One parameter of a segment: the master that the optimizer steps, and the leaf that computing sees."""

    name: str
    number: int
    """Its place among the parameters of the model."""
    master: nn.Parameter
    leaf: nn.Parameter
    dtype: torch.dtype
    """The type in which the weights travel to the device."""
    offset: int = 0
    """Where it lies in its segment's travelling bytes."""
    gradient: torch.Tensor | None = None
    """What backward left on the device, of a segment kept there, until its update."""
    norm: torch.Tensor | None = None

    @property
    def trains(self) -> bool:
        """Whether this parameter has gradients."""
        return self.master.requires_grad

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """This entry in a segment's travelling bytes, given as a flat uint8 tensor."""
        size = self.master.numel() * self.dtype.itemsize
        return flat[self.offset : self.offset + size].view(self.dtype).view(self.master.shape)


@dataclasses.dataclass(eq=False)
class LiveSegment:
    """A segment of a model in training: its parameters, its copies on the host, and what waits for it."""

    index: int
    name: str
    modules: list[nn.Module]
    entries: list[Entry]
    fixed: bool = False
    travel_bytes: int = dataclasses.field(init=False)
    gradient_bytes: int = dataclasses.field(init=False)
    kept: bool = False
    travel: torch.Tensor | None = None
    """On the host, pinned, where it streams; on the device where it is kept."""
    gradients: torch.Tensor | None = None
    """On the host, pinned; only where it streams."""
    missing: int = 0
    """How many gradients of this backward have not come yet."""
    is_read_late: bool = False
    """Backward reads its weights after their last gradient, so that its update waits for the end."""
    submitted: int = 0
    done: int = 0
    """How many jobs of the host's it was given, and how many are over."""

    def __post_init__(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Give each entry its place among the travelling bytes."""
        self.travel_bytes = self.gradient_bytes = 0
        for entry in self.entries:
            entry.offset = self.travel_bytes
            end = entry.offset + entry.master.numel() * entry.dtype.itemsize
            self.travel_bytes = align(end)
            if entry.trains:
                self.gradient_bytes = align(end)

    @property
    def pending(self) -> int:
        """How many jobs of the host's wait for it."""
        return self.submitted - self.done

    @property
    def trainable(self) -> list[Entry]:
        """The entries that have gradients."""
        return [entry for entry in self.entries if entry.trains]

    def record(self, state_bytes_per_parameter: float, *, sums: bool = False) -> Segment:
        """What planning knows of it; `sums`: gradients of several microbatches are added up in full precision."""
        parameters = sum(entry.master.numel() for entry in self.trainable)
        apart = sum(e.master.nbytes for e in self.entries if e.dtype != e.master.dtype)
        if sums:
            apart += sum(e.master.numel() * (e.master.grad_dtype or e.master.dtype).itemsize for e in self.trainable)
        return Segment(
            name=self.name,
            parameters=parameters,
            travel_bytes=self.travel_bytes,
            gradient_bytes=self.gradient_bytes,
            state_bytes=apart + int(parameters * state_bytes_per_parameter),
            fixed=self.fixed,
        )


def cut(
    model: nn.Module, *, limit_bytes: int, fixed_bytes: int, precision: str, device: torch.device
) -> list[LiveSegment]:
    """The model as segments of at most `limit_bytes` of parameters where its modules allow, in the order of modules.

    What is smaller than `fixed_bytes` stays on the device.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    >>> [segment.name for segment in cut(model, limit_bytes=48, fixed_bytes=0, precision="fp32",
    ...                                  device=torch.device("cpu"))]
    ['0', '1']
    """
    places = sites(model)
    numbers = {parameter: number for number, parameter in enumerate(places)}
    names = {parameter: name for name, parameter in model.named_parameters()}
    segments: list[LiveSegment] = []
    for name, modules, own in _merge_sharing(list(_subtrees("", model, limit_bytes))):
        entries: list[Entry] = []
        # Trainable ones first, so that gradients are a front part of the same layout.
        for parameter in sorted(own, key=lambda parameter: (not parameter.requires_grad, numbers[parameter])):
            dtype = read_dtype(parameter, places[parameter], precision)
            leaf = nn.Parameter(placeholder(parameter, dtype, device), requires_grad=parameter.requires_grad)
            entries.append(Entry(names[parameter], numbers[parameter], parameter, leaf, dtype))
        called = [module for module in modules if module is not None]
        segment = LiveSegment(len(segments), name, called, entries)
        segment.fixed = segment.travel_bytes < fixed_bytes or len(called) < len(modules)
        segments.append(segment)
    return segments


def prepare(model: nn.Module, *, budget_bytes: int, precision: str, device: torch.device) -> list[LiveSegment]:
    """The model's segments for a budget, its parameters on the host and its buffers on the device.

    >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    >>> len(prepare(model, budget_bytes=1 << 20, precision="fp32", device=torch.device("cpu")))
    8
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to("cpu", memory_format=torch.contiguous_format)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    size = min(budget_bytes, sum(parameter.nbytes for parameter in model.parameters()))
    limit, fixed = size // _SHARE, size // _FIXED_SHARE
    return cut(model, limit_bytes=limit, fixed_bytes=fixed, precision=precision, device=device)


def placeholder(parameter: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What stands where a parameter is away: the right shape, no memory, and no number by which one could train."""
    return _nothing(dtype, device).expand(parameter.shape)


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether a tensor is where a parameter would be.

    >>> is_placeholder(placeholder(torch.ones(2), torch.float32, torch.device("cpu"))), is_placeholder(torch.ones(2))
    (True, False)
    """
    if tensor.layout != torch.strided:
        return False
    return _nothing(tensor.dtype, tensor.device).untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((), float("nan") if dtype.is_floating_point else 0, dtype=dtype, device=device)


_Piece = tuple[str, list[nn.Module | None], list[nn.Parameter]]


def _subtrees(name: str, module: nn.Module, limit_bytes: int) -> Iterator[_Piece]:
    parameters = list(module.parameters())
    if not parameters:
        return
    size = sum(parameter.nbytes for parameter in parameters)
    called = not isinstance(module, _CONTAINERS)
    if called and (size <= limit_bytes or not _cuttable(module)):
        yield name, [module], parameters
        return
    if own := [parameter for parameter in module._parameters.values() if parameter is not None]:
        # A module that is itself too large is entered before its children and left after them, so what is its very own
        # stays on the device.
        yield f"{name}.*".lstrip("."), [None], own
    for child_name, child in module.named_children():
        yield from _subtrees(f"{name}.{child_name}".lstrip("."), child, limit_bytes)


def _cuttable(module: nn.Module) -> bool:
    # torch's own modules read their children's weights without calling them (attention does).
    stacks = (nn.Sequential, nn.TransformerEncoder, nn.TransformerDecoder)
    own = type(module).__module__.startswith("torch.nn") and not isinstance(module, stacks)
    return not own and any(True for _ in module.children())


def _merge_sharing(pieces: list[_Piece]) -> list[_Piece]:
    """Pieces that share a parameter become one."""
    owner: dict[nn.Parameter, int] = {}
    groups: dict[int, _Piece] = {}
    for number, (name, modules, parameters) in enumerate(pieces):
        merged: _Piece = (name, list(modules), list(parameters))
        for other in sorted({owner[p] for p in parameters if p in owner}):
            first = groups.pop(other)
            merged = (first[0], first[1] + merged[1], first[2] + merged[2])
        unique = list(dict.fromkeys(merged[2]))
        at = min(owner.get(p, number) for p in unique)
        groups[at] = (merged[0], list(dict.fromkeys(merged[1])), unique)
        owner |= dict.fromkeys(unique, at)
    return [groups[number] for number in sorted(groups)]
