"""Time to target: steps, training time and wall time until a metric first was good enough."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.curves import Curve
from dovetail.metrics.progress import Span
from dovetail.metrics.targets import time_to_target
from dovetail.vocabulary import Stop

STOP = Stop(steps=100, metric="accuracy", at_least=0.8)


def span(start: float, end: float | None) -> Span:
    return Span(
        placement="p", devices=("n0:0",), start_seconds=start, end_seconds=end,
        from_step=0, until_step=100, predicted_seconds=1.0,
    )  # fmt: skip


def curve(*values: float) -> dict[str, Curve]:
    steps = tuple(range(10, 10 * len(values) + 10, 10))
    return {"accuracy": Curve(name="accuracy", steps=steps, values=values, at_seconds=tuple(map(float, steps)))}


def test_pauses_count_on_the_wall_only():
    reached = time_to_target(STOP, curves=curve(0.1, float("nan"), 0.85, 0.7, 0.9), spans=[span(5, 15), span(25, None)])
    assert reached is not None
    assert (reached.step, reached.value) == (30, 0.85)
    assert (reached.trained_seconds, reached.wall_seconds) == (15.0, 25.0)


def test_never_is_none():
    assert time_to_target(STOP, curves=curve(0.1, 0.2), spans=[span(0, None)]) is None
    assert time_to_target(STOP, curves={}, spans=[]) is None
    assert time_to_target(Stop(steps=5), curves=curve(0.9), spans=[]) is None


def test_targets_from_above():
    stop = Stop(steps=100, metric="accuracy", at_most=0.3)
    reached = time_to_target(stop, curves=curve(0.5, 0.3), spans=[span(0, None)])
    assert reached is not None
    assert reached.step == 20
    assert stop.target == "accuracy ≤ 0.3"
    assert Stop(steps=5).target == ""


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_it_is_the_first_that_reaches(values: list[float]):
    reached = time_to_target(STOP, curves=curve(*values), spans=[span(0, None)])
    first = next((n for n, value in enumerate(values) if value >= 0.8), None)
    assert (None if reached is None else reached.step) == (None if first is None else 10 * first + 10)
