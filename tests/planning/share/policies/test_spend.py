"""Policies that count money: shares follow the prices of now, and fair shares are had for less."""

import dataclasses

import pytest

from dovetail.planning.options.kinds import with_prices
from dovetail.planning.share.policies import POLICIES, example


@pytest.mark.parametrize("name", ["fair_spend", "spend"])
def test_shares_follow_the_prices_of_now(name: str) -> None:
    problem = example()

    def fast(price: float) -> float:
        now = dataclasses.replace(problem, cluster=with_prices(problem.cluster, {"fast": price, "slow": 0.5}))
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
