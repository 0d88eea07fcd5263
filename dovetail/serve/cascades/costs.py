"""What a call takes: so much each time, and so much more for each row."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

_TIMES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class CallCost:
    """Seconds of a call: `fixed`, and `row` more for each row.

    >>> CallCost(fixed=0.001, row=1e-5).of(100, calls=1)
    0.002
    """

    fixed: float
    row: float

    def of(self, rows: float, *, calls: float) -> float:
        """What so many rows take in so many calls."""
        return calls * self.fixed + rows * self.row

    @classmethod
    def measure(
        cls, call: Callable[[Any], Any], *counted: tuple[int, Any], clock: Callable[[], float] = time.process_time
    ) -> "CallCost":
        """That of a call, by a few rows and by many, each with how many they are; seconds of CPU unless another clock
        is given."""
        (few, some), (many, more) = counted
        first, second = _least_seconds(call, some, clock), _least_seconds(call, more, clock)
        row = max(0.0, (second - first) / max(1, many - few))
        return cls(fixed=max(0.0, first - row * few), row=row)


def _least_seconds(call: Callable[[Any], Any], rows: Any, clock: Callable[[], float]) -> float:
    call(rows)  # what is only done once is not counted
    found = []
    for _ in range(_TIMES):
        began = clock()
        call(rows)
        found.append(clock() - began)
    return min(found)  # threads that wait for one another burn CPU where others are at work
