"""When a run crossed its target: at the first evaluation that met it, and where between two it may have been."""

import dataclasses
import math
from collections.abc import Sequence

from dovetail.metrics.race.run_clock import ClockReading
from dovetail.vocabulary import Stop


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetCrossing:
    """The first evaluation that met the target, and the last one before it that did not.

    A target is only seen to be met when it is evaluated: the metric crossed it after the miss, not later than the hit.
    `by_interpolation` is where on a straight line between the two values, as a share of that stretch; None where the
    first evaluation of all was a hit, so that nothing is known of the time before.

    >>> miss, hit = (
    ...     ClockReading(step=step, value=value, at_seconds=0.0, seconds={"train": step / 10.0})
    ...     for step, value in ((10, 0.90), (20, 0.95))
    ... )
    >>> crossing = find_crossing([miss, hit], Stop(steps=99, metric="accuracy", at_least=0.94))
    >>> crossing.seconds("mlperf"), round(crossing.interpolated_seconds("mlperf"), 6), crossing.error_seconds("mlperf")
    (2.0, 1.8, 1.0)
    """

    hit: ClockReading
    miss: ClockReading | None
    by_interpolation: float | None

    def seconds(self, clock: str) -> float:
        """The time at the first hit, by a clock."""
        return self.hit.seconds_by(clock)

    def interpolated_seconds(self, clock: str) -> float:
        """The time at which a straight line between miss and hit meets the target; that of the hit without a miss."""
        return self._between(self.miss.seconds_by(clock) if self.miss else 0.0, self.hit.seconds_by(clock))

    @property
    def interpolated_step(self) -> float:
        """The step at which a straight line between miss and hit meets the target."""
        return self._between(self.miss.step if self.miss else 0, self.hit.step)

    def error_seconds(self, clock: str) -> float:
        """How much earlier than at the hit the target may have been met: the time since the last miss."""
        return self.hit.seconds_by(clock) - (self.miss.seconds_by(clock) if self.miss else 0.0)

    def _between(self, miss: float, hit: float) -> float:
        return hit if self.by_interpolation is None else miss + self.by_interpolation * (hit - miss)


def find_crossing(readings: Sequence[ClockReading], stop: Stop) -> TargetCrossing | None:
    """The first crossing of a target in these readings, which are in the order of their time; None where there is none.

    >>> find_crossing([], Stop(steps=99, metric="accuracy", at_least=0.94)) is None
    True
    """
    assert stop.metric is not None
    target = stop.at_least if stop.at_least is not None else stop.at_most
    assert target is not None
    miss: ClockReading | None = None
    for reading in readings:
        if stop.reached({stop.metric: reading.value}):
            return TargetCrossing(hit=reading, miss=miss, by_interpolation=_share(miss, reading, target))
        # Work that was lost is done again, from an earlier step: the last miss is the furthest one.
        if miss is None or reading.step >= miss.step:
            miss = reading
    return None


def _share(miss: ClockReading | None, hit: ClockReading, target: float) -> float | None:
    if miss is None or not math.isfinite(miss.value) or not math.isfinite(hit.value):
        return None
    return (target - miss.value) / (hit.value - miss.value)
