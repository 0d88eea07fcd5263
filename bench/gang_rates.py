"""What a step of each gang of a run was predicted to take and what it took, as the run's store has it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from dovetail.store import Store
from dovetail.store.database import Point
from dovetail.vocabulary import Option
from dovetail.vocabulary.events import AttemptStarted

# The first of a placement's points are not counted: graphs are captured and caches fill while they come.
SETTLED = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class GangRate:
    """One placement."""

    option: Option
    steps: int
    """How many of them it did."""
    predicted_seconds: float
    measured_seconds: float

    @property
    def off(self) -> float:
        """How far the prediction is from what was measured, as a part of it."""
        return abs(self.predicted_seconds / self.measured_seconds - 1)


def gang_rates(home: Path) -> list[GangRate]:
    """Every placement of a run that was long enough to have a rate, those that were begun first coming first."""
    measured: dict[str, tuple[float, int]] = {}
    with Store(home) as store:
        begun = [event for _, event in store.events() if isinstance(event, AttemptStarted)]
        for event in begun:
            points = [p for p in store.points(event.task, name="train/loss") if event.step < p.step <= event.until]
            if seconds := step_seconds(points):
                slowest = seconds, max(point.step for point in points) - event.step
                measured[event.placement] = max(measured.get(event.placement, slowest), slowest)
    options = {event.placement: event.option for event in begun if event.option is not None}
    return [
        GangRate(
            option=option,
            steps=measured[placement][1],
            predicted_seconds=max(option.step_seconds),
            measured_seconds=measured[placement][0],
        )
        for placement, option in options.items()
        if placement in measured
    ]


def step_seconds(points: Sequence[Point]) -> float | None:
    """The seconds of a step once things have settled; None where too few reports came."""
    # Points that came in one report have its time: the last step of each counts.
    reports = sorted({point.at_seconds: point.step for point in sorted(points, key=lambda p: p.step)}.items())
    kept = reports[int(SETTLED * len(reports)) :]
    if len(kept) < 2:
        return None
    (first_at, first), (last_at, last) = kept[0], kept[-1]
    return (last_at - first_at) / (last - first)
