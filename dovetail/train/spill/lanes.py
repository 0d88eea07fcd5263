"""Copies that go on beside computing: one stream up to the device, one down from it.

A `Mark` is a moment on a stream. On CUDA marks are events; on a CPU, where the arena stands in for a device, every
copy is made at once and all marks are past. Callers are the same for both.
"""

from collections.abc import Iterable
from typing import Protocol

import torch


class Mark(Protocol):
    """A moment on a stream."""

    def synchronize(self) -> None:
        """Block this thread until the moment is past."""

    def query(self) -> bool:
        """Whether the moment has passed."""


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
        """An event on the computing stream."""
        event: Mark = self._compute.record_event(_event())
        return event

    def follow(self, mark: Mark) -> None:
        """Make the computing stream wait."""
        self._compute.wait_event(mark)  # type: ignore[arg-type]


def _event() -> torch.cuda.Event:
    # Blocking: a thread that waits must not spin on a core that the host's updates need.
    return torch.cuda.Event(blocking=True)
