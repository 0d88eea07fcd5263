"""Scores do not follow a few wild values, and are in standard deviations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dovetail.watch.streams.robust_scores import fit_scorer, median_and_scale


def test_a_tenth_of_wild_values_moves_no_score_by_much():
    values = np.random.default_rng(0).normal(size=(4_000, 1))
    wild = np.concatenate([values, np.full((400, 1), 1e6)])
    for value in (-2.0, 3.0, 9.0):
        assert fit_scorer(wild).score(np.array([[value]]))[0] == pytest.approx(abs(value), rel=0.25)


def test_the_median_absolute_deviation_is_that_of_scipy():
    values = np.random.default_rng(1).gamma(2.0, size=(501, 2))
    center, scale = median_and_scale(values)
    assert center.tolist() == np.median(values, axis=0).tolist()
    assert scale == pytest.approx(stats.median_abs_deviation(values, axis=0) * 1.4826)


def test_several_metrics_are_scored_by_what_is_usual_of_them_together():
    draws = np.random.default_rng(2)
    first = draws.normal(size=3_000)
    values = np.stack([first, first + 0.1 * draws.normal(size=3_000)], axis=1)
    values[:150] = [8.0, -8.0]
    scorer = fit_scorer(values)
    together, against = scorer.score(np.array([[2.0, 2.0], [1.5, -1.5]]))
    assert together == pytest.approx(2.0, rel=0.2)
    assert against > 10 * together


def test_metrics_of_which_one_follows_from_the_other_have_scores():
    values = np.random.default_rng(3).normal(size=(500, 1)) @ [[1.0, 2.0]]
    assert np.isfinite(fit_scorer(values).score(values)).all()


def test_missing_and_infinite_values():
    for width in (1, 2):
        scorer = fit_scorer(np.random.default_rng(0).normal(size=(100, width)))
        rows = np.zeros((3, width))
        rows[:, 0] = [np.nan, np.inf, -np.inf]
        scores = scorer.score(rows)
        assert np.isnan(scores[0])
        assert np.isinf(scores[1:]).all()


@given(st.lists(st.sampled_from([1.0, 1.0, 1.0, 5.0]), min_size=1, max_size=30))
def test_a_scale_is_never_zero(values):
    assert median_and_scale(np.array(values)[:, None])[1][0] > 0
