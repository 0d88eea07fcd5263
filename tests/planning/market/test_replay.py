"""Runs over a history: what is paid, what a reclaim takes, and what a plan expects of them."""

import numpy as np
import pytest

from dovetail.planning.market.deciding import RULES
from dovetail.planning.market.renting import best_single, compare_rules, open_outlook, plan_rental, spread_starts
from dovetail.planning.market.replay import replay
from dovetail.vocabulary import from_json, to_json
from dovetail.vocabulary.markets import RentalPlan, RentalTerms
from tests.planning.market.histories import HOUR, hourly, offers, spot


def test_what_is_paid_is_the_start_and_the_work() -> None:
    history = hourly(a=[1.0] * 40)
    terms = RentalTerms(deadline_seconds=20 * HOUR, move_seconds=1800.0)
    outlook = open_outlook(history, offers(history, hours=4), terms)
    found = compare_rules(outlook, terms, np.array([0.0, HOUR]), period_seconds=600.0)
    assert found["dovetail"].spend.tolist() == pytest.approx([4.5, 4.5])
    assert found["on_demand"].spend.tolist() == pytest.approx([13.5, 13.5])
    assert found["dovetail"].ended.tolist() == pytest.approx([4.5 * HOUR] * 2)


def test_a_reclaim_loses_what_was_not_saved_and_another_start_is_paid() -> None:
    history = hourly(a=[1.0, 1.0, None, *([1.0] * 20)], b=[None, None, *([1.0] * 21)])
    terms = RentalTerms(deadline_seconds=20 * HOUR, move_seconds=600.0, lost_seconds=300.0)
    outlook = open_outlook(history, offers(history, hours=4), terms)
    found = replay(outlook, terms, [0.0], rule=RULES["cheapest"], period_seconds=300.0)
    assert (found.reclaims[0], found.moves[0]) == (1, 2)
    assert found.spend[0] == pytest.approx(4 + (600 + 600 + 300) / 3600)
    assert [r.offer.market for r in found.rentals if r.offer] == [spot("a"), spot("b")]
    free = replay(outlook, terms, [0.0], rule=RULES["cheapest"], period_seconds=300.0, free_moves=True)
    assert free.spend[0] == pytest.approx(4 + 600 / 3600)


def test_flickering_prices_move_nobody_who_looks_ahead() -> None:
    low, high = [1.0, 1.02] * 30, [1.02, 1.0] * 30
    history = hourly(a=low, b=high)
    terms = RentalTerms(deadline_seconds=50 * HOUR)
    outlook = open_outlook(history, offers(history, hours=24), terms)
    found = compare_rules(outlook, terms, np.array([0.0, 5 * HOUR]), period_seconds=HOUR)
    assert found["dovetail"].moves.max() <= 4 < found["cheapest"].moves.min()
    assert (found["dovetail"].spend < found["cheapest"].spend).all()
    assert best_single(outlook, terms, np.array([0.0]), period_seconds=HOUR).moves[0] == 1


def test_spot_that_comes_back_soon_is_waited_for_and_tight_deadlines_gain_by_looking_ahead() -> None:
    """Spot is there for three hours of every five: waiting at first leaves no slack to come back to spot later."""
    history = hourly(a=([None, None, 1.0, 1.0, 1.0] * 60))
    terms = RentalTerms(deadline_seconds=46 * HOUR)
    outlook = open_outlook(history, offers(history, hours=40), terms)
    starts = spread_starts(outlook, terms, period_seconds=900.0)
    found = compare_rules(outlook, terms, starts, period_seconds=900.0)
    assert found["dovetail"].spend.mean() < 0.95 * found["cheapest"].spend.mean()
    assert (found["dovetail"].spend <= found["on_demand"].spend).mean() >= 0.9


def test_a_plan_says_what_to_rent_and_what_the_past_would_have_cost() -> None:
    history = hourly(a=[1.0, 1.2] * 50, b=[1.1] * 100)
    terms = RentalTerms(deadline_seconds=8 * HOUR)
    plan = plan_rental(history, offers(history, hours=4), terms, at_seconds=99 * HOUR)
    assert [each.offer.market for each in plan.rentals if each.offer] == [spot("b")]
    assert plan.spend == pytest.approx(1.1 * (4 + 1 / 6))
    assert plan.safe_seconds == pytest.approx((8 - 4 - 1 / 6) * HOUR)
    assert plan.replays > 50
    assert 0.5 < plan.saved_over_on_demand < 0.7
    assert plan.expected_spend <= plan.expected_cheapest
    assert plan.dearer_share == 0
    assert plan.forecast_error == pytest.approx(0.0, abs=0.2)
    assert from_json(RentalPlan, to_json(plan)) == plan


def test_a_short_history_gives_a_plan_that_expects_nothing() -> None:
    history = hourly(a=[1.0] * 3)
    plan = plan_rental(history, offers(history, hours=4), RentalTerms(deadline_seconds=8 * HOUR), at_seconds=2 * HOUR)
    assert (plan.replays, plan.forecast_error) == (0, None)
    assert plan.saved_over_on_demand == pytest.approx(2 / 3)
