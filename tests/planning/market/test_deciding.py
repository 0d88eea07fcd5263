"""What is rented: in time whatever spot does, never dearer than on demand, by the past alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.market.deciding import RULES, decide_now, find_reference
from dovetail.planning.market.outlook import look_out
from dovetail.planning.market.renting import open_outlook
from dovetail.planning.market.replay import replay
from dovetail.vocabulary import NoFeasiblePlan
from dovetail.vocabulary.markets import Market, Offer, PriceHistory, RentalTerms
from tests.planning.market.histories import HOUR, SURE, hourly, offers, spot


@settings(deadline=None, max_examples=20)
@given(
    prices=st.lists(st.one_of(st.none(), st.floats(0.1, 5.0)), min_size=30, max_size=60),
    hours=st.floats(1.0, 12.0),
    slack=st.floats(1.0, 2.0),
    move=st.sampled_from([0.0, 600.0, 3000.0]),
    rule=st.sampled_from(sorted(RULES)),
)
def test_the_deadline_is_kept_whatever_spot_does(
    prices: list[float | None], hours: float, slack: float, move: float, rule: str
) -> None:
    """Wherever it can be kept at all, that is on demand from the start."""
    history = hourly(a=prices)
    terms = RentalTerms(deadline_seconds=(hours * HOUR + move) * slack, move_seconds=move)
    outlook = open_outlook(history, offers(history, hours=hours), terms)
    starts = np.arange(5) * HOUR
    found = replay(outlook, terms, starts, rule=RULES[rule], period_seconds=terms.deadline_seconds / 150)
    assert (found.ended <= terms.deadline_seconds * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=8)
@given(prices=st.lists(st.one_of(st.none(), st.floats(0.1, 5.0)), min_size=30, max_size=40), change=st.integers(8, 20))
def test_decisions_know_no_later_price(prices: list[float | None], change: int) -> None:
    terms = RentalTerms(deadline_seconds=24 * HOUR)
    rentals = []
    for later in (prices, [*prices[:change], *(0.01 for _ in prices[change:])]):
        history = hourly(a=later, b=[1.0] * len(later))
        outlook = open_outlook(history, offers(history, hours=16), terms)
        rule = RULES["dovetail"]
        found = replay(outlook, terms, [0.0], rule=rule, period_seconds=600.0).rentals
        rentals.append([(r.offer, r.start_seconds) for r in found if r.start_seconds < change * HOUR])
    assert rentals[0] == rentals[1]


def test_nothing_is_rented_above_on_demand_and_the_cheapest_is() -> None:
    history = hourly(a=[4.0] * 3, b=[1.0] * 3, c=[2.0] * 3)
    all_offers, terms = offers(history, hours=4), RentalTerms(deadline_seconds=8 * HOUR)
    assert decide_now(history, all_offers, terms, at_seconds=HOUR) == all_offers[1]
    dear = hourly(a=[3.5] * 3)
    chosen = decide_now(dear, offers(dear, hours=4), terms, at_seconds=HOUR, elapsed_seconds=3 * HOUR)
    assert chosen is None or chosen.market == SURE


@pytest.mark.parametrize(("cheaper", "moves"), [(0.99, False), (0.5, True)])
def test_a_move_must_be_repaid_by_what_is_left(cheaper: float, moves: bool) -> None:
    history = hourly(a=[1.0] * 3, b=[cheaper] * 3)
    here, there, _ = all_offers = offers(history, hours=4)
    found = decide_now(history, all_offers, RentalTerms(deadline_seconds=20 * HOUR), at_seconds=HOUR, here=here)
    assert found == (there if moves else here)
    # What is nearly done stays.
    last = RentalTerms(deadline_seconds=20 * HOUR)
    assert decide_now(history, all_offers, last, at_seconds=HOUR, here=here, left=0.01) == here


def test_slower_kinds_count_by_their_work_not_their_hour() -> None:
    slow, fast = Market(kind="k80", zone="a"), spot("a")
    history = PriceHistory(times=(0.0,), markets=(slow, fast, SURE), prices=((0.5, 1.0, 3.0),))
    found = tuple(
        Offer(market=market, work_seconds=hours * HOUR) for market, hours in ((slow, 8), (fast, 2), (SURE, 2))
    )
    assert decide_now(history, found, RentalTerms(deadline_seconds=24 * HOUR), at_seconds=0.0) == found[1]


def test_a_deadline_that_cannot_be_met_even_on_demand_is_refused_with_numbers() -> None:
    history = hourly(a=[1.0] * 3)
    with pytest.raises(
        NoFeasiblePlan,
        match=r"must be one that can be met on demand; 4 h 0 min cannot: the fastest offer, 1 × v100 in a, on demand, "
        r"takes 4 h 10 min, of which 10 min 0 s to start",
    ):
        find_reference(history, offers(history, hours=4), RentalTerms(deadline_seconds=4 * HOUR))
    only = PriceHistory(times=(0.0,), markets=(spot("a"),), prices=((1.0,),))
    with pytest.raises(NoFeasiblePlan, match="must have an on-demand price of some kind"):
        find_reference(only, offers(only, hours=4), RentalTerms())


def test_the_outlook_counts_stays_and_absences_of_the_past_only() -> None:
    prices: list[float | None] = [1.0, None, 1.0, 1.0, None, None, 1.0, 1.0]
    history = hourly(a=prices)
    long = look_out(history, offers(history, hours=2), reference=1, move_seconds=600.0)
    short = look_out(history.until(4 * HOUR), offers(history, hours=2), reference=1, move_seconds=600.0)
    known = [long.tables[table] for table in long.table][:5]
    assert known == [short.tables[table] for table in short.table]
    assert long.good[:, 0].tolist() == [price is not None for price in prices]
