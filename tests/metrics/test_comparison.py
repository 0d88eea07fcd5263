"""Predictions are judged only by spans that did what was predicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.comparison import Comparison, compare
from dovetail.metrics.progress import Progress, Span
from dovetail.vocabulary import Allocation, Option, Placement, Plan, Schedule


def span(start: float, end: float | None, *, predicted: float = 10.0, to: int = 100) -> Span:
    return Span(
        placement="p", devices=("n0:0",), start_seconds=start, end_seconds=end,
        from_step=20, until_step=100, to_step=to, predicted_seconds=predicted,
    )  # fmt: skip


def task(name: str, *spans: Span) -> Progress:
    return Progress(task=name, spans=list(spans))


def plan(seconds: float) -> Plan:
    option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    placement = Placement(
        tasks=("a",), steps=(4,), option=option, devices=("n0:0",), start_seconds=0.0, duration_seconds=seconds
    )
    return Plan(schedule=Schedule(placements=(placement,)))


def test_ended_spans_are_compared_and_others_counted():
    made = compare(
        [
            task("a", span(0, 12)),
            task("b", span(0, 5, to=60), span(6, 14, predicted=8.0)),
            task("c", span(12, None)),
            task("d", span(3, 4, predicted=0.0)),
            task("e", span(3, 4, predicted=float("nan"))),
        ],
        as_of_seconds=20.0,
    )
    assert [(one.task, one.ratio, one.steps) for one in made.spans] == [("a", 1.2, 80), ("b", 1.0, 80)]
    assert (made.interrupted, made.running, made.unpredicted) == (1, 1, 2)
    assert made.median_ratio == pytest.approx(1.1)


def test_an_open_span_with_a_successor_was_interrupted():
    assert compare([task("a", span(0, None), span(5, 15))], as_of_seconds=20.0).interrupted == 1


def test_the_first_plan_is_the_promise():
    plans = [(1, 0.0, Plan(allocation=Allocation(shares=()))), (2, 0.0, plan(40.0)), (3, 9.0, plan(10.0))]
    made = compare([task("a", span(2, 12)), task("b", span(32, 52))], plans=plans, as_of_seconds=60.0)
    assert (made.planned_seconds, made.measured_seconds, made.active_seconds) == (40.0, 50, 30)


def test_nothing_yet():
    assert compare([], as_of_seconds=0.0) == Comparison()


@given(st.lists(st.tuples(st.floats(0.1, 100), st.booleans(), st.booleans()), max_size=20))
def test_every_span_is_counted_once(cases: list[tuple[float, bool, bool]]):
    tasks = [
        task(str(n), span(0, seconds if ended else None, to=100 if whole else 50))
        for n, (seconds, ended, whole) in enumerate(cases)
    ]
    made = compare(tasks, as_of_seconds=200.0)
    assert len(made.spans) + made.interrupted + made.running + made.unpredicted == len(cases)
    assert all(one.ratio == pytest.approx(one.measured_seconds / 10.0) for one in made.spans)
