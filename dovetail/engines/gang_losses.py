"""Losses of a gang on their way from the device: brought over for all its members at once, without waiting for steps
that the device is still at. To read each member's by itself kept a device idle for a tenth of the time.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from dovetail.train.base import StepReport


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """The losses of one step of some members, in one tensor or in one each, and its end in the device's queue, if there
    is one."""

    numbers: tuple[int, ...]
    losses: torch.Tensor | tuple[torch.Tensor, ...]
    end: "torch.cuda.Event | None"


class GangLosses:
    """What the members of a gang have lost in steps that nobody has looked at.

    >>> losses = GangLosses(torch.device("cpu"))
    >>> losses.add([0, 1], [StepReport(step=1, loss=torch.tensor(number), metrics={}) for number in (0.5, 0.25)])
    >>> losses.take(0), losses.take(1), losses.take(1)
    ([0.5], [0.25], [])
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending: list[_Step] = []
        self._brought: dict[int, list[float]] = collections.defaultdict(list)
        self._last: torch.cuda.Event | None = None
        """The end of the last step that was brought over."""

    def add(self, numbers: Sequence[int], reports: Sequence[StepReport], *, in_one: torch.Tensor | None = None) -> None:
        """Members of these numbers have taken a step. `in_one` are their losses where the session has them so."""
        end = None
        if self._device.type == "cuda":
            end = torch.cuda.Event()  # one for all: to make one takes as long as all else that is done for a member
            end.record()
        losses = tuple([report.loss for report in reports]) if in_one is None else in_one
        self._pending.append(_Step(tuple(numbers), losses, end))

    def take(self, number: int, *, wait: bool = True) -> list[float]:
        """The losses of a member's steps since they were last taken: unless `wait`, only of steps that have ended by
        now. The device may still be at the newest, and whoever waits for it leaves it without work (a spilled step of
        1.05 s took 1.38 s)."""
        if self._pending and (wait or not self._brought[number]):
            self._bring(len(self._pending) if wait else self._count_ended())
        return self._brought.pop(number, [])

    @contextlib.contextmanager
    def beside(self, *, wait: bool) -> Iterator[None]:
        """Within, unless `wait`, what is read from the device waits for the steps that were brought over, and not for
        what was queued after them."""
        if wait or self._last is None:
            yield
            return
        stream = torch.cuda.Stream()
        stream.wait_event(self._last)
        with torch.cuda.stream(stream):
            yield

    def _count_ended(self) -> int:
        """How many of the pending steps can be read at once, or soon: all but the newest must end before long."""
        for count in range(len(self._pending), 0, -1):
            end = self._pending[count - 1].end
            if end is None or end.query():
                return count
        return len(self._pending) - 1

    def _bring(self, count: int) -> None:
        steps, self._pending = self._pending[:count], self._pending[count:]
        if not steps:
            return
        self._last = steps[-1].end
        with self.beside(wait=not self._pending):
            values = iter(_read([step.losses for step in steps]))
        for step in steps:
            for number in step.numbers:
                self._brought[number].append(next(values))


def _read(losses: list[torch.Tensor | tuple[torch.Tensor, ...]]) -> list[float]:
    flat: list[torch.Tensor] = []
    for each in losses:
        flat += [each.float()] if isinstance(each, torch.Tensor) else [one.float().reshape(1) for one in each]
    found: list[float] = torch.cat(flat).tolist()
    return found
