"""Which offer to rent for the coming moment, given what is left, what is rented now, and the prices until now.

One function for a controller that asks once, and for a replay that asks for a thousand runs at a time. The deadline is
kept whatever spot does: anything but on demand is rented, or waited for, only while on demand would still be in time if
the coming period came to nothing and were followed by a reclaim. Nothing dearer than on demand is rented.
"""

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from dovetail.planning.market.outlook import Bools, Floats, MarketOutlook, look_out
from dovetail.planning.market.value_table import ON_DEMAND, SPOT, WAIT, ValueTables, value_tables
from dovetail.vocabulary import NoFeasiblePlan
from dovetail.vocabulary.markets import Offer, PriceHistory, RentalTerms
from dovetail.vocabulary.units import show_seconds

Ints = NDArray[np.int64]
NOTHING = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RentalRule:
    """How offers are chosen: `ahead` weighs waiting, spot and on demand by what they lead to, else spot is taken or
    waited for as long as the deadline allows; `moves` to a cheaper spot offer once that repays the move ('repaid'), at
    once ('always'), or not while the present one lasts ('never').

    >>> RULES["dovetail"].ahead
    True
    """

    ahead: bool
    moves: str


RULES = {
    "dovetail": RentalRule(ahead=True, moves="repaid"),
    "cheapest": RentalRule(ahead=False, moves="always"),
    "single": RentalRule(ahead=False, moves="never"),
}


@dataclasses.dataclass(slots=True, kw_only=True)
class Runs:
    """Where runs stand: the number of the offer each has (NOTHING: none), seconds it has still to start there, the
    share of the work left, and seconds to the deadline."""

    here: Ints
    starting: Floats
    left: Floats
    time_left: Floats


