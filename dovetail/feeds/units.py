"""The parts of an epoch that a feed's workers are given, and what it gives in the end."""

import dataclasses
from typing import Any

from dovetail.feeds.assembly import FeedPosition
from dovetail.feeds.stage_chain import ItemFault, ItemRun


@dataclasses.dataclass(slots=True, eq=False)
class FeedOutput:
    """One thing that the feed will give: a batch, a fault, what its stream raised, or the end of an epoch; and where it
    stands after it."""

    after: FeedPosition
    value: Any = None
    fault: ItemFault | None = None
    error: BaseException | None = None
    is_done: bool = True
    charged_bytes: int = 0


@dataclasses.dataclass(slots=True, eq=False)
class FeedUnit:
    """Neighbouring places of an epoch on their way through the stages.

    It is either some items, or a whole batch from reading on, or, where `output` is there, a batch whose items have
    been read as other units. `at` is the stage that comes next, `upto` the one before which the worker stops that has
    it now, `end` the last.
    """

    number: int
    epoch: int
    start: int
    stop: int
    items: ItemRun
    end: int
    at: int = 0
    upto: int = 0
    is_whole: bool = False
    ends_epoch: bool = False
    output: FeedOutput | None = None
    charged_bytes: int = 0
    copies: float = 1.0
    generation: int = 0
    attempts: int = 0
    reads_stream: bool = False
    is_remote: bool = False
    """Whether the worker that has it is on another node."""
    alone_until: float = 0.0
    """Until when, by the clock, a thread that reads light items is left to read alone."""
    error: BaseException | None = None
    """What the stream raised behind its items."""
    hits: dict[int, Any] | None = None
    """What the cache had, by number."""

    def __lt__(self, other: "FeedUnit") -> bool:
        return (self.epoch, self.start) < (other.epoch, other.start)
