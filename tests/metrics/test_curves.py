"""Curves hold what was measured: in order, once a step, thinned without losing what one would see."""

import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.curves import Curve, best, curves, goal_of, thin
from dovetail.vocabulary import Stop

VALUES = st.floats(allow_nan=True, allow_infinity=True)


def point(step: int, value: float, *, name: str = "loss", at_seconds: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(name=name, step=step, value=value, at_seconds=at_seconds)


def make(values: list[float], *, name: str = "loss") -> Curve:
    steps = tuple(range(1, len(values) + 1))
    return Curve(name=name, steps=steps, values=tuple(values), at_seconds=tuple(map(float, steps)))


def test_points_are_grouped_by_name():
    made = curves([point(1, 0.9), point(1, 0.3, name="accuracy"), point(2, 0.8)])
    assert list(made) == ["accuracy", "loss"]
    assert made["loss"].values == (0.9, 0.8)


def test_a_repeated_step_counts_as_it_was_seen_last():
    later, earlier = point(5, 0.2, at_seconds=9.0), point(5, 0.7, at_seconds=4.0)
    assert curves([later, earlier])["loss"].values == (0.2,)
    assert curves([earlier, later])["loss"].values == (0.2,)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), max_size=60))
def test_steps_ascend_and_none_is_lost(pairs: list[tuple[int, float]]):
    made = curves([point(step, value, at_seconds=float(n)) for n, (step, value) in enumerate(pairs)])
    if pairs:
        assert made["loss"].steps == tuple(sorted({step for step, _ in pairs}))
        assert dict(zip(made["loss"].steps, made["loss"].values, strict=True)) == dict(pairs)
    else:
        assert made == {}


def test_no_points_no_last():
    assert make([]).last is None
    assert math.isnan(make([1.0, float("nan")]).last or 0.0)


def test_best_follows_the_goal_and_passes_over_what_is_not_finite():
    values = [0.5, float("nan"), 0.2, float("-inf"), 0.9, 0.2]
    assert best(make(values)) == (3, 0.2)
    assert best(make(values), goal="max") == (5, 0.9)
    assert best(make([float("nan")])) is None
    assert best(make([])) is None


def test_goals_come_from_the_stopping_rule_before_the_name():
    assert goal_of("accuracy", Stop(steps=1, metric="accuracy", at_most=0.1)) == "min"
    assert goal_of("accuracy", Stop(steps=1, metric="loss", at_most=0.1)) == "max"
    assert goal_of("accuracy_loss") == "min"
    assert goal_of("something") == "min"


@given(st.lists(VALUES, max_size=300), st.integers(4, 60))
def test_thinning_keeps_the_ends_the_extremes_and_the_order(values: list[float], most: int):
    whole, less = make(values), thin(make(values), most=most)
    assert len(less.steps) <= most
    assert list(less.steps) == sorted(set(less.steps))
    assert set(zip(less.steps, map(repr, less.values), strict=True)) <= set(
        zip(whole.steps, map(repr, whole.values), strict=True)
    )
    finite = [value for value in values[1:-1] if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= set(less.values)
    assert less.steps[:1] == whole.steps[:1]
    assert less.steps[-1:] == whole.steps[-1:]


def test_short_curves_are_left_alone():
    curve = make([1.0, 2.0, 3.0])
    assert thin(curve, most=3) is curve
