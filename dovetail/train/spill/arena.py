"""Stretches of device memory through which segments and gradients pass.

Taken once, in slots of one size, so that nothing is allocated and nothing splinters while training. Memory that is
given back may still be in use by work under way on the device; who takes it next gets the marks to wait for.
"""

import dataclasses

import torch

from dovetail.train.spill.lanes import Mark
from dovetail.vocabulary.units import show_bytes

ALIGNMENT = 512


@dataclasses.dataclass(eq=False)
class Slot:
    """A part of an arena, and the marks to wait for before its next use."""

    start: int
    bytes: torch.Tensor
    marks: list[Mark]


class Arena:
    """So many slots of so many bytes on one device.

    >>> arena = Arena(2, slot=600, device=torch.device("cpu"))
    >>> first, second = arena.take(), arena.take()
    >>> arena.take() is None, arena.size
    (True, 2048)
    >>> arena.give(first, [])
    >>> arena.take().start
    0
    """

    def __init__(self, count: int, *, slot: int, device: torch.device) -> None:
        self._slot = aligned(slot)
        self.size = count * self._slot
        self._bytes = torch.empty(self.size, dtype=torch.uint8, device=device)
        self._typed = {torch.uint8: self._bytes}
        self._free = [
            Slot(start, self._bytes[start : start + self._slot], [])
            for start in range(0, self.size, max(1, self._slot))
        ]

    def take(self) -> Slot | None:
        """The slot that was given back longest ago, so the one least likely to be waited for, or None."""
        return self._free.pop(0) if self._free else None

    def give(self, slot: Slot, marks: list[Mark]) -> None:
        """Take back a slot that is in use until `marks` have passed."""
        slot.marks = marks
        self._free.append(slot)

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena as elements of a type."""
        if dtype not in self._typed:
            self._typed[dtype] = self._bytes.view(dtype)
        return self._typed[dtype]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in it."""
        if self.size == 0 or tensor.layout != torch.strided:
            return False
        return tensor.untyped_storage().data_ptr() == self._bytes.data_ptr()

    def __str__(self) -> str:
        return f"{show_bytes(len(self._free) * self._slot)} of {show_bytes(self.size)} free"


def aligned(size: int) -> int:
    """Rounded up to what every kernel is content with.

    >>> aligned(1)
    512
    """
    return -(-size // ALIGNMENT) * ALIGNMENT
