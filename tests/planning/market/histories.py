"""Histories for tests: one kind in several zones, hour by hour."""

from collections.abc import Sequence

from dovetail.vocabulary.markets import Market, Offer, PriceHistory

SURE = Market(kind="v100", zone="a", spot=False)
HOUR = 3600.0


def spot(zone: str) -> Market:
    """The spot market of a zone."""
    return Market(kind="v100", zone=zone)


def hourly(**zones: Sequence[float | None]) -> PriceHistory:
    """Prices of spot by zone and hour, with on demand at 3."""
    hours = len(next(iter(zones.values())))
    return PriceHistory(
        times=tuple(hour * HOUR for hour in range(hours)),
        markets=(*(spot(zone) for zone in zones), SURE),
        prices=tuple((*(prices[hour] for prices in zones.values()), 3.0) for hour in range(hours)),
    )


def offers(history: PriceHistory, *, hours: float) -> tuple[Offer, ...]:
    """One device of each market, on which the work takes so long."""
    return tuple(Offer(market=market, work_seconds=hours * HOUR) for market in history.markets)
