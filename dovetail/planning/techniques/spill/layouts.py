"""Which segments of a spilled model stay on the device, and where the others live, within budgets of bytes.

A session asks with its own segments, a prediction with those of a profile. Knows neither times nor layers.
"""

import itertools
from collections.abc import Iterable, Sequence

from dovetail.planning.streaming.records import GRADIENT_ROOM, Layout, Segment
from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.vocabulary import TechniqueRefused
from dovetail.vocabulary.units import show_bytes


class DoesNotFit(TechniqueRefused):
    """No layout keeps within the budgets; the message says what is needed at least, what there is, and what to do.

    >>> DoesNotFit("needs at least 9 B on the device; the budget is 8 B.", 9, 8).needed_bytes
    9
    """

    def __init__(self, reason: str, needed_bytes: int = 0, free_bytes: int = 0) -> None:
        super().__init__(reason)
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


def layout(
    segments: Sequence[Segment],
    *,
    device_bytes: int,
    host_bytes: int,
    working_bytes: int,
    depth: int = 2,
    disk_bytes: int = 0,
    holds_gradients: bool = False,
) -> Layout:
    """Where the segments live within these budgets. Raises `DoesNotFit` where there is no such layout.

    Kept are the fixed segments and then as many of the others as fit, the smaller first, of equal ones the first:
    forward needs those soonest after their update.
    `working_bytes` are activations and what is temporary. `holds_gradients` where gradients of
    kept segments wait for the end of a step (clipping, accumulation). What streams takes room for `depth` segments and
    two gradients on the device; state that exceeds the host goes to disk, the last segment's first: it has the most
    time between its gradient and its next forward.

    >>> segments = [Segment(name=str(number), parameters=1 << 20, travel_bytes=2 << 20, gradient_bytes=2 << 20,
    ...                     state_bytes=12 << 20) for number in range(8)]
    >>> found = layout(segments, device_bytes=64 << 20, host_bytes=8 << 30, working_bytes=20 << 20)
    >>> sorted(found.kept), found.device_bytes >> 20, found.pinned_bytes >> 20, (found.host_bytes >> 20) - 2048
    (['0', '1'], 56, 24, 96)
    """
    assert len({segment.name for segment in segments}) == len(segments), "segments must have names of their own"
    assert depth > 0, "there must be room for a segment that streams"
    kept, needed_bytes, depth = _keep(segments, device_bytes, working_bytes, depth, holds_gradients)
    streamed = [segment for segment in segments if segment.name not in kept]
    on_disk = _on_disk(streamed, host_bytes=host_bytes, disk_bytes=disk_bytes)
    moved_bytes = sum(segment.state_bytes for segment in on_disk)
    return Layout(
        kept=kept,
        on_disk=frozenset(segment.name for segment in on_disk),
        device_bytes=needed_bytes,
        host_bytes=_host_bytes(streamed) - moved_bytes,
        pinned_bytes=sum(segment.travel_bytes + segment.gradient_bytes for segment in streamed),
        disk_bytes=moved_bytes,
        depth=depth,
    )


def _keep(
    segments: Sequence[Segment], device_bytes: int, working_bytes: int, depth: int, holds_gradients: bool
) -> tuple[frozenset[str], int, int]:
    """The segments that stay, what all takes on the device, and for how many streamed ones there is room."""
    # The fixed first. Then by size, and in the order of forward where that is equal: a large segment that does not fit
    # (an embedding, as a rule) must not keep out smaller ones, and more memory must never keep less.
    order = sorted(segments, key=lambda segment: (not segment.fixed, segment.travel_bytes + segment.state_bytes))
    fixed = sum(segment.fixed for segment in segments)
    held = [each.travel_bytes + each.state_bytes + holds_gradients * each.gradient_bytes for each in order]
    kept_bytes = list(itertools.accumulate(held, initial=0))
    travel = [*itertools.accumulate((each.travel_bytes for each in reversed(order)), max, initial=0)][::-1]
    gradient = [*itertools.accumulate((each.gradient_bytes for each in reversed(order)), max, initial=0)][::-1]

    def needed(count: int) -> int:
        """With the first `count` kept. All kept needs no room, so it may need less than one fewer."""
        slots = min(depth, len(order) - count)
        return working_bytes + kept_bytes[count] + slots * travel[count] + GRADIENT_ROOM * gradient[count]

    counts = range(len(order), fixed - 1, -1)
    count = next((count for count in counts if needed(count) <= device_bytes), None)
    if count is None:
        least = min(counts, key=needed)
        parts = (working_bytes, kept_bytes[least], needed(least) - working_bytes - kept_bytes[least])
        raise _no_device(needed(least), device_bytes, *parts)
    return frozenset(segment.name for segment in order[:count]), needed(count), min(depth, len(order) - count)


def _no_device(needed: int, budget: int, working: int, kept: int, room: int) -> DoesNotFit:
    reason = (
        f"needs at least {show_bytes(needed)} on the device ({show_bytes(working)} to work in, {show_bytes(kept)} for "
        f"segments that stay, {show_bytes(room)} for those that stream); the budget is {show_bytes(budget)}. "
        f"Raise it, recompute activations, use a smaller batch with accumulate, or cut the model into smaller segments."
    )
    return DoesNotFit(reason, needed, budget)


def _on_disk(streamed: Sequence[Segment], *, host_bytes: int, disk_bytes: int) -> list[Segment]:
    """The segments whose state must leave the host, as few as will do, from the last on."""
    needed_bytes, free_bytes, moved = _host_bytes(streamed), disk_bytes, []
    for segment in reversed(streamed):
        if needed_bytes <= host_bytes or segment.state_bytes > free_bytes:
            break
        if segment.state_bytes:
            moved.append(segment)
        needed_bytes, free_bytes = needed_bytes - segment.state_bytes, free_bytes - segment.state_bytes
    if needed_bytes > host_bytes:
        reason = (
            f"needs at least {show_bytes(needed_bytes)} of host memory for the segments that stream, with "
            f"{show_bytes(disk_bytes - free_bytes)} of their state on disk; there are {show_bytes(host_bytes)}, and "
            f"{show_bytes(disk_bytes)} of disk. Raise the device's budget, allow more disk, or add host memory."
        )
        raise DoesNotFit(reason, needed_bytes, host_bytes)
    return moved


def _host_bytes(streamed: Iterable[Segment]) -> int:
    return CUDA_HOST_BYTES + sum(each.travel_bytes + each.gradient_bytes + each.state_bytes for each in streamed)
