"""The figures of the MLPerf rules' own example, and what holds of means and intervals whatever the runs."""

import math
import random
import statistics

import pytest
import scipy.stats

from dovetail.metrics.race.race_statistics import (
    bootstrap,
    estimate,
    keep_olympic,
    olympic_mean,
    reference_convergence,
    student_quantile,
)

EPOCHS = [16, 14, 16, 17, 16, 16, 15, 16, 15, 16]


def test_the_worked_example_of_the_rules():
    found = reference_convergence(EPOCHS, runs=5)
    assert found.mean == 15.75
    assert round(found.deviation, 2) == 0.43
    assert round(100 * (found.most_speedup - 1), 2) == 3.53
    assert round(found.least, 2) == 15.21


def test_the_least_mean_is_where_scipys_test_says_a_twentieth():
    found = reference_convergence(EPOCHS, runs=5)
    _, both_sides = scipy.stats.ttest_ind_from_stats(
        found.least, found.deviation, 3, found.mean, found.deviation, 8, equal_var=True
    )
    assert both_sides / 2 == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(("mean", "verdict", "factor"), [(16.0, "slower", 1.0), (15.5, "within", 15.75 / 15.5)])
def test_what_is_said_of_a_contestant(mean, verdict, factor):
    found = reference_convergence(EPOCHS, runs=5)
    assert found.judge(mean) == verdict
    assert found.factor(mean) == factor
    assert found.judge(15.2) == "too fast"


@pytest.mark.parametrize(
    ("reference", "runs"), [([1.0, 2.0, 3.0], 5), (EPOCHS, 2), ([1.0, 2.0, math.inf, math.inf], 5)]
)
def test_too_few_runs_are_no_reference(reference, runs):
    assert reference_convergence(reference, runs=runs) is None


def test_a_reference_run_that_never_arrives_is_dropped_as_the_slowest():
    assert reference_convergence([*EPOCHS, math.inf], runs=5) is not None


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 30, 198])
@pytest.mark.parametrize("share", [0.9, 0.95, 0.995])
def test_students_quantiles_are_scipys(share, degrees):
    assert student_quantile(share, degrees) == pytest.approx(scipy.stats.t.ppf(share, degrees), rel=1e-6)


def test_the_olympic_mean_drops_both_ends_and_one_that_never_arrives():
    assert keep_olympic([3.0, 1.0, 2.0]) == [2.0]
    assert olympic_mean([1.0, 3.0]) == 2.0
    assert olympic_mean([5.0]) == 5.0
    assert olympic_mean([1.0, 2.0, 3.0, math.inf]) == 2.5
    assert olympic_mean([1.0, 2.0, math.inf, math.inf]) == math.inf
    assert math.isnan(olympic_mean([]))


def test_an_interval_covers_the_true_mean_about_as_often_as_it_says():
    """Of 10 runs each; a percentile bootstrap of so few is a little narrow."""
    dice, covered = random.Random(1), 0
    for _ in range(60):
        found = estimate([dice.gauss(100.0, 10.0) for _ in range(10)])
        assert found.low <= found.value <= found.high
        covered += found.low <= 100.0 <= found.high
    assert 48 <= covered <= 60


def test_an_interval_narrows_with_more_runs():
    dice = random.Random(2)
    runs = [dice.gauss(100.0, 10.0) for _ in range(40)]
    few, many = estimate(runs[:10]), estimate(runs)
    assert many.high - many.low < few.high - few.low
    assert many.value == pytest.approx(statistics.fmean(sorted(runs)[1:-1]))


def test_an_interval_may_reach_to_never():
    found = estimate([1.0, 1.1, 1.2, math.inf])
    assert found.value < math.inf == found.high
    assert str(found).endswith("never]")


def test_two_runs_have_no_interval():
    assert estimate([1.0, 2.0]).low is None
    assert bootstrap([[1.0] * 5, [2.0]], lambda groups: groups[0][0] / groups[1][0]).low is None
