"""Inputs are named by the quarter of a reference's that they lie in."""

import numpy

from dovetail.serve.server.answer_table import InputParts


def test_a_number_that_is_missing_is_in_no_quarter():
    parts = InputParts.of({"x": numpy.array([numpy.nan, *range(8)]), "never": numpy.full(9, numpy.nan)})
    named = parts.name({"x": numpy.array([numpy.nan, 3.0, 100.0]), "never": numpy.array([1.0, numpy.nan, 2.0])})
    assert named["x"].tolist() == ["missing", "1.75 to 3.5", "above 5.25"]
    assert named["never"].tolist() == ["there", "missing", "there"]
