"""The plan of a rental: what to rent when if prices stay as they are, and what to expect by what they have done so
far."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from dovetail.planning.market.deciding import RULES, decide_now, find_reference
from dovetail.planning.market.outlook import Floats, MarketOutlook, forecast_error, look_out
from dovetail.planning.market.replay import Replay, replay, usual_period
from dovetail.vocabulary.markets import Offer, PriceHistory, RentalPlan, RentalTerms

# So many past starts say enough of what to expect.
_STARTS = 100


def open_outlook(history: PriceHistory, offers: tuple[Offer, ...], terms: RentalTerms) -> MarketOutlook:
    """What the history says for these offers; refused where the deadline cannot be met even on demand."""
    reference = find_reference(history, offers, terms)
    return look_out(history, offers, reference=reference, move_seconds=terms.move_seconds)


def plan_rental(
    history: PriceHistory, offers: tuple[Offer, ...], terms: RentalTerms, *, at_seconds: float
) -> RentalPlan:
    """What to rent from `at_seconds` on, by the prices until then.

    >>> from dovetail.vocabulary.markets import Market
    >>> spot, sure = (Market(kind="v100", zone="a", spot=each) for each in (True, False))
    >>> history = PriceHistory(times=(0.0,), markets=(spot, sure), prices=((1.0, 3.0),))
    >>> offers = tuple(Offer(market=each, work_seconds=3600.0) for each in (spot, sure))
    >>> found = plan_rental(history, offers, RentalTerms(deadline_seconds=7200.0, move_seconds=0.0), at_seconds=60.0)
    >>> [str(each.offer.market) for each in found.rentals], round(found.spend, 2), found.on_demand_spend
    (['v100 in a, spot'], 1.0, 3.0)
    """
    known = history.until(at_seconds)
    outlook = open_outlook(known, offers, terms)
    period = usual_period(outlook, terms)
    found = replay(outlook, terms, [at_seconds], rule=RULES["dovetail"], period_seconds=period)
    now = outlook.prices[-1] * (outlook.seconds + terms.move_seconds) / 3600
    in_time = (outlook.seconds + terms.move_seconds <= terms.deadline_seconds) & ~np.isnan(now)
    plan = RentalPlan(
        at_seconds=at_seconds,
        now=decide_now(known, offers, terms, at_seconds=at_seconds, period_seconds=period),
        rentals=found.rentals,
        spend=float(found.spend[0]),
        on_demand_spend=float(now[outlook.reference]),
        single_spend=float(now[in_time].min()),
        safe_seconds=terms.deadline_seconds - terms.move_seconds - float(outlook.seconds[outlook.reference]),
        forecast_error=forecast_error(outlook, ahead_seconds=terms.deadline_seconds),
    )
    return _with_expectation(plan, outlook, terms, period)


def spread_starts(
    outlook: MarketOutlook, terms: RentalTerms, *, period_seconds: float, every_seconds: float = 0.0
) -> Floats:
    """The moments of a history at which runs begin whose deadline lies within it: so far apart, or about a hundred."""
    first, last = float(outlook.times[0]), float(outlook.times[-1])
    room = last - first - (0.0 if math.isinf(terms.deadline_seconds) else terms.deadline_seconds)
    if math.isinf(terms.deadline_seconds):
        return np.array([first])
    if room < 0:
        return np.array([])
    every = every_seconds or max(period_seconds, math.ceil(room / _STARTS / period_seconds) * period_seconds)
    return np.asarray(first + np.arange(int(room / every) + 1) * every, np.float64)


def compare_rules(
    outlook: MarketOutlook, terms: RentalTerms, starts: Floats, *, period_seconds: float
) -> dict[str, Replay]:
    """The same runs by each rule, by the cheapest at each moment with moves that are free, and on demand from the
    start."""
    found = {
        name: replay(outlook, terms, starts, rule=rule, period_seconds=period_seconds) for name, rule in RULES.items()
    }
    found["free"] = replay(
        outlook, terms, starts, rule=RULES["cheapest"], period_seconds=period_seconds, free_moves=True
    )
    found["on_demand"] = _on_demand(outlook, terms, starts)
    return found


def best_single(outlook: MarketOutlook, terms: RentalTerms, starts: Floats, *, period_seconds: float) -> Replay:
    """The runs in the one spot offer that was cheapest for all of them in hindsight, on demand where it is not
    there."""
    every = np.arange(len(outlook.offers))
    tried = [_on_demand(outlook, terms, starts)]
    for number in np.flatnonzero(~outlook.on_demand):
        alone = dataclasses.replace(outlook, good=outlook.good & (every == number))
        tried.append(replay(alone, terms, starts, rule=RULES["single"], period_seconds=period_seconds))
    return min(tried, key=lambda each: float(each.spend.sum()))


def _on_demand(outlook: MarketOutlook, terms: RentalTerms, starts: Floats) -> Replay:
    seconds = float(outlook.seconds[outlook.reference]) + terms.move_seconds
    prices = outlook.prices[outlook.row(starts), outlook.reference]
    none = np.zeros(len(starts), np.int64)
    return Replay(spend=prices * seconds / 3600, ended=np.full(len(starts), seconds), moves=none + 1, reclaims=none)


def _with_expectation(plan: RentalPlan, outlook: MarketOutlook, terms: RentalTerms, period: float) -> RentalPlan:
    """The plan with what the same work would have cost, begun at moments of the past."""
    starts = spread_starts(outlook, terms, period_seconds=period)
    if not len(starts):
        return plan
    found: Mapping[str, Replay] = compare_rules(outlook, terms, starts, period_seconds=period)
    spend, sure = found["dovetail"].spend, found["on_demand"].spend
    return dataclasses.replace(
        plan,
        replays=len(starts),
        expected_spend=float(spend.mean()),
        high_spend=float(np.quantile(spend, 0.9)),
        expected_on_demand=float(sure.mean()),
        expected_single=float(found["single"].spend.mean()),
        expected_cheapest=float(found["cheapest"].spend.mean()),
        dearer_share=float((spend > sure * (1 + 1e-9)).mean()),
    )
