"""What an attempt spends its time on from its first step on, for whoever judges by time to a target.

Knows seconds only; `engines/trainer` says which phase begins and ends.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator


class AttemptClock:
    """The seconds since an attempt began to take steps, by phase: `evaluate` and `save` as they are entered, `read` and
    `compile` as they are told, and `train`, which is all the rest.

    >>> now = iter([0.0, 5.0, 6.0, 7.0])
    >>> clock = AttemptClock(time=lambda: next(now), compiled=lambda: 0.0)
    >>> with clock.phase("evaluate"):
    ...     pass
    >>> clock.seconds(read=2.0)
    {'evaluate': 1.0, 'read': 2.0, 'train': 4.0}
    """

    def __init__(
        self, *, time: Callable[[], float] = time.monotonic, compiled: Callable[[], float] | None = None
    ) -> None:
        self._time, self._compiled = time, compiled or compiled_seconds
        self.begin()

    def begin(self) -> None:
        """Start counting: the attempt's first step is next."""
        self._phases: dict[str, float] = {}
        self._compiled_before, self._since = self._compiled(), self._time()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done within is no part of the steps, unless it is compiling."""
        began, compiled = self._time(), self._compiled()
        try:
            yield
        finally:
            spent = self._time() - began - (self._compiled() - compiled)
            self._phases[name] = self._phases.get(name, 0.0) + max(spent, 0.0)

    def stepping_seconds(self) -> float:
        """How long steps have taken, waiting for data and compiling included."""
        return self._time() - self._since - sum(self._phases.values())

    def seconds(self, *, read: float) -> dict[str, float]:
        """All seconds so far by phase; `read` is for how long steps have waited for their batches."""
        stepping = max(0.0, self.stepping_seconds())
        compiled, read = self._compiled() - self._compiled_before, min(read, stepping)
        compiled = min(compiled, stepping - read)
        told = {"compile": compiled, "read": read, "train": stepping - read - compiled}
        return {**self._phases, **{name: seconds for name, seconds in told.items() if seconds > 0}}


def compiled_seconds() -> float:
    """How long torch.compile has compiled in this process, by torch's own account; none where nothing has imported it.

    >>> compiled_seconds() >= 0
    True
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return float(dynamo.calculate_time_spent()["total_wall_time"]) if dynamo is not None else 0.0
