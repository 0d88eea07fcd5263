"""Rentals replayed over a history of prices: the same work begun at many moments, by Dovetail's rule and by others."""

import dataclasses
import math

import numpy as np

from dovetail.planning.market.outlook import forecast_error
from dovetail.planning.market.renting import best_single, compare_rules, open_outlook, spread_starts
from dovetail.planning.market.replay import Replay, usual_period
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.markets import Offer, PriceHistory, RentalTerms
from dovetail.vocabulary.units import show_seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What the runs came to by one rule: mean spend, how many ended late, which share cost more than on demand, and how
    often a run was started somewhere and was reclaimed, on average."""

    spend: float
    dearest: float
    late: int
    dearer: float
    starts: float
    reclaims: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MarketOutcome:
    """What came of all rules for one deadline. `runs` are the starts; `kept` is the share of the gain of free moves
    over the single choice that is kept with moves charged, `added` what the rule saves over taking the cheapest at each
    moment."""

    deadline_seconds: float
    period_seconds: float
    runs: int
    forecast_error: float | None
    rules: dict[str, RuleOutcome]

    @property
    def kept(self) -> float:
        """Of the gain over the single choice; all of it where there is none to be had and none is lost."""
        return self._kept("single")

    @property
    def kept_of_hindsight(self) -> float:
        """The same of the gain over the best single choice in hindsight."""
        return self._kept("hindsight")

    @property
    def added(self) -> float:
        """The share of its money that looking ahead saves over the cheapest at each moment, moves charged in both."""
        return 1 - self.rules["dovetail"].spend / self.rules["cheapest"].spend

    def over(self, rule: str, *, by: str = "dovetail") -> float:
        """How many times as much another rule spends."""
        return self.rules[rule].spend / self.rules[by].spend

    def _kept(self, other: str) -> float:
        static, ours, free = (self.rules[name].spend for name in (other, "dovetail", "free"))
        return (static - ours) / (static - free) if static > free else float(ours <= static)


def simulate_market(
    history: PriceHistory, offers: tuple[Offer, ...], terms: RentalTerms, *, every_seconds: float = 0.0
) -> MarketOutcome:
    """The runs that begin every so many seconds (zero: about a hundred) while their deadline lies in the history;
    without a deadline one, from the first price to the last."""
    outlook = open_outlook(history, offers, terms)
    period = usual_period(outlook, terms)
    starts = spread_starts(outlook, terms, period_seconds=period, every_seconds=every_seconds)
    if not len(starts):
        raise DovetailError(
            "a history must be longer than the deadline to replay it; it has "
            f"{show_seconds(history.times[-1] - history.times[0])}"
            f", the deadline is {show_seconds(terms.deadline_seconds)}. Give a longer history or an earlier deadline."
        )
    found = compare_rules(outlook, terms, starts, period_seconds=period)
    if math.isinf(terms.deadline_seconds) and np.isinf(found["dovetail"].ended).any():
        raise DovetailError("without a deadline the work must end within the history; it does not. Give less --work.")
    several = sum(offer.market.spot for offer in offers) > 1
    found["hindsight"] = best_single(outlook, terms, starts, period_seconds=period) if several else found["single"]
    return MarketOutcome(
        deadline_seconds=terms.deadline_seconds,
        period_seconds=period,
        runs=len(starts),
        forecast_error=None
        if math.isinf(terms.deadline_seconds)
        else forecast_error(outlook, ahead_seconds=terms.deadline_seconds),
        rules={name: _summed(each, found["on_demand"], terms) for name, each in found.items()},
    )


def _summed(found: Replay, on_demand: Replay, terms: RentalTerms) -> RuleOutcome:
    return RuleOutcome(
        spend=float(found.spend.mean()),
        dearest=float((found.spend / np.maximum(on_demand.spend, 1e-300)).max()),
        late=int((found.ended > terms.deadline_seconds * (1 + 1e-9)).sum()),
        dearer=float((found.spend > on_demand.spend * (1 + 1e-9)).mean()),
        starts=float(found.moves.mean()),
        reclaims=float(found.reclaims.mean()),
    )
