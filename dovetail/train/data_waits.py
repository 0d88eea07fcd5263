"""For how long a training has waited for its data: its thread's waits, less what an accelerator computed meanwhile.

Steps of an accelerator are handed over before they are computed. A thread that waits for a batch while the device is
busy with earlier steps loses nothing, so what counts is for how long the device had nothing to do.
"""

from collections import deque

import torch

# Shorter waits are taken for what they seem: two events cost about as much.
_WORTH_SECONDS = 1e-4
# So many waits are kept before the oldest one is waited for: a thread is never further ahead of its device.
_MOST_PENDING = 64


class DataWaits:
    """Adds up waits of the steps of one device.

    >>> waits = DataWaits(torch.device("cpu"))
    >>> waits.begin_wait()
    >>> waits.end_wait(0.5)
    >>> waits.seconds()
    0.5
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_ahead = device.type == "cuda"
        self._seconds = 0.0
        self._given: torch.cuda.Event | None = None
        self._pending: deque[tuple[float, torch.cuda.Event, torch.cuda.Event]] = deque()

    def begin_wait(self) -> None:
        """Note that a batch is asked for now: what was handed to the device so far is what it can be busy with."""
        if self._is_ahead:
            self._given = self._mark()

    def end_wait(self, waited_seconds: float) -> None:
        """Note that the batch is there, and for how long the thread has waited."""
        if self._given is None or waited_seconds < _WORTH_SECONDS:
            self._seconds += waited_seconds
            return
        self._pending.append((waited_seconds, self._given, self._mark()))
        if len(self._pending) > _MOST_PENDING:
            self._pending[0][2].synchronize()
        self._add_passed()

    def seconds(self) -> float:
        """Those of all waits that the device has passed."""
        self._add_passed()
        return self._seconds

    def _add_passed(self) -> None:
        while self._pending and self._pending[0][2].query():
            waited, given, arrived = self._pending.popleft()
            self._seconds += min(waited, given.elapsed_time(arrived) / 1e3)

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
