"""Metrics over a task's steps. Knows values and when they were seen; knows nothing of where they are kept."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Protocol

from dovetail.vocabulary import Stop
from dovetail.vocabulary.work import suggest_goal


class Measured(Protocol):
    """What a point must have to be on a curve; the store's points do."""

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def at_seconds(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric of one task, by ascending step.

    >>> Curve(name="loss", steps=(1, 2), values=(0.9, 0.5), at_seconds=(10.0, 11.0)).last
    0.5
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    at_seconds: tuple[float, ...]

    @property
    def last(self) -> float | None:
        """The value at the last step, which may be NaN; None where there is none."""
        return self.values[-1] if self.values else None


def curves(points: Iterable[Measured]) -> dict[str, Curve]:
    """One task's points as curves, by name. Where a step comes twice, the one seen last counts.

    >>> from types import SimpleNamespace as P
    >>> points = [P(name="loss", step=2, value=0.5, at_seconds=3.0), P(name="loss", step=1, value=0.9, at_seconds=2.0)]
    >>> curves(points)["loss"].values
    (0.9, 0.5)
    """
    by_name: dict[str, dict[int, Measured]] = {}
    for point in points:
        steps = by_name.setdefault(point.name, {})
        if point.step not in steps or steps[point.step].at_seconds <= point.at_seconds:
            steps[point.step] = point
    return {name: _curve(name, [steps[step] for step in sorted(steps)]) for name, steps in sorted(by_name.items())}


def goal_of(name: str, stop: Stop | None = None) -> str:
    """Whether a metric is to be `max` or `min`: what the stopping rule says, else what its name suggests.

    >>> goal_of("loss"), goal_of("valid_accuracy"), goal_of("wer", Stop(steps=9, metric="wer", at_least=2.0))
    ('min', 'max', 'max')
    """
    told = stop.direction if stop is not None and stop.metric == name else None
    return told or suggest_goal(name) or "min"


def best(curve: Curve, *, goal: str | None = None) -> tuple[int, float] | None:
    """(step, value) of the best value, the earliest of equals; None where no value is finite.

    >>> best(Curve(name="accuracy", steps=(5, 10, 15), values=(0.1, 0.4, float("nan")), at_seconds=(1, 2, 3)))
    (10, 0.4)
    """
    goal = goal or goal_of(curve.name)
    finite = [pair for pair in zip(curve.steps, curve.values, strict=True) if math.isfinite(pair[1])]
    if not finite:
        return None
    sign = -1 if goal == "max" else 1
    return min(finite, key=lambda pair: (sign * pair[1], pair[0]))


def thin(curve: Curve, *, most: int) -> Curve:
    """At most `most` points (at least 4) that draw the same picture: both ends, and the lowest and highest
    value of each stretch between, so that no spike is lost.

    >>> values = (0.0,) * 50 + (9.0,) + (0.0,) * 49
    >>> curve = Curve(name="loss", steps=tuple(range(100)), values=values, at_seconds=(0.0,) * 100)
    >>> len(thin(curve, most=10).steps) <= 10, max(thin(curve, most=10).values)
    (True, 9.0)
    """
    count = len(curve.steps)
    if count <= max(most, 4):
        return curve
    stretches = max((most - 2) // 2, 1)
    kept = {0, count - 1}
    for number in range(stretches):
        inside = range(1 + number * (count - 2) // stretches, 1 + (number + 1) * (count - 2) // stretches)
        kept |= _extremes(curve.values, inside)
    order = sorted(kept)
    return Curve(
        name=curve.name,
        steps=tuple(curve.steps[i] for i in order),
        values=tuple(curve.values[i] for i in order),
        at_seconds=tuple(curve.at_seconds[i] for i in order),
    )


def _extremes(values: tuple[float, ...], inside: range) -> set[int]:
    finite = [i for i in inside if math.isfinite(values[i])]
    if not finite:  # one that is not finite stands for them, so that the gap stays visible
        return set(inside[:1])
    return {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}


def _curve(name: str, points: list[Measured]) -> Curve:
    return Curve(
        name=name,
        steps=tuple(point.step for point in points),
        values=tuple(point.value for point in points),
        at_seconds=tuple(point.at_seconds for point in points),
    )
