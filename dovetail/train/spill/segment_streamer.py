"""Which segments are on the device, and when they come and go.

Everything here is decided ahead of the device: a room is handed on while work that uses it is still under way, with
marks that make the next copy wait. So the thread that trains runs ahead, and copies start as early as memory allows.
Which segment to drop is decided by the order of the step before (the one whose next use is furthest away).
"""

import bisect
import dataclasses
from collections.abc import Callable, Iterable

import torch

from dovetail.train.spill.host_updates import HostUpdates
from dovetail.train.spill.lanes import Arena, Lanes, Mark, Slot
from dovetail.train.spill.segments import LiveSegment, placeholder
from dovetail.vocabulary.units import show_bytes


@dataclasses.dataclass(eq=False, slots=True)
class _Present:
    """A streamed segment that is on the device or on its way there."""

    slot: Slot
    arrival: Mark
    pins: int = 0
    used: Mark | None = None
    is_touched: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """Where in which segment a tensor lay that backward will ask for."""

    segment: LiveSegment
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    """In bytes, from the segment's beginning."""


class UsedWhileAway(Exception):
    """A streamed segment has gradients although its modules were never called: somebody read its weights."""

    def __init__(self, segment: LiveSegment) -> None:
        super().__init__(
            f"the weights of {segment.name!r} must be used by calling their module; they were read from outside "
            f"while they were not on the device."
        )
        self.segment = segment


class NoRoom(torch.OutOfMemoryError):
    """The segments in use at once are more than there is streaming room for."""


class Itinerary:
    """The order in which one model's step entered its segments, as the last step went."""

    def __init__(self) -> None:
        self._last: list[LiveSegment] = []
        self._places: dict[LiveSegment, list[int]] = {}
        self._now: list[LiveSegment] = []

    def enter(self, segment: LiveSegment) -> None:
        """Note that this segment is entered now."""
        self._now.append(segment)

    def end_step(self) -> None:
        """End a step: the next one is expected to go as it did."""
        if self._now != self._last:
            self._last, self._places = self._now, {}
            for place, segment in enumerate(self._last):
                self._places.setdefault(segment, []).append(place)
        self._now = []

    def ahead(self, count: int) -> list[LiveSegment]:
        """The next segments of this step, if it goes as the last one did."""
        return self._last[len(self._now) : len(self._now) + count]

    def remaining(self) -> int:
        """How many entries of this step are left, if it goes as the last one did."""
        return max(0, len(self._last) - len(self._now))

    def distance(self, segment: LiveSegment) -> int:
        """How many entries until this segment's next."""
        places, here = self._places.get(segment, []), len(self._now)
        next_place = bisect.bisect_left(places, here)
        if next_place < len(places):
            return places[next_place] - here
        return len(self._last) + (places[0] if places else len(self._last)) - here


