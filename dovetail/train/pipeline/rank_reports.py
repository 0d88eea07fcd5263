"""What other ranks found in a step, on rank 0, and when each did what, for the picture of a measured timetable."""

import collections
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dovetail.planning.pipeline.timetables import Action
from dovetail.train.pipeline.mail import Mail
from dovetail.train.ranks import Ranks
from dovetail.train.state import pack, unpack

Found = dict[int, tuple[torch.Tensor, Mapping[str, Any]]]


def tell(mine: Found, *, mail: Mail) -> None:
    """Send rank 0 what this rank found of a step, for `collect_losses`."""
    mail.settle()
    mail.write(0, json.dumps([[number, _encode(loss), _encode(dict(m))] for number, (loss, m) in mine.items()]))


def collect_losses(
    mine: Found, sources: Sequence[int], *, first: int, mail: Mail
) -> tuple[list[torch.Tensor], Mapping[str, Any]]:
    """On rank 0, the losses of a step's microbatches in order, and the last one's metrics. `sources` are the ranks that
    computed each of them, numbered from `first`."""
    found = dict(mine)
    for source in sorted(set(sources) - {0}):
        told = json.loads(mail.read(source))
        found |= {number: (_decode(loss), _decode(metrics)) for number, loss, metrics in told}
    losses = [found[first + place][0] for place in range(len(sources))]
    return losses, found[first + len(sources) - 1][1]


def gather_reports(mine: Any, *, ranks: Ranks, mail: Mail) -> list[Any]:
    """What each rank has, by rank, on rank 0; of no use on the others. It must be JSON."""
    if not ranks.leads:
        mail.settle()
        mail.write(0, json.dumps(mine))
        return []
    return [mine, *(json.loads(mail.read(source)) for source in range(1, ranks.size))]


def _encode(value: Any) -> Any:
    """A value as JSON; single numbers in tensors keep their type."""
    if isinstance(value, dict):
        return {"dict": {name: _encode(each) for name, each in value.items()}}
    if isinstance(value, torch.Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), pack(value.detach().item(), "", {})]}
    return {"plain": pack(value, "", {})}


def _decode(told: Any) -> Any:
    ((kind, value),) = told.items()
    if kind == "dict":
        return {name: _decode(each) for name, each in value.items()}
    if kind == "tensor":
        return torch.tensor(unpack(value[1], {}), dtype=getattr(torch, value[0]))
    return unpack(value, {})


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
