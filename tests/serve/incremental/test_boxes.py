"""Intervals against counting cell by cell."""

import numpy
from hypothesis import given
from hypothesis import strategies as st

from dovetail.serve.incremental.boxes import Reach, Window


@st.composite
def windows(draw):
    window = Window(
        size=draw(st.integers(1, 5)),
        stride=draw(st.integers(1, 4)),
        padding=draw(st.integers(0, 3)),
        dilation=draw(st.integers(1, 3)),
    )
    length = draw(st.integers(window.extent, 30))
    return window, length, (length + 2 * window.padding - window.extent) // window.stride + 1


@given(windows(), st.data())
def test_all_outputs_that_look_at_a_change_are_reached_and_no_other(case, data):
    window, length, outputs = case
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    looks = [
        any(start <= at * window.stride - window.padding + k * window.dilation < stop for k in range(window.size))
        for at in range(outputs)
    ]
    first, last = window.reach(start, stop, length=outputs)
    assert 0 <= first < last <= outputs
    assert not any(looks[:first])
    assert not any(looks[last:])
    if any(looks):
        assert any(looks[first:last])
    if window.dilation == 1:  # others look past some cells, and outputs at the ends may
        assert all(looks[first:last]) if any(looks) else last == first + 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1), st.integers(1, 9), st.integers(1, 9))
def test_a_hull_covers_both(starts, one, other):
    left = Reach(numpy.array([each[0] for each in starts]), one)
    right = Reach(numpy.array([each[1] for each in starts]), other)
    hull = left.hull(right, length=40)
    assert (hull.starts >= 0).all()
    assert (hull.starts + hull.size <= 40).all()
    for each in (left, right):
        assert (hull.starts <= each.starts).all()
        assert (hull.starts + hull.size >= each.starts + each.size).all()
