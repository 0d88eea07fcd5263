"""What the sessions on one device share: its streams, its arenas, the host's threads and pinned memory."""

import dataclasses
from collections.abc import Iterable

import torch

from dovetail.train.spill.host_memory import HostMemory
from dovetail.train.spill.host_updates import HostUpdates
from dovetail.train.spill.lanes import Arena, align, lanes_for
from dovetail.train.spill.segment_streamer import Itinerary, Streamer
from dovetail.train.spill.segments import LiveSegment

GRADIENT_ROOMS = 2
"""One fills while the other goes down."""


@dataclasses.dataclass(frozen=True)
class ArenaSize:
    """How much of the arenas one session needs: so many segments and gradients of at most such sizes."""

    depth: int
    travel_bytes: int
    gradient_bytes: int

    @staticmethod
    def of(streamed: Iterable[LiveSegment], *, depth: int) -> "ArenaSize":
        """The arenas that these segments need."""
        streamed = list(streamed)
        travel = max((align(segment.travel_bytes) for segment in streamed), default=0)
        gradient = max((align(segment.gradient_bytes) for segment in streamed), default=0)
        return ArenaSize(min(depth, len(streamed)), travel, gradient)

    @property
    def bytes(self) -> int:
        """The device bytes of these arenas."""
        return self.depth * self.travel_bytes + GRADIENT_ROOMS * self.gradient_bytes


def uses_kernel(device: torch.device) -> bool:
    """Whether the host's own AdamW updates what this device computes: on a CPU, torch's update is bit-equal to being
    resident.

    >>> uses_kernel(torch.device("cpu"))
    False
    """
    return device.type == "cuda"


class DeviceResources:
    """Made once for a device, shared by the sessions of a gang, closed last."""

    def __init__(self, device: torch.device, *, threads: int) -> None:
        self.device = device
        self.lanes = lanes_for(device)
        self.updates = HostUpdates(threads=threads, use_kernel=uses_kernel(device))
        self.memory = HostMemory(device)
        self.itineraries: dict[LiveSegment, Itinerary] = {}
        self.streamer = Streamer(
            lanes=self.lanes,
            updates=self.updates,
            device=device,
            distance=lambda segment: self.itineraries[segment].distance(segment),
        )

    def allocate(self, rooms: list[ArenaSize]) -> None:
        """Make arenas in which all these fit. Nothing may be in the old ones."""
        travel = max((room.travel_bytes for room in rooms), default=0)
        gradient = max((room.gradient_bytes for room in rooms), default=0)
        depth = max((room.depth for room in rooms), default=0)  # one member at a time computes, the others' may go
        self.streamer.travel = self.streamer.gradients = Arena(0, slot=0, device=self.device)  # the old go first
        self.streamer.travel = Arena(depth, slot=travel, device=self.device)
        # One member computes its backward at a time.
        self.streamer.gradients = Arena(GRADIENT_ROOMS if gradient else 0, slot=gradient, device=self.device)

    @property
    def arena_bytes(self) -> int:
        """What the arenas take on the device."""
        return self.streamer.travel.size + self.streamer.gradients.size

    def close(self) -> None:
        """End the threads and give memory back. May be called twice."""
        self.updates.close()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.allocate([])
        self.memory.close()
