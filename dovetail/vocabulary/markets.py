"""Where devices are rented and what for: markets, their prices over time, offers, and what a rental comes to."""

import bisect
import dataclasses
import math
from collections.abc import Collection

from dovetail.vocabulary.errors import InvalidRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Market:
    """A kind of device in a zone, on demand or on spot, where it is cheaper and may be reclaimed at any moment.

    >>> str(Market(kind="v100", zone="us-west-2c"))
    'v100 in us-west-2c, spot'
    """

    kind: str
    zone: str
    spot: bool = True

    def __str__(self) -> str:
        return f"{self.kind} in {self.zone}, {'spot' if self.spot else 'on demand'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PriceHistory:
    """What an hour of one device cost: a row of `prices` for each of the `times` (seconds since 1970, UTC), a column
    for each market. A price holds from its time to the next; None: not offered.

    >>> market = Market(kind="v100", zone="a")
    >>> history = PriceHistory(times=(0.0, 3600.0), markets=(market,), prices=((0.9,), (None,)))
    >>> history.at(1800.0)[market], history.at(7200.0)
    (0.9, {})
    """

    times: tuple[float, ...]
    markets: tuple[Market, ...]
    prices: tuple[tuple[float | None, ...], ...]

    def __post_init__(self) -> None:
        if len(self.prices) != len(self.times) or any(len(row) != len(self.markets) for row in self.prices):
            raise InvalidRecord(
                f"a price history must have a row of {len(self.markets)} prices for each of its {len(self.times)} "
                "times."
            )
        if any(not later > earlier for earlier, later in zip(self.times, self.times[1:], strict=False)):
            raise InvalidRecord("the times of a price history must rise; found one that does not.")

    def at(self, seconds: float) -> dict[Market, float]:
        """The prices of that moment, of what is offered then."""
        row = bisect.bisect_right(self.times, seconds) - 1
        found = zip(self.markets, self.prices[row], strict=True) if row >= 0 else ()
        return {market: price for market, price in found if price is not None}

    def spend(self, market: Market, start_seconds: float, end_seconds: float) -> float:
        """What one device of a market costs from one moment to another; while it is not offered, what it cost last.

        >>> market = Market(kind="v100", zone="a")
        >>> history = PriceHistory(times=(0.0, 3600.0), markets=(market,), prices=((1.0,), (3.0,)))
        >>> history.spend(market, 1800.0, 5400.0)
        2.0
        """
        column, total, price = self.markets.index(market), 0.0, 0.0
        for number, row in enumerate(self.prices):
            begin, value = self.times[number], row[column]
            end = self.times[number + 1] if number + 1 < len(self.times) else math.inf
            price = price if value is None else value
            total += price * max(0.0, min(end, end_seconds) - max(begin, start_seconds)) / 3600
        return total

    def of(self, markets: Collection[Market]) -> "PriceHistory":
        """The prices of these markets alone."""
        columns = [number for number, market in enumerate(self.markets) if market in markets]
        return PriceHistory(
            times=self.times,
            markets=tuple(self.markets[number] for number in columns),
            prices=tuple(tuple(row[number] for number in columns) for row in self.prices),
        )

    def until(self, seconds: float) -> "PriceHistory":
        """What was known at that moment: nothing of it is later."""
        count = bisect.bisect_right(self.times, seconds)
        return dataclasses.replace(self, times=self.times[:count], prices=self.prices[:count])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """So many devices of a market, and in how many seconds they would do all of the work without a pause.

    >>> Offer(market=Market(kind="v100", zone="a"), count=4, work_seconds=3600.0).spend(price_per_hour=0.5)
    2.0
    """

    market: Market
    count: float = 1
    work_seconds: float

    def __post_init__(self) -> None:
        if not (0 < self.count < math.inf and 0 < self.work_seconds < math.inf):
            raise InvalidRecord(
                f"an offer must have a count and seconds above 0; {self.market} has {self.count} and "
                f"{self.work_seconds}."
            )

    def spend(self, *, price_per_hour: float) -> float:
        """What all of the work costs there, at this price of one device."""
        return self.count * price_per_hour * self.work_seconds / 3600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RentalTerms:
    """What rentals are judged by: in how many seconds the work must be done (infinite: no deadline), how long a move
    takes (saving, transferring, restarting: paid for at the new place, where no work is done meanwhile), and how many
    seconds of work a reclaim loses, which are those since the last save.

    >>> RentalTerms(deadline_seconds=8 * 3600.0).move_seconds
    600.0
    """

    deadline_seconds: float = math.inf
    move_seconds: float = 600.0
    lost_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not (self.deadline_seconds > 0 and 0 <= self.move_seconds < math.inf and 0 <= self.lost_seconds < math.inf):
            raise InvalidRecord(
                f"a deadline must lie ahead, and a move and what a reclaim loses take at least 0 s; got "
                f"{self.deadline_seconds}, {self.move_seconds} and {self.lost_seconds}."
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """What is rented from when to when, in seconds from the start, and what that costs; `offer` None: nothing is.

    >>> Rental(offer=None, start_seconds=0.0, end_seconds=60.0, spend=0.0).offer is None
    True
    """

    offer: Offer | None
    start_seconds: float
    end_seconds: float
    spend: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RentalPlan:
    """What to rent now, when what if prices stay as they are (`rentals`), from when at the latest on demand
    (`safe_seconds`), and what to expect: by replaying the same work over the prices until now, `replays` times, on
    average what it would have cost (`expected_spend`, nine in ten less than `high_spend`), on demand and in the best
    single choice. The relative error of "the cheapest price stays" over the deadline is `forecast_error`, half of the
    times less.

    >>> RentalPlan(at_seconds=0.0, rentals=(), spend=1.0, on_demand_spend=4.0).saved_over_on_demand
    0.75
    """

    at_seconds: float
    now: Offer | None = None
    rentals: tuple[Rental, ...]
    spend: float
    on_demand_spend: float
    single_spend: float = 0.0
    safe_seconds: float = 0.0
    replays: int = 0
    expected_spend: float = 0.0
    high_spend: float = 0.0
    expected_on_demand: float = 0.0
    expected_single: float = 0.0
    expected_cheapest: float = 0.0
    dearer_share: float = 0.0
    forecast_error: float | None = None

    @property
    def saved_over_on_demand(self) -> float:
        """The share of on demand's money that is saved, as expected where there were replays."""
        spend, other = self.judged[0], self.expected_on_demand if self.replays else self.on_demand_spend
        return 1 - spend / other if other else 0.0

    @property
    def saved_over_single(self) -> float:
        """The share saved against the best single choice, likewise."""
        spend, other = self.judged
        return 1 - spend / other if other else 0.0

    @property
    def judged(self) -> tuple[float, float]:
        """The spend that counts, and the best single choice's."""
        return (self.expected_spend, self.expected_single) if self.replays else (self.spend, self.single_spend)
