"""Spans as time: open ones and gaps."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.metrics.progress import Span
from dovetail.metrics.spans import active_seconds, intervals, trained_seconds

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
