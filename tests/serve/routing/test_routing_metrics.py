"""APGR, CPT and AIQ of ways of routing whose curves are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.serve.routing import route
from dovetail.serve.routing.routing_metrics import RoutedOutcomes, route_by_worth, routed_after_answer, score_routing
from tests.serve.routing.outcomes import table_of


def outcomes(count=400, seed=0):
    generator = np.random.default_rng(seed)
    quality = (generator.random((count, 2)) < [0.5, 0.9]).astype(float)
    return quality, np.tile([1.0, 10.0], (count, 1))


def by_sorting(score, quality):
    """APGR as RouteLLM computes it: the strong model for the queries of the largest score, more and more of them."""
    gain = (quality[:, 1] - quality[:, 0])[np.argsort(-score, kind="stable")]
    return float(np.trapezoid(np.concatenate([[0.0], np.cumsum(gain)]) / gain.sum(), dx=1 / len(gain)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_apgr_is_that_of_sorting_by_the_score(seed):
    quality, price = outcomes(seed=seed)
    score = np.random.default_rng(seed).random(quality.shape)
    found = score_routing(route_by_worth(score, quality, price), quality, price, samples=2)
    assert found.apgr == pytest.approx(by_sorting(score[:, 1] - score[:, 0], quality), abs=0.01)


def test_mixing_at_random_recovers_half_of_the_gap():
    quality, price = outcomes()
    found = score_routing(RoutedOutcomes(quality=quality, price=price), quality, price)
    assert found.apgr == pytest.approx(0.5)
    assert (found.cpt50, found.cpt80) == pytest.approx((0.5, 0.8), abs=0.005)
    assert found.aiq == pytest.approx(quality.mean(axis=0).mean())
    assert found.aiq_interval[0] < found.aiq < found.aiq_interval[1]


def test_nobody_does_better_than_the_oracle():
    quality, price = outcomes()
    oracle = score_routing(route_by_worth(quality, quality, price), quality, price)
    guess = np.random.default_rng(1).random(quality.shape)
    assert oracle.apgr > score_routing(route_by_worth(guess, quality, price), quality, price).apgr + 0.1
    assert oracle.cpt50 < oracle.cpt80 < 0.5


def test_the_first_answer_is_paid_for():
    quality, price = outcomes()
    price[:, 0] = 5.0
    before = score_routing(route_by_worth(quality, quality, price), quality, price)
    after = score_routing(routed_after_answer(quality, quality, price, asked=0), quality, price)
    assert after.apgr < before.apgr


def test_a_cheapest_model_that_is_best_leaves_nothing_to_recover():
    quality, price = outcomes()
    found = score_routing(route_by_worth(quality, quality[:, ::-1], price), quality[:, ::-1], price)
    assert np.isnan(found.apgr)


def test_a_report_sets_the_router_beside_simpler_ways():
    report = route(table_of(100, domains=True, answers=True, noise=0.1)).report()
    assert list(report.scores) == ["router", "router, after small", "random", "length", "domain means", "oracle"]
    assert report.scores["router"].apgr > report.scores["random"].apgr + 0.1
    assert report.scores["oracle"].apgr >= report.scores["router"].apgr
    assert report.rows()[0]["APGR"].startswith(f"{report.scores['router'].apgr:.3f} [")
    assert report.singles["small"][1] == pytest.approx(0.01)
