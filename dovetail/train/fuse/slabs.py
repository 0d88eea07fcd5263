"""The trained parameters of a gang in memory: slabs of members × elements, of which each member's tensors are views.

A member's model and optimizer stay what the program built; while a member is in the stack their tensors lie in its row,
so evaluating, saving and loading see them where they always are. Small parameters of a group share a slab, so that an
update is a dozen kernels for all of them; a large one has its own, which leaves it contiguous over the members.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from dovetail.train.fuse.stacked_optimizers import Rule

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
