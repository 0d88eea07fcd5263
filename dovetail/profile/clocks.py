"""Marks in time on a device, and the seconds between them."""

import abc
import time
from typing import Any

import torch


class Clock(abc.ABC):
    """Marks moments in the work of one device. `mark` may be called from any thread, `seconds` when work is done."""

    @abc.abstractmethod
    def mark(self) -> Any:
        """A mark in the device's work, set now."""

    @abc.abstractmethod
    def seconds(self, start: Any, end: Any) -> float:
        """The time from one mark to a later one. Waits for the device."""


class ProcessorClock(Clock):
    """Wall time: on a CPU an operation is done when it returns.

    >>> clock = ProcessorClock()
    >>> clock.seconds(clock.mark(), clock.mark()) >= 0
    True
    """

    def mark(self) -> float:
        """Read the clock."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """The seconds between two readings."""
        return end - start


class EventClock(Clock):
    """CUDA events: marks lie in the device's stream, so the host need not wait between them."""

    def mark(self) -> torch.cuda.Event:
        """An event after all work given to the current stream so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """The seconds between two events. Waits for the later one."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def clock_for(device: torch.device) -> Clock:
    """The clock that times work on a device.

    >>> type(clock_for(torch.device("cpu"))).__name__
    'ProcessorClock'
    """
    return EventClock() if device.type == "cuda" else ProcessorClock()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given.

    >>> synchronize(torch.device("cpu"))
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
