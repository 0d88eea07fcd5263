"""How long each segment computes, taken from one step as it goes, and what a step will take by that and by the rates of
this machine.

Backward, a segment's time runs from the end of the one before it to its own last gradient, so that what lies between
segments counts to the one that follows, and all of them together take what backward takes.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.planning.techniques.spill import Layout, Pace, Segment, Spilled, StreamingRates, step_seconds
from dovetail.train.spill.segments import LiveSegment

_PROBE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Device bytes, host bytes (pinned among them) and the pace of a step."""

    device_bytes: int
    host_bytes: int
    pinned_bytes: int
    disk_bytes: int
    pace: Pace | None = None


def with_times(segments: Sequence[Segment], seconds: Mapping[str, tuple[float, float]]) -> tuple[Segment, ...]:
    """The segments with their measured seconds; one that was not seen takes none."""
    return tuple(
        dataclasses.replace(
            segment,
            forward_seconds=seconds.get(segment.name, (0.0, 0.0))[0],
            backward_seconds=seconds.get(segment.name, (0.0, 0.0))[1],
        )
        for segment in segments
    )


def pace(members: Sequence[tuple[Sequence[Segment], Layout, int]], *, rates: StreamingRates, clip: bool) -> Pace:
    """The pace of a gang of (segments, layout, accumulate)."""
    gang = [Spilled(segments=tuple(s), layout=where, accumulate=accumulate) for s, where, accumulate in members]
    return step_seconds(gang, rates=rates, clip=clip)


def link_rates(device: torch.device, buffer: torch.Tensor | None) -> dict[str, float]:
    """How fast bytes go up and down between a pinned buffer and the device; nothing without either."""
    if device.type != "cuda" or buffer is None or not buffer.nbytes:
        return {}
    host = buffer[:_PROBE_BYTES]
    there = torch.empty_like(host, device=device)
    return {
        "up_bytes_per_second": _rate(there, host, device),
        # Into a copy of its own: what the buffer holds is a model's.
        "down_bytes_per_second": _rate(torch.empty_like(host).pin_memory(), there, device),
    }


def _rate(target: Any, source: Any, device: torch.device) -> float:
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(8):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    return float(8 * source.nbytes / (time.perf_counter() - start))


class SegmentTimes:
    """Marks of one step on a device's own clock.

    >>> SegmentTimes(torch.device("cpu")).seconds()
    {}
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_cuda = device, device.type == "cuda"
        self._forward: list[tuple[LiveSegment, Any, Any]] = []
        self._backward: list[tuple[LiveSegment | None, Any]] = []
        self._entered: dict[LiveSegment, list[Any]] = {}
        self._last: Any = None

    def enter(self, segment: LiveSegment) -> None:
        """Mark the beginning of the forward of a segment."""
        self._entered.setdefault(segment, []).append(self._mark())

    def leave(self, segment: LiveSegment) -> None:
        """Mark the end of the forward that began last."""
        end = self._mark()
        started = self._entered[segment].pop()
        if not self._entered[segment]:  # of a segment within itself the outer run counts
            self._forward.append((segment, started, end))
        if not self._backward:
            self._last = end

    def complete(self, segment: LiveSegment) -> None:
        """Mark the end of the backward of a segment."""
        if not self._backward:
            self._backward.append((None, self._mark() if self._last is None else self._last))
        self._backward.append((segment, self._mark()))

    def seconds(self) -> dict[str, tuple[float, float]]:
        """Forward and backward seconds of each segment, by name. Waits for the device."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)
        found: dict[str, list[float]] = {}
        for segment, start, end in self._forward:
            found.setdefault(segment.name, [0.0, 0.0])[0] += self._between(start, end)
        for (_, start), (done, end) in zip(self._backward, self._backward[1:], strict=False):
            assert done is not None
            found.setdefault(done.name, [0.0, 0.0])[1] += self._between(start, end)
        return {name: (forward, backward) for name, (forward, backward) in found.items()}

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self._is_cuda else end - start)
