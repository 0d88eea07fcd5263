"""An order that workers carry out: who they are, and what has come of it so far."""

import dataclasses
import math

from dovetail.engines.base import Order
from dovetail.engines.workers.base import Worker


@dataclasses.dataclass(kw_only=True)
class UnderWay:
    """An order under way: its workers, in the order of ranks, and what has come of it."""

    order: Order
    workers: list[Worker]
    ended: set[str] = dataclasses.field(default_factory=set)
    through: list[Worker] = dataclasses.field(default_factory=list)
    hearsay: str = ""  # what ranks say that found another one gone; who is gone knows better
    due: float = math.inf

    def name(self, worker: Worker) -> str:
        """Which of several ranks a worker is."""
        return f"rank {self.workers.index(worker)} of {len(self.workers)} on {', '.join(worker.devices)}"
