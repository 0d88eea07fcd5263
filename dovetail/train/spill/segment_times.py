"""How long each segment computes, forward and backward, taken from one step as it goes.

Backward, a segment's time runs from the end of the one before it to its own last gradient, so that what lies between
segments counts to the one that follows, and all of them together take what backward takes.
"""

import time
from typing import Any

import torch

from dovetail.train.spill.segments import LiveSegment


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