def find_reference(history: PriceHistory, offers: tuple[Offer, ...], terms: RentalTerms) -> int:
    """The on-demand offer that is in time from the start and costs least; refused where none is."""
    column = {market: number for number, market in enumerate(history.markets)}
    known: dict[int, float] = {}
    for number, offer in enumerate(offers):
        seen = [row[column[offer.market]] for row in history.prices]
        prices = sorted(price for price in seen if price is not None)
        if not offer.market.spot and prices:
            known[number] = offer.spend(price_per_hour=prices[len(prices) // 2])
    if not known:
        raise NoFeasiblePlan(
            "a market must have an on-demand price of some kind, to fall back to and to compare with; there is none. "
            "Add rows with 'on demand'."
        )
    due = terms.deadline_seconds - terms.move_seconds
    in_time = {number: spend for number, spend in known.items() if offers[number].work_seconds <= due}
    if not in_time:
        fastest = min(known, key=lambda number: offers[number].work_seconds)
        needed = offers[fastest].work_seconds + terms.move_seconds
        raise NoFeasiblePlan(
            f"a deadline must be one that can be met on demand; {show_seconds(terms.deadline_seconds)} cannot: the "
            "fastest "
            f"offer, {offers[fastest].count:g} × {offers[fastest].market}, takes {show_seconds(needed)}, of which "
            f"{show_seconds(terms.move_seconds)} to start. Give a later deadline, more devices or less work."
        )
    return min(in_time, key=lambda number: (in_time[number], offers[number].work_seconds))


def decide(
    outlook: MarketOutlook, terms: RentalTerms, runs: Runs, *, rows: Ints, period_seconds: float, rule: RentalRule
) -> Ints:
    """The number of the offer that each run should have for the coming period, or NOTHING, to wait."""
    prices, good = outlook.prices[rows], outlook.good[rows]
    seconds, reference = outlook.seconds, outlook.reference
    work = runs.left * seconds[reference]
    on_demand = outlook.on_demand
    where = np.where(runs.here == NOTHING, WAIT, np.where(on_demand[runs.here], ON_DEMAND, SPOT))
    spot = _spot_offer(outlook, terms, runs, rows, prices, good, rule)
    offered = spot != NOTHING
    where = np.where((where == SPOT) & ~_held(runs.here, good), WAIT, where)
    if math.isinf(terms.deadline_seconds):
        chosen = np.where(offered, SPOT, ON_DEMAND)
    else:
        fastest = float((seconds[reference] / seconds).max())
        chosen = _class(outlook, terms, runs, rows, work, where, offered, rule)
        chosen = _in_time(terms, runs, work, where, offered, chosen, period_seconds, fastest)
    demanded = _on_demand_offer(outlook, terms, runs, prices)
    return np.where(chosen == SPOT, spot, np.where(chosen == ON_DEMAND, demanded, NOTHING))


def decide_now(
    history: PriceHistory,
    offers: tuple[Offer, ...],
    terms: RentalTerms,
    *,
    at_seconds: float,
    elapsed_seconds: float = 0.0,
    left: float = 1.0,
    here: Offer | None = None,
    starting_seconds: float = 0.0,
    period_seconds: float = 60.0,
) -> Offer | None:
    """What to rent now: with this share of the work `left`, so long after the start, having `here`, by prices until
    now.

    >>> from dovetail.vocabulary.markets import Market
    >>> spot, sure = (Market(kind="v100", zone="a", spot=each) for each in (True, False))
    >>> history = PriceHistory(times=(0.0,), markets=(spot, sure), prices=((0.9, 3.0),))
    >>> offers = tuple(Offer(market=each, work_seconds=3600.0) for each in (spot, sure))
    >>> terms = RentalTerms(deadline_seconds=7200.0)
    >>> str(decide_now(history, offers, terms, at_seconds=10.0).market)
    'v100 in a, spot'
    >>> str(decide_now(history, offers, terms, at_seconds=10.0, elapsed_seconds=2500.0).market)
    'v100 in a, on demand'
    """
    known = history.until(at_seconds)
    reference = find_reference(known, offers, terms)
    outlook = look_out(known, offers, reference=reference, move_seconds=terms.move_seconds)
    runs = Runs(
        here=np.array([NOTHING if here is None else offers.index(here)]),
        starting=np.array([starting_seconds]),
        left=np.array([left]),
        time_left=np.array([terms.deadline_seconds - elapsed_seconds]),
    )
    rows = outlook.row(np.array([at_seconds]))
    chosen = int(decide(outlook, terms, runs, rows=rows, period_seconds=period_seconds, rule=RULES["dovetail"])[0])
    return None if chosen == NOTHING else offers[chosen]


def _held(here: Ints, good: Bools) -> Bools:
    """Which runs have an offer that is still good."""
    return np.asarray((here != NOTHING) & good[np.arange(len(here)), here])


def _spot_offer(
    outlook: MarketOutlook, terms: RentalTerms, runs: Runs, rows: Ints, prices: Floats, good: Bools, rule: RentalRule
) -> Ints:
    """The spot offer to have if one is to be had: the present one unless a cheaper one repays the move; or NOTHING."""
    every, seconds = np.arange(len(runs.here)), outlook.seconds
    spends = np.where(good, prices * seconds, np.inf)
    best = spends.argmin(1)
    there = np.isfinite(spends[every, best])
    held = _held(runs.here, good)
    saved = np.where(held, spends[every, runs.here], np.inf) - np.where(there, spends[every, best], 0.0)
    if rule.moves == "always":
        moves = saved > 0
    elif rule.moves == "never":
        moves = np.zeros(len(held), bool)
    else:
        # What is saved while the difference is thought to last, and no longer than there is work.
        share = np.minimum(np.maximum(runs.left, 1e-12), outlook.horizon_seconds[rows] / seconds[best])
        moves = saved * share > np.where(there, terms.move_seconds * prices[every, best], 0.0)
    return np.where(there, np.where(held & ~moves, runs.here, best), NOTHING)


def _class(
    outlook: MarketOutlook,
    terms: RentalTerms,
    runs: Runs,
    rows: Ints,
    work: Floats,
    where: Ints,
    offered: Bools,
    rule: RentalRule,
) -> Ints:
    """WAIT, SPOT or ON_DEMAND for each run."""
    if not rule.ahead:
        return np.where(where == ON_DEMAND, ON_DEMAND, np.where(offered, SPOT, WAIT))
    deadline = terms.deadline_seconds
    slack = (runs.time_left - work - np.where(where == WAIT, 0.0, runs.starting)) / deadline
    work_seconds = float(outlook.seconds[outlook.reference])
    tables = _tables(outlook.tables, work_seconds, terms.move_seconds, terms.lost_seconds, deadline)
    return tables.look_up(outlook.table[rows], runs.time_left / deadline, slack, where, offered)


@functools.lru_cache(maxsize=64)
def _tables(
    kinds: tuple[tuple[float, ...], ...], work: float, move: float, lost: float, deadline: float
) -> ValueTables:
    """Made once for what is asked at every moment."""
    stays, away, price, speed = np.array(kinds).T
    return value_tables(
        work=work / deadline,
        move=move / deadline,
        lost=lost / deadline,
        stays=stays / deadline,
        away=away / deadline,
        price=price,
        speed=speed,
    )


def _in_time(
    terms: RentalTerms,
    runs: Runs,
    work: Floats,
    where: Ints,
    offered: Bools,
    chosen: Ints,
    period_seconds: float,
    fastest: float,
) -> Ints:
    """The same where on demand stays in time whatever happens in the coming period, else on demand."""
    fallen_back = work + terms.move_seconds + terms.lost_seconds * fastest
    ahead = runs.time_left - period_seconds
    safe = ahead >= fallen_back + terms.move_seconds + terms.lost_seconds * fastest
    stays = (where == SPOT) & offered & (ahead >= fallen_back)
    return np.where(safe, chosen, np.where(stays, SPOT, ON_DEMAND))


def _on_demand_offer(outlook: MarketOutlook, terms: RentalTerms, runs: Runs, prices: Floats) -> Ints:
    """The on-demand offer to have: the present one, else the cheapest that is in time."""
    seconds, every = outlook.seconds, np.arange(len(runs.here))
    needed = runs.left[:, None] * seconds + terms.move_seconds
    usable = outlook.on_demand & ~np.isnan(prices) & (needed <= runs.time_left[:, None] + 1e-6)
    usable[:, outlook.reference] = True
    best = np.where(usable, prices * seconds, np.inf).argmin(1)
    stays = (runs.here != NOTHING) & outlook.on_demand[runs.here] & ~np.isnan(prices[every, runs.here])
    return np.where(stays, runs.here, best)
