"""Which segments of a model stay on the device: the layout within the budgets, and how it is carried out.

Knows segments, budgets and where things lie; knows nothing of steps. Nothing of a segment may be under way while it
is moved, and whoever moves some furnishes the arenas again.
"""

from collections.abc import Iterable, Mapping

import torch

from dovetail.planning.techniques.spill import DoesNotFit, Layout, Segment, layout
from dovetail.train.spill.device_resources import ArenaSize
from dovetail.train.spill.host_memory import HostMemory
from dovetail.train.spill.refusals import slot_bytes_of
from dovetail.train.spill.segment_placement import SegmentPlacement
from dovetail.train.spill.segments import Entry, LiveSegment
from dovetail.train.spill.spill_knobs import SpillKnobs

# How many streamed segments are on the device at once, until times are known.
_DEPTH = 3

Parts = Mapping[LiveSegment, torch.optim.Optimizer]
"""The optimizer of each segment that trains."""


class ResidentSegments:
    """The segments of one session, and where each of them lives.

    `holds` says that gradients wait on the device for a while: for their norm, or for more of them.
    """

    def __init__(
        self,
        segments: list[LiveSegment],
        parts: Parts,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        knobs: SpillKnobs,
        accumulate: int,
        holds: bool,
    ) -> None:
        self.segments, self._parts, self._device, self._knobs = segments, parts, device, knobs
        self._sums, self._holds = accumulate > 1, holds
        self._slot_bytes = {
            segment: slot_bytes_of(parts.get(segment, optimizer), (entry.master for entry in segment.trainable))
            for segment in segments
        }
        self._host_budget = knobs.host_budget()
        self.depth, self.least_depth = knobs.depth or _DEPTH, 1
        self.layout = self._lay_out(knobs.device_budget(device))

    placement: SegmentPlacement
    """There from `begin` on."""

    @property
    def room(self) -> ArenaSize:
        """What the streamed ones need of the arenas."""
        return ArenaSize.of((segment for segment in self.segments if not segment.kept), depth=self.depth)

    @property
    def bytes(self) -> int:
        """What those that stay take on the device."""
        return sum(_kept_bytes(segment, self._parts) for segment in self.segments if segment.kept)

    def records(self) -> list[Segment]:
        """The segments as planning knows them."""
        return [segment.record(self._slot_bytes[segment], sums=self._sums) for segment in self.segments]

    def disk_bytes(self, segment: LiveSegment) -> int:
        """What an update of a segment reads from disk, and writes."""
        on_disk = segment.name in self.layout.on_disk
        return segment.record(self._slot_bytes[segment], sums=self._sums).state_bytes if on_disk else 0

    def begin(self, memory: HostMemory, *, settled: bool) -> None:
        """Put each segment in its place; unless `settled`, keep only what must be kept."""
        self.placement = SegmentPlacement(self._device, memory, disk_directory=self._knobs.disk_directory)
        self._place_all(self.layout.kept if settled else self._least())

    def keep_within(self, more_bytes: int) -> int:
        """Keep on the device what fits into this many more bytes than are in use now; gives how many were taken."""
        # As the layout counts, which allows kept gradients for the time they wait.
        held = {segment.name for segment in self.segments if segment.kept}
        kept = [record for record in self.records() if record.name in held]
        before = self.room.bytes + sum(r.travel_bytes + r.state_bytes + self._holds * r.gradient_bytes for r in kept)
        self.layout = self._lay_out(before + more_bytes)
        self._place_all(self.layout.kept)
        return max(0, self.layout.device_bytes - before)

    def keep_always(self, segments: Iterable[LiveSegment]) -> None:
        """Keep these segments on the device from now on, whatever else must go."""
        for segment in segments:
            segment.fixed = True
            if not segment.kept:
                self.placement.to_device(segment, self._parts.get(segment))

    def send_in_full(self, segment: LiveSegment, entry: Entry) -> None:
        """Let this parameter travel in its own precision. The caller makes new arenas, or keeps the segment."""
        self.placement.release(segment)
        entry.dtype = entry.master.dtype
        segment.lay_out()
        put = self.placement.to_device if segment.kept else self.placement.to_host
        put(segment, self._parts.get(segment))

    def can_deepen(self) -> bool:
        """Whether the budget has room for one more streamed segment. What work takes is not in it."""
        try:
            self._lay_out(self._knobs.device_budget(self._device), depth=self.depth + 1)
        except DoesNotFit:
            return False
        return self.depth < sum(not segment.kept for segment in self.segments)

    def deepen(self, *, settled: bool) -> None:
        """Make room for one more streamed segment, from now on. As `begin`, before anything was settled."""
        self.depth = self.least_depth = self.depth + 1
        self.layout = self._lay_out(self._knobs.device_budget(self._device))
        self._place_all(self.layout.kept if settled else self._least())

    def removable(self) -> list[LiveSegment]:
        """The segments that stay on the device and need not."""
        return [segment for segment in self.segments if segment.kept and not segment.fixed]

    def drop_half(self) -> None:
        """Let half of the removable segments stream."""
        loose = self.removable()
        for segment in loose[len(loose) // 2 :]:
            self.placement.to_host(segment, self._parts.get(segment))

    def _lay_out(self, device_bytes: int, *, depth: int | None = None) -> Layout:
        return layout(
            self.records(),
            device_bytes=device_bytes,
            host_bytes=self._host_budget,
            disk_bytes=self._knobs.disk_bytes,
            working_bytes=0,
            depth=depth or self.depth,
            holds_gradients=self._holds,
        )

    def _least(self) -> set[str]:
        """What must be on the device from the first: the fixed, and what the host has no memory for."""
        records = {record.name: record for record in self.records()}
        waiting = [s.name for s in self.segments if s.name in self.layout.kept and not s.fixed]
        kept = {segment.name for segment in self.segments if segment.fixed}
        more = sum(records[name].host_bytes for name in waiting)
        free = self._host_budget - self.layout.host_bytes
        for name in waiting:
            if more <= free:
                break
            kept.add(name)
            more -= records[name].host_bytes
        return kept

    def _place_all(self, kept: "set[str] | frozenset[str]") -> None:
        for segment in self.segments:
            optimizer = self._parts.get(segment)
            if segment.name in kept and not segment.kept:
                self.placement.to_device(segment, optimizer)
            elif segment.name not in kept and (segment.kept or segment.travel is None):
                self.placement.to_host(segment, optimizer)
            if segment.name in self.layout.on_disk:
                self.placement.to_disk(segment, optimizer)


def _kept_bytes(segment: LiveSegment, parts: Parts) -> int:
    masters = sum(e.master.nbytes for e in segment.entries if e.dtype != e.master.dtype)
    slots = parts[segment].state.values() if segment in parts else ()
    tensors = (value for each in slots for value in each.values() if isinstance(value, torch.Tensor))
    return segment.travel_bytes + masters + sum(tensor.nbytes for tensor in tensors if tensor.dim())
