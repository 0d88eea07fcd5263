"""Tails are not lighter than what chance gives, for scores of every shape."""

import numpy as np
import pytest
from scipy import stats

from dovetail.watch.drift.combination_index import CombinationIndex, tally
from dovetail.watch.drift.shift_tests import normal_bar, p_values, shifts


@pytest.mark.parametrize("count", [5, 10, 40])
def test_tails_of_rare_events_are_close_to_poisson(count):
    far = np.arange(count + 1, count * 4 + 10)
    deviations = (far - count) / np.sqrt(count)
    ours = p_values(deviations, np.full(len(far), 1 / np.sqrt(count))) / 2
    exact = stats.poisson.sf(far - 1, count)
    here = exact > 1e-8
    assert (ours[here] > exact[here] / 3).all()  # an event is whole: the middle of a step is what can be met
    assert (ours[here] < exact[here] * 5).all()
    assert (stats.norm.sf(deviations[-1]) < exact[-1] / 100).all()


def test_no_drift_gives_uniform_p_values():
    draws = np.random.default_rng(0)
    found = []
    for _ in range(300):
        rows = {"g": draws.integers(0, 3, 900)}
        scores = (draws.random((900, 1)) < 0.03).astype(float)
        numbers = CombinationIndex(rows, order=1, least_rows=20).numbers(rows)
        deviations, skewness = shifts(
            *(tally(numbers[part], scores[part], 6) for part in (slice(600), slice(600, 900)))
        )
        found.append(p_values(deviations.ravel(), skewness.ravel())[deviations.ravel() != 0])
    likely = np.concatenate(found)
    for level in (0.1, 0.01):
        assert np.mean(likely <= level) == pytest.approx(level, rel=0.45)


def test_the_bar_of_a_level_is_where_its_p_value_is():
    assert p_values(np.array([normal_bar(1e-6)]), np.array([0.0]))[0] == pytest.approx(1e-6)
