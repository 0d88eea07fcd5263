"""Choosers of markets: where they go, when they stay, and that a deadline is kept whatever spot does."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spot_markets import (
    CHOOSERS,
    Market,
    Quote,
    Standing,
    by_deadline,
    cheapest_now,
    cheapest_with_moves,
    priced,
    stay,
)

from dovetail.planning.share.policies import POLICIES, example
from dovetail.vocabulary import InvalidWorkload


def quote(zone: str, price: float, *, kind: str = "v100", rate: float = 1.0) -> Quote:
    return Quote(market=Market(kind=kind, zone=zone), price_per_hour=price, steps_per_second=rate)


def test_what_counts_is_the_price_of_a_step() -> None:
    slow, fast = quote("a", 1.0, kind="k80"), quote("a", 3.0, rate=10.0)
    assert cheapest_now([slow, fast], Standing()).market == fast.market


def test_staying_ends_when_the_market_does() -> None:
    here, there = quote("a", 3.0), quote("b", 1.0)
    standing = stay([here, there], Standing(market=here.market))
    assert standing.market == here.market
    assert stay([there], standing).market == there.market


def test_moves_wait_until_staying_has_cost_as_much() -> None:
    choose = cheapest_with_moves(period_seconds=3600.0, moving_seconds=1800.0)
    standing, zones = Standing(market=Market(kind="v100", zone="a")), []
    for _ in range(4):
        standing = choose([quote("a", 1.2), quote("b", 1.0)], standing)
        zones.append(standing.market.zone if standing.market else "")
    assert zones == ["a", "a", "b", "b"]
    large = choose([quote("a", 9.0), quote("b", 1.0)], Standing(market=Market(kind="v100", zone="a")))
    assert large == Standing(market=Market(kind="v100", zone="b"))


def test_equal_prices_move_nobody() -> None:
    quotes = [quote("a", 1.0), quote("b", 1.0)]
    for choose in (stay, CHOOSERS["cheapest_with_moves"]):
        assert choose(quotes, Standing(market=quotes[1].market)).market == quotes[1].market


@given(
    spot=st.lists(st.booleans(), min_size=1, max_size=200),
    work=st.floats(600.0, 20_000.0),
    slack=st.floats(1.0, 3.0),
    moving=st.floats(0.0, 900.0),
)
def test_the_deadline_is_kept_whatever_spot_does(spot: list[bool], work: float, slack: float, moving: float) -> None:
    """Where it can be kept at all, that is on demand from the start; evictions lose up to `moving` of work."""
    tick = 300.0
    deadline = (work + moving) * slack
    now, left, on, starting = 0.0, work, "wait", 0.0
    while left > 0:
        offered = spot[int(now / tick) % len(spot)]
        if on != "on demand":
            evicted = on == "spot" and not offered
            left = min(work, left + moving) if evicted else left
            chosen = by_deadline(
                work_seconds=left + starting,
                left_seconds=deadline - now,
                spot_offered=offered,
                moving_seconds=moving,
                period_seconds=tick,
            )
            starting = moving if chosen != on else starting
            on = chosen
        done = 0.0 if on == "wait" else min(tick, starting + left)
        left, starting = left - max(0.0, done - starting), max(0.0, starting - done)
        now += done if left <= 0 else tick
    assert now <= deadline + 1e-6


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf")])
def test_a_price_that_cannot_be(price: float) -> None:
    with pytest.raises(InvalidWorkload, match=r"a price of at least 0 .* 'v100' in 'a' has"):
        quote("a", price)


def test_no_market_at_all_and_a_deadline_past() -> None:
    with pytest.raises(InvalidWorkload, match="some market must be offered in every period"):
        cheapest_now([], Standing())
    with pytest.raises(InvalidWorkload, match="must lie ahead; it is 5 s past"):
        by_deadline(work_seconds=1.0, left_seconds=-5.0, spot_offered=True, moving_seconds=1.0, period_seconds=1.0)


@pytest.mark.parametrize("name", ["fair_spend", "spend"])
def test_shares_follow_the_prices_of_now(name: str) -> None:
    problem = example()

    def fast(price: float) -> float:
        now = dataclasses.replace(problem, cluster=priced(problem.cluster, {"fast": price, "slow": 0.5}))
        return sum(share.share for share in POLICIES[name](now).shares if share.option.kind == "fast")

    assert fast(30.0) <= fast(0.3) + 1e-6


def test_fair_shares_are_had_for_less() -> None:
    problem = example()

    def spent(name: str) -> float:
        kinds = problem.cluster
        shares = POLICIES[name](problem).shares
        return sum(s.share * s.option.count * kinds.kind(s.option.kind).price_per_hour for s in shares)

    assert POLICIES["fair_spend"](problem).value == pytest.approx(POLICIES["max_min_fairness"](problem).value, rel=1e-6)
    assert spent("fair_spend") <= spent("max_min_fairness") * (1 + 1e-6)


def test_a_price_of_now_that_is_missing_or_cannot_be() -> None:
    cluster = example().cluster
    with pytest.raises(InvalidWorkload, match=r"for 'slow' there is none. Give its price on demand"):
        priced(cluster, {"fast": 1.0})
    with pytest.raises(InvalidWorkload, match=r"for 'fast' got -1.0"):
        priced(cluster, {"fast": -1.0, "slow": 1.0})
