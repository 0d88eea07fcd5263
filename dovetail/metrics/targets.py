"""Time to target: how long until a metric first was good enough, as DAWNBench and MLPerf judge training.

Three figures, because they answer different questions: steps (how well it learns), seconds of training (how well
it runs, work that was lost and repeated included), and seconds on the wall (how long one waited).
"""

import dataclasses
from collections.abc import Mapping, Sequence

from dovetail.metrics.curves import Curve
from dovetail.metrics.progress import Span
from dovetail.metrics.spans import trained_seconds
from dovetail.vocabulary import Stop


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetReached:
    """When a metric first met its target, and the value with which it did."""

    metric: str
    value: float
    step: int
    trained_seconds: float
    wall_seconds: float


def time_to_target(stop: Stop, *, curves: Mapping[str, Curve], spans: Sequence[Span]) -> TargetReached | None:
    """When the target of `stop` was first reached; None where there is no target or it never was.

    Wall seconds count from the task's first start.

    >>> span = Span(placement="0", devices=("n0:0",), start_seconds=5, from_step=0, until_step=9, predicted_seconds=1)
    >>> curve = Curve(name="accuracy", steps=(2, 4), values=(0.5, 0.9), at_seconds=(6.0, 7.5))
    >>> stop = Stop(steps=9, metric="accuracy", at_least=0.8)
    >>> time_to_target(stop, curves={"accuracy": curve}, spans=[span]).trained_seconds
    2.5
    """
    if stop.metric is None or stop.metric not in curves:
        return None
    curve = curves[stop.metric]
    for step, value, at_seconds in zip(curve.steps, curve.values, curve.at_seconds, strict=True):
        if stop.reached({stop.metric: value}):
            return TargetReached(
                metric=stop.metric,
                value=value,
                step=step,
                trained_seconds=trained_seconds(spans, until_seconds=at_seconds),
                wall_seconds=at_seconds - spans[0].start_seconds if spans else 0.0,
            )
    return None
