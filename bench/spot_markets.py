"""Which market to run on when prices change and spot devices come and go.

A market is a kind in a zone, on spot or on demand; a quote says what it costs there now and how fast the task is.
Policies look at the quotes of a period and at where the task stands, and say where it stands next; they know no
future price. Pure: no clock, no series, no money spent.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail.vocabulary import Cluster, InvalidWorkload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A kind of device in a zone, on spot or on demand.

    >>> Market(kind="v100", zone="us-west-2c").spot
    True
    """

    kind: str
    zone: str
    spot: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a market asks for an hour now, and how many steps a second the task does there.

    >>> Quote(market=Market(kind="v100", zone="a"), price_per_hour=3.6, steps_per_second=2.0).price_per_step
    0.0005
    """

    market: Market
    price_per_hour: float
    steps_per_second: float

    def __post_init__(self) -> None:
        if not 0 <= self.price_per_hour < float("inf") or not self.steps_per_second > 0:
            raise InvalidWorkload(
                f"a quote must have a price of at least 0 and steps per second above 0, {self.market.kind!r} in "
                f"{self.market.zone!r} has {self.price_per_hour} and {self.steps_per_second}. Leave out what is not "
                "offered."
            )

    @property
    def price_per_step(self) -> float:
        """What a step costs there."""
        return self.price_per_hour / 3600 / self.steps_per_second


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a task runs, and what it has paid too much since it came there.

    >>> Standing().market is None
    True
    """

    market: Market | None = None
    regret: float = 0.0


Chooser = Callable[[Sequence[Quote], Standing], Standing]


def stay(quotes: Sequence[Quote], standing: Standing) -> Standing:
    """Stay where the task is as long as that is offered; else go where a step is cheapest now.

    >>> dear, cheap = (Quote(market=Market(kind=k, zone="a"), price_per_hour=p, steps_per_second=1.0) for k, p in
    ...                (("v100", 3.0), ("k80", 1.0)))
    >>> stay([dear, cheap], Standing(market=dear.market)).market.kind
    'v100'
    """
    here = _here(quotes, standing)
    return standing if here is not None else Standing(market=_cheapest(quotes).market)


def cheapest_now(quotes: Sequence[Quote], standing: Standing) -> Standing:
    """Go where a step is cheapest now, whatever moving takes.

    >>> dear, cheap = (Quote(market=Market(kind=k, zone="a"), price_per_hour=p, steps_per_second=1.0) for k, p in
    ...                (("v100", 3.0), ("k80", 1.0)))
    >>> cheapest_now([dear, cheap], Standing(market=dear.market)).market.kind
    'k80'
    """
    return Standing(market=_cheapest(quotes).market)


def cheapest_with_moves(*, period_seconds: float, moving_seconds: float) -> Chooser:
    """Go where a step is cheapest once staying has cost as much as moving would: moving takes `moving_seconds` that are
    paid for and do no steps.

    What staying costs in the coming period is known from its quotes, and added up since the task came: the rule of
    rent or buy, which does not have to guess how long a difference in price will last.

    >>> quotes = [Quote(market=Market(kind=k, zone="a"), price_per_hour=p, steps_per_second=1.0) for k, p in
    ...           (("v100", 1.1), ("k80", 1.0))]
    >>> choose = cheapest_with_moves(period_seconds=3600.0, moving_seconds=600.0)
    >>> standing = Standing(market=quotes[0].market)
    >>> [(standing := choose(quotes, standing)).market.kind for _ in range(3)]
    ['v100', 'k80', 'k80']
    """

    def choose(quotes: Sequence[Quote], standing: Standing) -> Standing:
        here, best = _here(quotes, standing), _cheapest(quotes)
        if here is None:
            return Standing(market=best.market)
        steps = period_seconds * here.steps_per_second
        regret = standing.regret + steps * max(0.0, here.price_per_step - best.price_per_step)
        if regret > 0 and regret >= moving_seconds / 3600 * best.price_per_hour:
            return Standing(market=best.market)
        return Standing(market=standing.market, regret=regret)

    return choose


def by_deadline(
    *, work_seconds: float, left_seconds: float, spot_offered: bool, moving_seconds: float, period_seconds: float
) -> str:
    """Where to run for the coming period so that the deadline is kept whatever spot does: 'spot', 'on demand', 'wait'.

    Spot is used, or waited for, as long as on demand would still be in time if the whole period came to nothing: while
    left − period ≥ work + 2·moving (to be evicted and to start over on demand). After that, on demand to the end.

    >>> how = {"moving_seconds": 300.0, "period_seconds": 600.0}
    >>> by_deadline(work_seconds=3600.0, left_seconds=7200.0, spot_offered=False, **how)
    'wait'
    >>> by_deadline(work_seconds=3600.0, left_seconds=4700.0, spot_offered=True, **how)
    'on demand'
    """
    if left_seconds <= 0 and work_seconds > 0:
        raise InvalidWorkload(f"a deadline must lie ahead; it is {-left_seconds:g} s past. Give a later one.")
    if left_seconds - period_seconds < work_seconds + 2 * moving_seconds:
        return "on demand"
    return "spot" if spot_offered else "wait"


def priced(cluster: Cluster, prices_per_hour: Mapping[str, float]) -> Cluster:
    """The cluster at the prices of now, by kind: what share policies that count money read.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="v100", processor="cuda", price_per_hour=3.06))
    >>> priced(cluster, {"v100": 0.92}).kind("v100").price_per_hour
    0.92
    """
    for kind in cluster.kinds:
        price = prices_per_hour.get(kind.name)
        if price is None or not 0 <= price < float("inf"):
            found = "there is none" if price is None else f"got {price}"
            raise InvalidWorkload(
                f"every kind must have a price of now, a number of at least 0; for {kind.name!r} {found}. Give its "
                "price on demand where spot is not offered."
            )
    kinds = tuple(dataclasses.replace(kind, price_per_hour=prices_per_hour[kind.name]) for kind in cluster.kinds)
    return dataclasses.replace(cluster, kinds=kinds)


def _here(quotes: Iterable[Quote], standing: Standing) -> Quote | None:
    return next((quote for quote in quotes if quote.market == standing.market), None)


def _cheapest(quotes: Sequence[Quote]) -> Quote:
    if not quotes:
        raise InvalidWorkload("some market must be offered in every period; there is none. Add on-demand quotes.")
    return min(quotes, key=lambda quote: (quote.price_per_step, quote.market.kind, quote.market.zone))


CHOOSERS: dict[str, Chooser] = {
    "cheapest_now": cheapest_now,
    "cheapest_with_moves": cheapest_with_moves(period_seconds=86400.0, moving_seconds=600.0),
    "stay": stay,
}
