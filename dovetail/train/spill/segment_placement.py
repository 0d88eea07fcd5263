"""Where a segment lives: on the device with its optimizer's state, on the host, or on the host with its state on disk.

Moving changes no value. Nothing of the segment may be under way while it moves.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from dovetail.train.spill.host_memory import DiskMemory, HostMemory
from dovetail.train.spill.segments import LiveSegment, placeholder

CPU = torch.device("cpu")


class SegmentPlacement:
    """Moves the segments of one session."""

    def __init__(self, device: torch.device, memory: HostMemory, *, disk_directory: str | None) -> None:
        self._device, self._memory = device, memory
        self._disk = DiskMemory(Path(disk_directory or "."))
        self._on_disk: set[LiveSegment] = set()

    def to_host(self, segment: LiveSegment, part: torch.optim.Optimizer | None) -> None:
        """Move a segment's master and state to the host; it streams from now on."""
        segment.travel = self._memory.take(segment.travel_bytes)
        segment.gradients = self._memory.take(segment.gradient_bytes)
        self._put(segment, part, CPU)
        for entry in segment.entries:
            entry.leaf.data = placeholder(entry.master, entry.dtype, self._device)
        segment.kept = False

    def to_device(self, segment: LiveSegment, part: torch.optim.Optimizer | None) -> None:
        """Move a segment and its optimizer state to the device."""
        self.release(segment)
        segment.travel = torch.zeros(segment.travel_bytes, dtype=torch.uint8, device=self._device)
        self._put(segment, part, self._device)
        for entry in segment.entries:
            entry.leaf.data = entry.view(segment.travel)
        segment.kept = True

    def to_disk(self, segment: LiveSegment, part: torch.optim.Optimizer | None) -> None:
        """Move what an update reads and writes, beside what travels, into files. Slots follow once they exist."""
        self._on_disk.add(segment)
        for entry in segment.entries:
            if entry.dtype != entry.master.dtype and not self._disk.holds(entry.master):
                entry.master.data = self._disk.move(entry.master.data)
        for slots, name in _large_slots(part):
            if not self._disk.holds(slots[name]):
                slots[name] = self._disk.move(slots[name])

    def expect(self, segment: LiveSegment, part: torch.optim.Optimizer) -> None:
        """Prepare for a segment's update, which comes soon."""
        if segment in self._on_disk:
            self._disk.expect(_tensors(segment, part))

    def zeros(self, segment: LiveSegment) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes new state of a segment's parameters, where that belongs."""
        return self._disk.zeros_like if segment in self._on_disk else torch.zeros_like

    def return_to_disk(self, segment: LiveSegment, part: torch.optim.Optimizer) -> None:
        """Put a segment that lives on disk back there after its update."""
        if segment in self._on_disk:
            self.to_disk(segment, part)
            self._disk.forget(_tensors(segment, part))

    def close(self) -> None:
        """Give back everything that was taken. May be called twice."""
        self._disk.close()

    @torch.no_grad()
    def refresh(self, segment: LiveSegment) -> None:
        """Bring what travels up to date with the masters."""
        assert segment.travel is not None
        for entry in segment.entries:
            if entry.dtype != entry.master.dtype:
                entry.view(segment.travel).copy_(entry.master)

    def release(self, segment: LiveSegment) -> None:
        """Give back its host buffers, if it has any."""
        for buffer in (segment.travel, segment.gradients):
            if buffer is not None and not segment.kept:
                self._memory.give(buffer)
        segment.travel = segment.gradients = None

    @torch.no_grad()
    def _put(self, segment: LiveSegment, part: torch.optim.Optimizer | None, device: torch.device) -> None:
        assert segment.travel is not None
        for entry in segment.entries:
            if entry.dtype == entry.master.dtype:  # it travels as it is: one copy serves both
                view = entry.view(segment.travel)
                view.copy_(entry.master)
                entry.master.data = view
            else:
                entry.master.data = entry.master.data.to(device)
        self.refresh(segment)
        if part is not None and part.state:
            # torch's loading knows which slots follow their parameter and which (a step's count) stay on the host, but
            # it also rounds them to their parameter's precision.
            before = {parameter: dict(slots) for parameter, slots in part.state.items()}
            part.load_state_dict(part.state_dict())
            for parameter, slots in before.items():
                for name, value in slots.items():
                    moved = part.state[parameter][name]
                    if isinstance(value, torch.Tensor) and moved.dtype != value.dtype:
                        part.state[parameter][name] = value.to(moved.device)


def _large_slots(part: torch.optim.Optimizer | None) -> Iterator[tuple[dict[str, Any], str]]:
    for slots in part.state.values() if part is not None else ():
        for name, value in list(slots.items()):
            if isinstance(value, torch.Tensor) and value.dim():
                yield slots, name


def _tensors(segment: LiveSegment, part: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [*(entry.master.data for entry in segment.entries), *(slots[name] for slots, name in _large_slots(part))]
