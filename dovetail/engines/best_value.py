"""The best value of a metric so far, and for how many evaluations it has stood: for patience, and for the checkpoint
that is kept because it is the best."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestValue:
    """A metric's best value, the step it was reached at, and how many evaluations there were since.

    >>> best = BestValue(metric="loss", goal="min")
    >>> for step, value in ((10, 0.5), (20, 0.3), (30, 0.4), (40, float("nan"))):
    ...     best = best.add(value, step=step)
    >>> best.value, best.step, best.waited
    (0.3, 20, 2)
    """

    metric: str
    goal: str
    value: float | None = None
    step: int = 0
    waited: int = 0

    def add(self, value: float, *, step: int) -> Self:
        """With one more evaluation; an equal value is no better, and NaN never is."""
        sign = 1.0 if self.goal == "max" else -1.0
        better = not math.isnan(value) and (self.value is None or sign * value > sign * self.value)
        if better:
            return dataclasses.replace(self, value=value, step=step, waited=0)
        return dataclasses.replace(self, waited=self.waited + 1)

    def resume(self, saved: Mapping[str, Any] | None) -> Self:
        """What a checkpoint holds of it; itself, anew, where that is of another metric or goal."""
        if not saved or (saved["metric"], saved["goal"]) != (self.metric, self.goal):
            return self
        return dataclasses.replace(self, **saved)
