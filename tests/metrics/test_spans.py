"""Spans as time: open ones, gaps, gangs and repeated attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.progress import Progress, Span
from dovetail.metrics.spans import (
    Bar,
    active_seconds,
    busy_share,
    intervals,
    measured_bars,
    planned_bars,
    trained_seconds,
)
from dovetail.vocabulary import Option, Placement, Plan, Schedule

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)).map(lambda p: (p[0], p[0] + p[1])), max_size=20)


def span(start: float, end: float | None, *, placement: str = "p", device: str = "n0:0", to: int = 100) -> Span:
    return Span(
        placement=placement, devices=(device,), start_seconds=start, end_seconds=end,
        from_step=0, until_step=100, to_step=to, predicted_seconds=10.0,
    )  # fmt: skip


def test_open_spans_reach_to_the_next_or_to_now():
    assert intervals([span(0, None), span(7, None)], as_of_seconds=9) == [(0, 7), (7, 9)]
    assert intervals([], as_of_seconds=9) == []
    assert intervals([span(12, None)], as_of_seconds=9) == [(12, 12)]


def test_training_time_counts_spans_up_to_a_moment():
    spans = [span(0, 10), span(20, 30)]
    assert [trained_seconds(spans, until_seconds=at) for at in (0, 5, 15, 25, 99)] == [0, 5, 10, 15, 20]


@given(PAIRS)
def test_active_time_is_what_a_tick_count_gives(pairs: list[tuple[int, int]]):
    ticks = {tick for start, end in pairs for tick in range(start, end)}
    assert active_seconds(pairs) == len(ticks)


def test_plans_become_bars_on_the_wall_clock():
    option = Option(families=("f",), technique="spill", kind="cpu", count=1, step_seconds=(0.5,))
    placement = Placement(
        tasks=("a",), steps=(4,), option=option, devices=("n0:0",), start_seconds=1.0, duration_seconds=2.0
    )
    (bar,) = planned_bars(Plan(schedule=Schedule(placements=(placement,))), at_seconds=100.0)
    assert (bar.start_seconds, bar.end_seconds, bar.predicted_seconds) == (101.0, 103.0, 2.0)
    assert (bar.technique, bar.outcome, bar.steps) == ("spill", "planned", (4,))


def test_a_gang_is_one_bar_and_repeated_attempts_are_two():
    gang = [Progress(task="a", spans=[span(0, 10)]), Progress(task="b", spans=[span(0.5, 12, to=60)])]
    (bar,) = measured_bars(gang, as_of_seconds=20, techniques={("a", "p"): "fuse"})
    assert (bar.tasks, bar.steps, bar.end_seconds, bar.technique) == (("a", "b"), (100, 60), 12, "fuse")
    assert bar.outcome == "interrupted"
    again = [Progress(task="a", spans=[span(0, 5, to=30), span(6, 11)])]
    assert [bar.outcome for bar in measured_bars(again, as_of_seconds=20)] == ["interrupted", "completed"]


def test_equal_placement_ids_on_other_devices_stay_apart():
    tasks = [Progress(task="a", spans=[span(0, 10)]), Progress(task="b", spans=[span(0, 10, device="n0:1")])]
    assert [bar.tasks for bar in measured_bars(tasks, as_of_seconds=20)] == [("a",), ("b",)]


def test_only_the_last_open_span_is_running():
    (first, second) = measured_bars([Progress(task="a", spans=[span(0, None), span(7, None)])], as_of_seconds=9)
    assert (first.outcome, first.end_seconds, second.outcome) == ("interrupted", 7, "running")


@given(PAIRS)
def test_busy_share_is_a_share(pairs: list[tuple[int, int]]):
    bars = [Bar(tasks=("a",), steps=(1,), devices=("x",), start_seconds=s, end_seconds=e) for s, e in pairs]
    share = busy_share(bars, devices=2, seconds=55.0)
    assert share == pytest.approx(active_seconds(pairs) / 110)


def test_busy_share_of_nothing_is_unknown():
    assert busy_share([], devices=0, seconds=1.0) is None
    assert busy_share([], devices=1, seconds=0.0) is None
