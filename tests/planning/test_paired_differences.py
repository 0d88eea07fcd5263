"""Intervals that hold at all numbers of pairs at once, and what is concluded from them."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning.paired_differences import (
    CONFIDENCE,
    LEAST_DEVIATION,
    MOST_PAIRS,
    SPREAD,
    bound_difference,
    half_width,
    judge,
)

TOLERANCE = 0.01


def martingale(differences: list[float], mean: float) -> float:
    """M_n as it is written down, to compare the closed form with."""
    n, off = len(differences), statistics.fmean(differences) - mean
    squares = sum((each - mean) ** 2 for each in differences)
    return math.sqrt(SPREAD / (n + SPREAD)) * (1 - n**2 * off**2 / ((n + SPREAD) * squares)) ** (-n / 2)


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12).filter(lambda each: statistics.stdev(each) > 0.01))
def test_the_ends_of_the_interval_are_where_the_martingale_reaches_its_limit(differences: list[float]) -> None:
    found = bound_difference(differences, tolerance=TOLERANCE)
    assert statistics.stdev(differences) > LEAST_DEVIATION * TOLERANCE
    for end in (found.low, found.high):
        assert martingale(differences, end) == pytest.approx(1 / (1 - CONFIDENCE), rel=1e-6)
    assert martingale(differences, found.mean) < 1


def test_the_martingale_begins_at_one() -> None:
    assert martingale([0.3], 0.1) == pytest.approx(1.0)


def test_whoever_looks_after_every_pair_is_misled_as_rarely_as_stated() -> None:
    # The true mean is just above the tolerance: every time that it is said to be kept is a mistake.
    generator, runs, wrong = random.Random(1), 800, 0
    for _ in range(runs):
        differences: list[float] = []
        for _ in range(MOST_PAIRS):
            differences.append(generator.gauss(1.001 * TOLERANCE, 2 * TOLERANCE))
            if judge(differences, tolerance=TOLERANCE).keeps:
                wrong += 1
                break
    assert wrong / runs <= 1 - CONFIDENCE


@pytest.mark.parametrize(("mean", "deviation", "expected"), [(0.0, 0.3, True), (5.0, 0.5, False), (0.0, 30.0, False)])
def test_pairs_are_trained_until_it_is_decided(mean: float, deviation: float, expected: bool) -> None:
    generator, differences = random.Random(2), list[float]()
    verdict = judge(differences, tolerance=TOLERANCE)
    while verdict.keeps is None:
        differences.append(TOLERANCE * generator.gauss(mean, deviation))
        verdict = judge(differences, tolerance=TOLERANCE)
    assert verdict.keeps is expected
    assert 3 <= len(differences) <= MOST_PAIRS


def test_differences_that_are_all_zero_say_little() -> None:
    counts = [count for count in range(1, 9) if judge([0.0] * count, tolerance=TOLERANCE).keeps]
    assert counts[0] == 4


def test_no_number_is_as_bad_as_can_be() -> None:
    assert judge([0.0, math.nan], tolerance=TOLERANCE).keeps is False
    assert judge([math.inf], tolerance=TOLERANCE).keeps is False


def test_more_pairs_and_less_confidence_narrow_it() -> None:
    widths = [half_width(count) for count in range(3, 60)]
    assert widths == sorted(widths, reverse=True)
    assert half_width(10, confidence=0.9) < half_width(10)
