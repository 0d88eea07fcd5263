"""What a history of prices says of what comes: how long spot stays and stays away, how long a difference lasts.

Everything at a row of the history is made of what was known before it. Forecasts are the plainest that hold: spot comes
and goes at the rates seen so far, and prices stay as they are (from day to day they do by 0.995, and what reverts does
so over months); how far off that was is measured on the same history.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.vocabulary.markets import Offer, PriceHistory

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# What is thought of spot before anything was seen, with the weight of one stay: hours, as traces of 2022 and 2023 have
# it.
_STAY_SECONDS, _AWAY_SECONDS = 2 * 3600.0, 2 * 3600.0
# Rates, and prices and speeds, are rounded to powers of these.
_RATE_BASE, _PRICE_BASE = 2.0, 1.25
# For how long a difference in price may be thought to last; the first of equals is taken.
_HORIZONS = np.array([96.0, 48.0, 192.0, 24.0, 384.0, 12.0, 768.0, 6.0, 3.0, 1.0]) * 3600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MarketOutlook:
    """A history for some offers. By row and offer: `prices` of an hour of all its devices (NaN: not offered) and
    `good`, whether it is on spot and its work costs less than the reference's. By row: for how long a difference in
    price is thought to last, and which of the `tables` holds: how long spot stays and stays away, its price and its
    speed against the reference's, rounded so that they are few. By offer: how long all of the work takes, and whether
    it cannot be reclaimed."""

    times: Floats
    offers: tuple[Offer, ...]
    reference: int
    prices: Floats
    good: Bools
    table: NDArray[np.int64]
    tables: tuple[tuple[float, ...], ...]
    horizon_seconds: Floats
    seconds: Floats
    on_demand: Bools

    def row(self, seconds: Floats) -> NDArray[np.int64]:
        """The row that holds at each of these moments."""
        return np.maximum(0, np.searchsorted(self.times, seconds, side="right") - 1)


def look_out(history: PriceHistory, offers: Sequence[Offer], *, reference: int, move_seconds: float) -> MarketOutlook:
    """What the history says for these offers, whose on-demand `reference` is the one to fall back to."""
    column = {market: number for number, market in enumerate(history.markets)}
    table = np.array([[np.nan if price is None else price for price in row] for row in history.prices])
    prices = table[:, [column[offer.market] for offer in offers]] * np.array([offer.count for offer in offers])
    prices[:, reference] = _carried(prices[:, reference])
    times, seconds = np.array(history.times), np.array([offer.work_seconds for offer in offers])
    spot = np.array([offer.market.spot for offer in offers])
    spends = prices * seconds
    good = np.nan_to_num(spends, nan=np.inf) < spends[:, [reference]]
    good &= spot
    lasts = np.diff(times, append=times[-1:])
    found = np.stack(
        [
            _rounded(_mean_seconds(good, lasts, _STAY_SECONDS), _RATE_BASE),
            _rounded(_mean_seconds(~good.any(1, keepdims=True), lasts, _AWAY_SECONDS), _RATE_BASE),
            *_usual(np.where(good, spends, np.inf), prices, seconds, reference),
        ],
        axis=1,
    )
    distinct, table = np.unique(found, axis=0, return_inverse=True)
    return MarketOutlook(
        times=times,
        offers=tuple(offers),
        reference=reference,
        prices=prices,
        good=good,
        table=table.reshape(-1),
        tables=tuple(map(tuple, distinct.tolist())),
        horizon_seconds=_horizons(np.where(good, spends, np.inf), seconds, prices, lasts, move_seconds),
        seconds=seconds,
        on_demand=~spot,
    )


def forecast_error(outlook: MarketOutlook, *, ahead_seconds: float) -> float | None:
    """How far "the cheapest stays as it is" was off after so long, as a share, half of the times less; None where the
    history is shorter."""
    spends = np.where(np.isnan(outlook.prices), np.inf, outlook.prices) * outlook.seconds
    cheapest = spends.min(1)
    then = np.searchsorted(outlook.times, outlook.times + ahead_seconds, side="right") - 1
    known = (outlook.times + ahead_seconds <= outlook.times[-1]) & np.isfinite(cheapest) & np.isfinite(cheapest[then])
    if not known.any():
        return None
    return float(np.median(np.abs(cheapest[then][known] / cheapest[known] - 1)))


def _carried(prices: Floats) -> Floats:
    """A column with each gap filled by the price before it, and what comes before the first by the first."""
    known = np.flatnonzero(~np.isnan(prices))
    before = np.searchsorted(known, np.arange(len(prices)), side="right") - 1
    return prices[known[np.maximum(0, before)]]


def _mean_seconds(there: Bools, lasts: Floats, prior_seconds: float) -> Floats:
    """How long a column stays true on average, over all columns, by row from the rows before."""
    held = np.cumsum((there * lasts[:, None]).sum(1))
    ended = np.cumsum((there[:-1] & ~there[1:]).sum(1))
    return np.asarray((np.append(0.0, held[:-1]) + prior_seconds) / (np.append(0, ended) + 1))


def _usual(spends: Floats, prices: Floats, seconds: Floats, reference: int) -> tuple[Floats, Floats]:
    """By row the price and the speed of the cheapest good offer against the reference's; where there is none, of the
    last there was, and before that half the price at the same speed."""
    every, best = np.arange(len(spends)), spends.argmin(1)
    there = np.isfinite(spends[every, best])
    last = np.maximum.accumulate(np.where(there, every, -1))
    price = np.where(last < 0, 0.5, (prices[every, best] / prices[:, reference])[last])
    speed = np.where(last < 0, 1.0, (seconds[reference] / seconds[best])[last])
    return _rounded(price, _PRICE_BASE), _rounded(speed, _PRICE_BASE)


def _rounded(values: Floats, base: float) -> Floats:
    return np.asarray(base ** np.round(np.log(np.maximum(values, 1e-3)) / np.log(base)))


def _horizons(spends: Floats, seconds: Floats, prices: Floats, lasts: Floats, move_seconds: float) -> Floats:
    """For how long a difference in price lasts, by row: of several guesses the one that, had it been acted on in the
    rows before, would have cost least with moves charged."""
    if np.isfinite(spends).sum(1).max(initial=0) < 2:
        return np.full(len(spends), _HORIZONS[0])
    found = np.empty(len(spends))
    paid, places = np.zeros(len(_HORIZONS)), np.full(len(_HORIZONS), -1)
    for number, row in enumerate(spends):
        found[number] = _HORIZONS[paid.argmin()]
        best = int(row.argmin())
        if not np.isfinite(row[best]):
            continue
        gone = (places < 0) | ~np.isfinite(row[places])
        saved = (np.where(gone, np.inf, row[places]) - row[best]) / seconds[best] * _HORIZONS
        move = move_seconds * prices[number, best]
        moves = saved > move
        paid += np.where(moves & (places >= 0), move, 0.0)
        places = np.where(moves, best, places)
        paid += row[places] / seconds[best] * lasts[number]
    return found
