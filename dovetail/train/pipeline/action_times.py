"""When a rank did what in its last steps: a few numbers an action, for the picture of a measured timetable."""

import collections
import time
from typing import Any

import torch

from dovetail.planning.pipeline.timetables import Action

# So many actions of a step are kept, which is more than a picture shows.
_MOST = 512


class ActionTimes:
    """The last `steps` steps of a rank. On CUDA the device's own clock counts, since work is done long after it was
    asked for. Ranks of one node share a clock; those of several nodes are as far apart as their clocks are.

    >>> times = ActionTimes(torch.device("cpu"), steps=1)
    >>> times.begin_step()
    >>> times.begin()
    >>> times.end(Action(operation="forward", stage=0, microbatch=3))
    >>> [row[:3] for row in times.to_json()]
    [['forward', 0, 3]]
    """

    def __init__(self, device: torch.device, *, steps: int) -> None:
        self._device = device
        self._steps: collections.deque[list[tuple[Action, Any, Any]]] = collections.deque(maxlen=steps)
        self._began: Any = None

    def begin_step(self) -> None:
        """Begin another step; the oldest one is forgotten."""
        self._steps.append([])

    def begin(self) -> None:
        """Mark the beginning of an action. Called again after a wait, it begins then."""
        self._began = self._moment()

    def end(self, action: Action) -> None:
        """Mark the end of the action that began last."""
        if len(self._steps[-1]) < _MOST:
            self._steps[-1].append((action, self._began, self._moment()))

    def to_json(self) -> list[list[Any]]:
        """Operation, stage, microbatch, start and end of every action kept, as JSON; in seconds of the wall's clock."""
        seconds = self._seconds() if self._device.type == "cuda" else float
        return [
            [action.operation, action.stage, action.microbatch, seconds(start), seconds(end)]
            for step in self._steps
            for action, start, end in step
        ]

    def _moment(self) -> Any:
        if self._device.type != "cuda":
            return time.time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self) -> Any:
        now = self._moment()
        now.synchronize()
        wall = time.time()
        return lambda event: wall - event.elapsed_time(now) / 1e3
