"""Copies that go on beside computing, one stream up to the device and one down from it; and the stretches of device
memory through which segments and gradients pass.

A `Mark` is a moment on a stream. On CUDA marks are events; on a CPU, where an arena stands in for a device, every copy
is made at once and all marks are past. Callers are the same for both. An arena is taken once, in slots of one size, so
that nothing is allocated and nothing splinters while training. Memory that is given back may still be in use by work
under way on the device; who takes it next gets the marks to wait for.
"""

import dataclasses
from collections.abc import Iterable
from typing import Protocol

import torch

from dovetail.vocabulary.units import show_bytes


class Mark(Protocol):
    """A point in the work of a device's stream, as a CUDA event is."""

    def synchronize(self) -> None:
        """Block this thread until the moment is past."""

    def query(self) -> bool:
        """Whether the stream has come past this point."""


class Lanes(Protocol):
    """The streams of one device."""

    def up(self, target: torch.Tensor, source: torch.Tensor, *, after: Iterable[Mark] = ()) -> Mark:
        """Copy from the host once all of `after` have passed."""

    def down(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Copy to the host what has been computed up to now."""

    def mark(self) -> Mark:
        """Mark this moment on the computing stream."""

    def follow(self, mark: Mark) -> None:
        """Let what is computed from here on wait for `mark`."""


def lanes_for(device: torch.device) -> Lanes:
    """The lanes of a device.

    >>> lanes = lanes_for(torch.device("cpu"))
    >>> target = torch.zeros(2)
    >>> lanes.up(target, torch.ones(2)).query(), target
    (True, tensor([1., 1.]))
    """
    return CudaLanes(device) if device.type == "cuda" else HostLanes()


class _Past:
    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HostLanes:
    """Everything at once, in the order it is asked for."""

    def up(self, target: torch.Tensor, source: torch.Tensor, *, after: Iterable[Mark] = ()) -> Mark:
        """Copy at once, from the host to the host."""
        target.copy_(source)
        return _Past()

    def down(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Copy at once, from the host to the host."""
        target.copy_(source)
        return _Past()

    def mark(self) -> Mark:
        """A mark that has passed already: on a CPU every copy is made at once."""
        return _Past()

    def follow(self, mark: Mark) -> None:
        """Do nothing: on a CPU every mark has passed."""


class CudaLanes:
    """Two streams beside the one that was current when this was made."""

    def __init__(self, device: torch.device) -> None:
        self._compute = torch.cuda.current_stream(device)
        self._up, self._down = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def up(self, target: torch.Tensor, source: torch.Tensor, *, after: Iterable[Mark] = ()) -> Mark:
        """Copy from the host on the stream for that, once all of `after` have passed."""
        for mark in after:
            self._up.wait_event(mark)  # type: ignore[arg-type]
        with torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)
        event: Mark = self._up.record_event(_event())
        return event

    def down(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Copy to the host on the stream for that, after what is computed now."""
        self._down.wait_event(self._compute.record_event(_event()))
        with torch.cuda.stream(self._down):
            target.copy_(source, non_blocking=True)
        event: Mark = self._down.record_event(_event())
        return event

    def mark(self) -> Mark:
        """Record an event on the stream that computes."""
        event: Mark = self._compute.record_event(_event())
        return event

    def follow(self, mark: Mark) -> None:
        """Make the computing stream wait."""
        self._compute.wait_event(mark)  # type: ignore[arg-type]


def _event() -> torch.cuda.Event:
    # Blocking: a thread that waits must not spin on a core that the host's updates need.
    return torch.cuda.Event(blocking=True)


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
        self._slot = align(slot)
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

    def view_as(self, dtype: torch.dtype) -> torch.Tensor:
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


def align(size: int) -> int:
    """Rounded up to what every kernel is content with.

    >>> align(1)
    512
    """
    return -(-size // ALIGNMENT) * ALIGNMENT
