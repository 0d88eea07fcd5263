"""Windows hold what came in them, in whatever order, as long as they are kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail as dt
from dovetail.watch.streams.time_windows import TimeWindows

events = st.lists(st.tuples(st.integers(-50, 400), st.floats(-1e6, 1e6)), max_size=60)


@given(events, st.integers(1, 60))
def test_summaries_are_those_of_the_events_of_each_window(rows, cut):
    windows = TimeWindows(metrics=["m"], seconds=10.0, kept=1_000)
    for start in range(0, len(rows), cut):
        part = np.array(rows[start : start + cut], dtype=float)
        windows.add(part[:, 0], part[:, 1:], part[:, 1] > 0)
    expected = {}
    for at, value in rows:
        expected.setdefault(at // 10 * 10.0, []).append(value)
    found = windows.summaries()
    assert [each.start_seconds for each in found] == sorted(expected)
    for each in found:
        values, metric = np.array(expected[each.start_seconds]), each.metrics["m"]
        assert (each.events, metric.count) == (len(values), len(values))
        assert each.outliers == (values > 0).sum()
        assert (metric.least, metric.most) == (values.min(), values.max())
        assert metric.mean == pytest.approx(values.mean(), abs=1e-6)
        assert metric.deviation == pytest.approx(values.std(), abs=1e-3)


def monitor(**settings):
    return dt.Monitor(metrics=["m"], time="at", window_seconds=10.0, windows=3, **settings)


def test_events_out_of_order_go_where_they_belong_and_late_ones_are_counted():
    found = monitor()
    found.update({"m": [1.0, 2.0, 3.0], "at": [25.0, 5.0, 31.0]})
    found.update({"m": [4.0, 5.0], "at": [12.0, 3.0]})
    assert [(each.start_seconds, each.events) for each in found.windows()] == [(10.0, 1), (20.0, 1), (30.0, 1)]
    assert found.notes() == ["2 events came after their window of time was closed and are in none"]


def test_values_that_are_missing_or_infinite_are_in_no_mean():
    found = monitor()
    found.update({"m": [1.0, np.nan, np.inf, 3.0], "at": [0.0, 1.0, 2.0, 3.0]})
    (window,) = found.windows()
    assert (window.events, window.metrics["m"].count, window.metrics["m"].mean, window.outliers) == (4, 2, 2.0, 1)
    assert found.notes() == [
        "1 events lack a metric; they have no score",
        "1 events have an infinite metric; they are outliers",
    ]


def test_moments_are_times_too():
    found = monitor()
    found.update({"m": [1.0, 2.0], "at": np.array(["1970-01-01T00:00:05", "1970-01-01T00:00:21"], "datetime64[s]")})
    assert [each.start_seconds for each in found.windows()] == [0.0, 20.0]


def test_an_event_without_a_time_and_a_monitor_without_one_are_refused():
    with pytest.raises(dt.DovetailError, match="every event must have a time; 'at' has none in 1 rows"):
        monitor().update({"m": [1.0], "at": [None]})
    with pytest.raises(dt.DovetailError, match="windows need to know when events were"):
        dt.Monitor(metrics=["m"]).windows()
    with pytest.raises(dt.DovetailError, match="must have seen events before it is asked; this one has seen none"):
        monitor().windows()
