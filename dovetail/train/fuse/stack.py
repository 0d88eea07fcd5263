"""The members that are in step with each other: their tensors side by side, and what an update does to all.

Trained parameters lie in slabs of members × elements, of which each member's tensors are views. A member's model and
optimizer stay what the program built; while a member is in the stack their tensors lie in its row, so evaluating,
saving and loading see them where they always are. Small parameters of a group share a slab, so that an update is a
dozen kernels for all of them; a large one has its own, which leaves it contiguous over the members.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.train.fuse.cuda_graphs import Compiled
from dovetail.train.fuse.fused_member import FusedMember
from dovetail.train.fuse.fused_program import StackLayout
from dovetail.train.fuse.stacked_optimizers import Rule
from dovetail.train.numeric.coded_optimizers import CodedSteps
from dovetail.train.state import parameter_names
from dovetail.vocabulary import TechniqueRefused

# A parameter with so many elements for each member fills a device by itself.
_LARGE = 1 << 20
# Rows and parameters begin at multiples of so many elements: matrix units want aligned addresses.
_ALIGNED = 32


class Slab:
    """Parameters of one group with the slots of their optimizer, a row for each member."""

    def __init__(
        self, group: int, shapes: Mapping[str, torch.Size], *, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.group, self.shapes = group, dict(shapes)
        self.starts: dict[str, int] = {}
        width = 0
        for name, shape in shapes.items():
            self.starts[name] = width
            width += math.ceil(shape.numel() / _ALIGNED) * _ALIGNED if len(shapes) > 1 else shape.numel()
        self._rows, self._width, self._dtype, self._device = rows, width, dtype, device
        self.flat = self._zeros()
        self.slots: list[torch.Tensor] = []
        self.leaves = {name: self.view(self.flat, name).requires_grad_() for name in shapes}
        self._pads = self._make_pads()

    def make_slots(self, rule: Rule) -> None:
        """Allocate what the optimizer keeps for each parameter."""
        self.slots = [self._zeros() for _ in rule.slots]

    def view(self, flat: torch.Tensor, name: str, *, row: int | None = None) -> torch.Tensor:
        """One parameter's part of the slab, of one member or of all."""
        start, shape = self.starts[name], self.shapes[name]
        part = flat.detach()[:, start : start + shape.numel()]
        return part.view(self._rows, *shape) if row is None else part[row].view(shape)

    def gather(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The gradients as one tensor of the slab's shape; those that are missing are zero."""
        pieces: list[torch.Tensor] = []
        for name, shape in self.shapes.items():
            found = gradients.get(name)
            rows = next(iter(gradients.values())).shape[0] if found is None else found.shape[0]
            pieces.append(self.flat.new_zeros(rows, shape.numel()) if found is None else found.reshape(rows, -1))
            if (pad := self._pads.get(name)) is not None:
                pieces.append(pad[:rows])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def _make_pads(self) -> dict[str, torch.Tensor]:
        if len(self.shapes) == 1:
            return {}
        sizes = {name: -shape.numel() % _ALIGNED for name, shape in self.shapes.items()}
        return {name: self.flat.new_zeros(self._rows, size) for name, size in sizes.items() if size}

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(self._rows, self._width, dtype=self._dtype, device=self._device)


def lay(groups: Sequence[Mapping[str, torch.Tensor]], *, rows: int, device: torch.device) -> list[Slab]:
    """Slabs for these groups of named parameters: a large parameter alone, small ones of one type together.

    >>> groups = [{"a": torch.zeros(3), "b": torch.zeros(2, 2)}]
    >>> [slab.flat.shape for slab in lay(groups, rows=4, device=torch.device("cpu"))]
    [torch.Size([4, 64])]
    """
    slabs = []
    for number, group in enumerate(groups):
        small: dict[torch.dtype, dict[str, torch.Size]] = {}
        for name, parameter in group.items():
            if parameter.numel() >= _LARGE:
                shapes = {name: parameter.shape}
                slabs.append(Slab(number, shapes, rows=rows, dtype=parameter.dtype, device=device))
            else:
                small.setdefault(parameter.dtype, {})[name] = parameter.shape
        slabs += [Slab(number, shapes, rows=rows, dtype=dtype, device=device) for dtype, shapes in small.items()]
    return slabs


class Stack:
    """Rows of members. While a member is in it, its model's and optimizer's tensors are views of its row."""

    def __init__(
        self, members: Mapping[int, FusedMember], layout: StackLayout, rule: Rule | None, *, device: torch.device
    ) -> None:
        self.rows = tuple(members)
        self._members, self._layout, self._rule = list(members.values()), layout, rule
        models = [member.training.model for member in self._members]
        self._tensors = [_tensors(model) for model in models]
        self._names = [parameter_names(model) for model in models]
        self._slabs = lay(self._groups(), rows=len(models), device=device)
        self._steps: list[list[int]] = [[0] * len(models) for _ in self._members[0].optimizer.param_groups]
        for slab in self._slabs:
            self._fill(slab)
        self._apart = {name: self._stack_tensors(name) for name in layout.apart}
        self.common = {name: self._tensors[0][name].detach() for name in layout.common}
        self.clips = any(member.training.clip_norm is not None for member in self._members)
        self._dtype = max((slab.flat.dtype for slab in self._slabs), key=lambda dtype: dtype.itemsize)
        for row in range(len(models)):
            self.adopt(row)

    @property
    def members(self) -> Sequence[FusedMember]:
        """The members in the order of their rows."""
        return self._members

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor with a row for each member; those that are trained want gradients."""
        return {**{name: leaf for slab in self._slabs for name, leaf in slab.leaves.items()}, **self._apart}

    def gather(self, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The gradients by name as one tensor for each slab."""
        return [slab.gather({name: gradients[name] for name in slab.shapes}) for slab in self._slabs]

    def put(self, places: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what forward changed in copies of some rows."""
        for name, stacked in self._apart.items():
            stacked.index_copy_(0, places, tensors[name])

    def zeros(self) -> list[torch.Tensor]:
        """Gradients of zero, a tensor for each slab."""
        return [torch.zeros_like(slab.flat) for slab in self._slabs]

    def numbers(self) -> torch.Tensor:
        """What the next update takes from the members' groups, on the host: numbers × members × 1."""
        rows = []
        for member, *steps in zip(self._members, *self._steps, strict=True):
            row: list[float] = []
            for group, count in zip(member.optimizer.param_groups, steps, strict=True) if self._rule else ():
                assert self._rule is not None
                row += self._rule.numbers(group, count)
            clip = member.training.clip_norm
            rows.append([*row, math.inf if clip is None else float(clip)])
        # torch itself takes several times as long to read lists.
        return torch.from_numpy(numpy.array(rows).T.copy()).to(self._dtype)[:, :, None]

    def update(self, gradients: Sequence[torch.Tensor], numbers: torch.Tensor, apply: Compiled | None) -> None:
        """Take one step of every member's optimizer. With a rule it works on the device alone, so that it can be
        captured; without, members' own optimizers are asked, one after another."""
        if self.clips:
            gradients = _clip(gradients, numbers[-1])
        if self._rule is None or apply is None:
            self._step_each(gradients)
            return
        width = self._rule.width
        for slab, gradient in zip(self._slabs, gradients, strict=True):
            own = numbers[slab.group * width : (slab.group + 1) * width].to(slab.flat.dtype)
            apply.call(slab.flat, gradient, slab.slots, list(own.unbind()))

    def _step_each(self, gradients: Sequence[torch.Tensor]) -> None:
        for slab, gradient in zip(self._slabs, gradients, strict=True):
            for row, member in enumerate(self._members):
                optimizer = member.optimizer
                assert isinstance(optimizer, CodedSteps)
                for name in slab.shapes:
                    own = slab.view(gradient, name, row=row)
                    optimizer.update(self._tensors[row][name], own, optimizer.param_groups[slab.group])

    def count(self) -> None:
        """Count an optimizer step that all members have taken."""
        self._steps = [[steps + 1 for steps in each] for each in self._steps]

    def lend(self, row: int) -> None:
        """Put what a member's optimizer has into its own state."""
        member = self._members[row]
        for slab in self._slabs if self._rule is not None else ():
            assert self._rule is not None
            group, steps = member.optimizer.param_groups[slab.group], self._steps[slab.group][row]
            for name in slab.shapes:
                parameter = self._tensors[row][name]
                views = [slab.view(slot, name, row=row) for slot in slab.slots]
                member.optimizer.state[parameter] = self._rule.state(group, steps, views, parameter)

    def adopt(self, row: int) -> None:
        """Take over what a member's optimizer has in its own state."""
        member = self._members[row]
        for slab in self._slabs if self._rule is not None else ():
            assert self._rule is not None
            counts = set()
            for name in slab.shapes:
                state = member.optimizer.state.get(self._tensors[row][name], {})
                counts.add(self._rule.steps(state))
                for slot, kept in zip(self._rule.slots, slab.slots, strict=True):
                    value = state.get(slot)
                    own = slab.view(kept, name, row=row)
                    own.zero_() if value is None else own.copy_(value)
            if len(counts) > 1:
                raise TechniqueRefused(
                    f"all parameters of a group must have been updated equally often; some were {sorted(counts)} times"
                )
            self._steps[slab.group][row] = counts.pop()
        self.lend(row)

    def dissolve(self) -> None:
        """Give every member tensors of its own again."""
        for row, member in enumerate(self._members):
            self.lend(row)
            for slab in self._slabs:
                for name in slab.shapes:
                    parameter = self._tensors[row][name]
                    parameter.data = parameter.data.clone()
                    slots = member.optimizer.state[parameter]
                    for slot in self._rule.slots if self._rule is not None else ():
                        if slot in slots:
                            slots[slot] = slots[slot].clone()
            for name in self._apart:
                tensor = self._tensors[row][name]
                tensor.data = tensor.data.clone()

    def _groups(self) -> list[dict[str, torch.Tensor]]:
        trained, names = set(self._layout.trained), self._names[0]
        return [
            {names[parameter]: parameter for parameter in group["params"] if names[parameter] in trained}
            for group in self._members[0].optimizer.param_groups
        ]

    def _fill(self, slab: Slab) -> None:
        for row, tensors in enumerate(self._tensors):
            for name in slab.shapes:
                view = slab.view(slab.flat, name, row=row)
                view.copy_(tensors[name])
                tensors[name].data = view
        if self._rule is not None:
            slab.make_slots(self._rule)

    def _stack_tensors(self, name: str) -> torch.Tensor:
        stacked = torch.stack([tensors[name].detach() for tensors in self._tensors])
        for row, tensors in enumerate(self._tensors):
            tensors[name].data = stacked[row]
        return stacked


def _tensors(model: nn.Module) -> dict[str, Any]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _clip(gradients: Sequence[torch.Tensor], most: torch.Tensor) -> list[torch.Tensor]:
    """Each member's gradients, scaled so that their norm over all slabs is at most its own limit."""
    norms = torch.stack([torch.linalg.vector_norm(gradient, dim=1).to(most.dtype) for gradient in gradients])
    norm = torch.linalg.vector_norm(norms, dim=0)[:, None]
    factor = torch.where(most.isinf(), 1.0, (most / (norm + 1e-6)).clamp(max=1.0))
    return [gradient * factor.to(gradient.dtype) for gradient in gradients]