class Streamer:
    """Brings segments into the arena and lets go of them. Called by one thread at a time."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        updates: HostUpdates,
        device: torch.device,
        distance: Callable[[LiveSegment], int],
    ) -> None:
        self.travel = self.gradients = Arena(0, slot=0, device=device)
        self.lanes, self.updates = lanes, updates
        self._distance = distance
        self._device = device
        self._present: dict[LiveSegment, _Present] = {}
        self.brought_bytes = 0

    def is_present(self, segment: LiveSegment) -> bool:
        """Whether it is on the device or on its way there."""
        return segment in self._present

    def enter(self, segment: LiveSegment) -> None:
        """Computing is about to use this segment: bring it if need be, and hold it until `leave`."""
        if segment.kept:
            return
        held = self._present.get(segment) or self._bring(segment)
        self.lanes.follow(held.arrival)
        held.pins += 1

    def touch(self, segment: LiveSegment) -> None:
        """Computing uses this segment next, and will ask again before it uses it once more."""
        held = self._present.get(segment) or self._bring(segment)
        self.lanes.follow(held.arrival)
        held.used, held.is_touched = None, True

    def leave(self, segment: LiveSegment, *, held: bool = True) -> None:
        """Computing has been told all it is to do with this segment for now; `held`: after `enter`, not `touch`."""
        if found := self._present.get(segment):
            found.pins -= held
            found.used, found.is_touched = self.lanes.mark(), False

    def prefetch(self, segment: LiveSegment) -> bool:
        """Bring a segment that will be needed soon, if nothing that is needed sooner must go for it."""
        if segment.kept or segment in self._present:
            return True
        if not self.updates.is_done(segment):
            return False
        slot = self.travel.take()
        if slot is None:
            victim = self._victim(touched=False)
            if victim is None or self._distance(victim) <= self._distance(segment):
                return False
            self.discard(victim)
            slot = self.travel.take()
        self._bring(segment, slot)
        return True

    def discard(self, segment: LiveSegment) -> None:
        """Drop the copy of a segment on the device: it is out of date, or not needed."""
        held = self._present.pop(segment, None)
        if held is not None:
            assert not held.pins, f"segment {segment.name} is in use"
            for entry in segment.entries:
                entry.leaf.data = placeholder(entry.master, entry.dtype, self._device)
            # The mark of its last use is the earliest that will do; one of now would wait for what came after.
            used = self.lanes.mark() if held.is_touched else held.used
            self.travel.give(held.slot, [held.arrival if used is None else used])

    def discard_all(self, segments: Iterable[LiveSegment]) -> None:
        """Drop the copies of these segments on the device, whoever held them."""
        for segment in segments:
            if held := self._present.get(segment):
                held.pins, held.used = 0, self.lanes.mark()
                self.discard(segment)

    def borrow(self, size: int) -> Slot:
        """A slot for gradients, which computing may write into at once."""
        slot = self.gradients.take()
        if slot is None:  # a model whose branches run backward at once: rare enough to allocate for
            return Slot(-1, torch.empty(size, dtype=torch.uint8, device=self._device), [])
        for mark in slot.marks:
            self.lanes.follow(mark)
        return slot

    def give_back(self, slot: Slot, mark: Mark) -> None:
        """A gradient slot is free once `mark` is past."""
        if slot.start >= 0:
            self.gradients.give(slot, [mark])
        else:
            mark.synchronize()  # before its memory goes back to the allocator

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | Saved:
        """What autograd is to keep for backward instead of a tensor: of a streamed segment, only where it lay."""
        if not self.travel.holds(tensor):
            # Not itself: an operation that saves its own output would hold on to it, and the graph of a forward that
            # ran out of memory would stay on the device with all its activations.
            return tensor.detach()
        place = int(tensor.storage_offset()) * tensor.element_size()
        for segment, held in self._present.items():
            if held.slot.start <= place < held.slot.start + len(held.slot.bytes):
                if not held.pins:  # its slot may be somebody else's before this is computed
                    raise UsedWhileAway(segment)
                size, stride = tensor.size(), tensor.stride()
                return Saved(segment, tensor.dtype, size, stride, place - held.slot.start)
        raise AssertionError("a tensor in the arena must belong to a segment that is there")

    def unpack(self, saved: Saved) -> torch.Tensor:
        """The same tensor, wherever its segment is now. It must have been entered."""
        start = (self._present[saved.segment].slot.start + saved.offset) // saved.dtype.itemsize
        return torch.as_strided(self.travel.view_as(saved.dtype), saved.size, saved.stride, start)

    def _bring(self, segment: LiveSegment, slot: Slot | None = None) -> _Present:
        assert segment.travel is not None
        self.updates.finish(segment)
        slot = slot or self._slot()
        target = slot.bytes[: segment.travel_bytes]
        arrival = self.lanes.up(target, segment.travel, after=slot.marks)
        self.brought_bytes += segment.travel_bytes
        for entry in segment.entries:
            entry.leaf.data = entry.view(target)
        held = self._present[segment] = _Present(slot, arrival)
        return held

    def _slot(self) -> Slot:
        slot = self.travel.take()
        if slot is None:
            victim = self._victim(touched=True)
            if victim is None:
                raise NoRoom(
                    f"the segments in use at once must fit the device's streaming room of "
                    f"{show_bytes(self.travel.size)}; all of it is in use. "
                    f"Use a smaller batch with accumulate, or more device memory (--device-memory, device_memory=)."
                )
            self.discard(victim)
            slot = self.travel.take()
        assert slot is not None
        return slot

    def _victim(self, *, touched: bool) -> LiveSegment | None:
        free = [s for s, held in self._present.items() if not held.pins and (touched or not held.is_touched)]
        return max(free, key=self._distance, default=None)
