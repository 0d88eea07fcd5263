"""What is rented follows the prices: asks the market and the provisioner again and again, and has nodes started and
stopped as `planning/market` decides.

A move is a start, and, once what was started is in the cluster, an emptying of what it replaces, which is stopped when
nothing runs there any more. Whoever provides nodes may take minutes, fail or hang: that is a thread's business, never
the loop's. What goes wrong is said once, and its market is left alone for a while.
"""

import concurrent.futures
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

from dovetail.control.renting.rented import RentedNode, match_nodes, take_listing
from dovetail.control.renting.work_left import make_offers
from dovetail.control.state import State
from dovetail.describe.markets import MarketSource, check_fresh
from dovetail.engines.provisioning import ProvidedNode, Provisioner
from dovetail.vocabulary import DovetailError, Event, NoFeasiblePlan
from dovetail.vocabulary.events import Warned
from dovetail.vocabulary.markets import Market, Offer, PriceHistory, RentalTerms
from dovetail.vocabulary.node_events import NodeLeaving, NodeRented, NodeReturned

# What was asked for is to be in the cluster by then, or it is said that it is not.
JOIN_SECONDS = 55.0
# A market that failed is left alone for so many periods.
AVOID_PERIODS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RentingTerms:
    """How a controller rents: at most so many devices of each kind, judged by these terms, asking every so often.

    >>> RentingTerms(most={"v100": 2}).period_seconds
    60.0
    """

    most: Mapping[str, int]
    rental: RentalTerms = RentalTerms()
    period_seconds: float = 60.0
    join_seconds: float = JOIN_SECONDS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Deed:
    name: str
    market: Market | None  # to start it there; None: to stop it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _MarketNews:
    listed: list[ProvidedNode]
    history: PriceHistory
    failed: list[tuple[_Deed, str]]


class Renting:
    """Rents for a state. Called by the loop alone, from its thread: `step` between two waits, `emptied` and `departed`
    as nodes are, and `close` at the end, which gives everything back."""

    def __init__(self, state: State, *, market: MarketSource, provisioner: Provisioner, terms: RentingTerms) -> None:
        self._state, self._market, self._provisioner, self._terms = state, market, provisioner, terms
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="renting")
        self._call: concurrent.futures.Future[_MarketNews] | None = None
        self._ask_at, self._since = -math.inf, math.nan
        self._deeds: list[_Deed] = []
        self._rented: dict[str, RentedNode] = {}
        self._avoided: dict[Market, float] = {}
        self._said = ""
        self._numbers = itertools.count(1)
        self._history: PriceHistory | None = None

    def step(self) -> list[Event]:
        """Take up what was answered and decide; ask again where it is time to. Never waits. Gives what happened."""
        now = self._state.now()
        match_nodes(self._rented, self._state.cluster)
        events: list[Event] = []
        if self._call is not None and self._call.done():
            call, self._call = self._call, None
            try:
                events = self._take(call.result(), now)
            except DovetailError as error:
                events = self._warn(str(error))
        if self._call is None and (now >= self._ask_at or self._deeds):
            deeds, self._deeds = self._deeds, []
            self._ask_at = now + self._terms.period_seconds
            self._call = self._thread.submit(self._ask, deeds)
        return events

    def wake_seconds(self) -> float:
        """When to ask again, on the engine's clock."""
        return self._ask_at

    def emptied(self, node: str) -> list[Event]:
        """Nothing runs on a node any more: where it was given back, it is stopped."""
        return [event for one in self._of(node) if one.is_leaving for event in self._return(one, "it is empty")]

    def departed(self, node: str) -> list[Event]:
        """A node has left the cluster: it is not paid for any longer than it is there."""
        return [event for one in self._of(node) for event in self._return(one, "it has left the cluster")]

    def close(self) -> list[Event]:
        """Stop everything that is rented; waits until that is done."""
        events = [event for one in list(self._rented.values()) for event in self._return(one, "the controller ends")]
        deeds, self._deeds = self._deeds, []
        self._thread.shutdown(wait=True)
        for deed in deeds:
            try:
                self._provisioner.stop(deed.name)
            except DovetailError as error:
                events += self._warn(f"node {deed.name} may still be paid for: {error}")
        return events

    # What a thread does

    def _ask(self, deeds: list[_Deed]) -> _MarketNews:
        failed = []
        for deed in deeds:
            try:
                if deed.market is None:
                    self._provisioner.stop(deed.name)
                else:
                    self._provisioner.start(deed.name, deed.market)
            except DovetailError as error:
                failed.append((deed, str(error)))
        return _MarketNews(listed=self._provisioner.nodes(), history=self._market.ask(), failed=failed)

    # What is decided

    def _take(self, answer: _MarketNews, now: float) -> list[Event]:
        check_fresh(answer.history, now=now)
        self._history, events = answer.history, list[Event]()
        for deed, why in answer.failed:
            events += self._warn(why)
            if deed.market is not None:
                self._avoid(deed.market, now)
                self._rented.pop(deed.name, None)
        for one in take_listing(self._rented, answer.listed, now=now):
            events += self._returned(one, "it was taken away")
        events += self._judge(now)
        events += self._notices(now)
        return [*events, *self._decide(now)]

    def _judge(self, now: float) -> list[Event]:
        """What was asked for and has not come, or is something else, is given back, and its market left alone."""
        events: list[Event] = []
        for one in list(self._rented.values()):
            if one.is_leaving:
                continue
            if not one.node and now - one.since_seconds > self._terms.join_seconds:
                why = f"it has not joined the cluster within {self._terms.join_seconds:.0f} s"
            elif one.node and one.kind != one.market.kind:
                why = f"its devices are of kind {one.kind}"
            else:
                continue
            events += self._warn(f"node {one.name} was asked for as {one.market}; {why}. It is given back.")
            self._avoid(one.market, now)
            events += self._give_back(one, now, why)
        return events

    def _notices(self, now: float) -> list[Event]:
        """What the provisioner says it takes away."""
        found: list[Event] = []
        for one in self._rented.values():
            if one.leaves_seconds < math.inf and one.node and not one.is_leaving:
                one.is_leaving = True
                found.append(
                    NodeLeaving(at_seconds=now, node=one.node, leaves_seconds=one.leaves_seconds, reason="reclaimed")
                )
        return found

    def _decide(self, now: float) -> list[Event]:
        here = [one for one in self._rented.values() if not one.is_leaving]
        if not self._state.pending():
            self._since = math.nan
            return [event for one in here for event in self._give_back(one, now, "there is nothing to do")]
        self._since = now if math.isnan(self._since) else self._since
        try:
            wanted = self._wanted(here, now)
        except NoFeasiblePlan as error:
            return self._warn(str(error))
        if wanted is None:
            return []
        same = [one for one in here if one.market == wanted.market]
        missing = math.ceil(wanted.count) - len(same)
        events: list[Event] = [self._start(wanted.market, now) for _ in range(missing)]
        if missing <= 0 and all(one.node for one in same):
            surplus = [*same[math.ceil(wanted.count) :], *(one for one in here if one.market != wanted.market)]
            for one in surplus:
                events += self._give_back(one, now, f"{wanted.market} is cheaper")
        return events

    def _wanted(self, here: list[RentedNode], now: float) -> Offer | None:
        """What should be rented now; to learn how fast anything is, the cheapest that there is."""
        from dovetail.planning.market.deciding import decide_now  # with numpy, which few runs need

        assert self._history is not None
        prices = {
            market: price
            for market, price in self._history.at(now).items()
            if self._terms.most.get(market.kind) and self._avoided.get(market, -math.inf) <= now
        }
        if not prices:
            raise NoFeasiblePlan("some market must offer a kind that may be rented (--cluster); now none does.")
        offers = make_offers(self._state, prices, most=self._terms.most)
        if not offers:
            cheapest = min(prices, key=lambda market: (prices[market], market))
            is_there = any(one.market in prices for one in here)
            return None if is_there else Offer(market=cheapest, count=1, work_seconds=1.0)
        terms = dataclasses.replace(
            self._terms.rental,
            deadline_seconds=max(1e-3, self._terms.rental.deadline_seconds - (now - self._since)),
        )
        history, held = self._history, _held(here, offers)
        starting = terms.move_seconds if held is not None and not all(one.node for one in here) else 0.0
        known = {each.market for each in offers}
        columns = [number for number, market in enumerate(history.markets) if market in known]
        history = PriceHistory(
            times=history.times,
            markets=tuple(history.markets[number] for number in columns),
            prices=tuple(tuple(row[number] for number in columns) for row in history.prices),
        )
        try:
            return decide_now(
                history,
                offers,
                terms,
                at_seconds=now,
                here=held,
                starting_seconds=starting,
                period_seconds=self._terms.period_seconds,
            )
        except NoFeasiblePlan:
            sure = [each for each in offers if not each.market.spot]
            if not sure:
                raise
            return min(sure, key=lambda each: each.work_seconds)  # late by as little as can be

    # What follows

    def _start(self, market: Market, now: float) -> Event:
        name = f"dovetail-{now:.0f}-{next(self._numbers)}"
        self._rented[name] = RentedNode(name=name, market=market, since_seconds=now)
        self._deeds.append(_Deed(name=name, market=market))
        assert self._history is not None
        return NodeRented(
            at_seconds=now,
            name=name,
            device_kind=market.kind,
            zone=market.zone,
            spot=market.spot,
            price_per_hour=self._history.at(now)[market],
        )

    def _give_back(self, one: RentedNode, now: float, why: str) -> list[Event]:
        one.is_leaving = True
        if not one.node:
            return self._return(one, why)
        return [NodeLeaving(at_seconds=now, node=one.node, leaves_seconds=now, reason=f"given back: {why}")]

    def _return(self, one: RentedNode, why: str) -> list[Event]:
        self._rented.pop(one.name, None)
        self._deeds.append(_Deed(name=one.name, market=None))
        return self._returned(one, why)

    def _returned(self, one: RentedNode, why: str) -> list[Event]:
        now = self._state.now()
        spend = self._history.spend(one.market, one.since_seconds, now) if self._history is not None else 0.0
        return [NodeReturned(at_seconds=now, name=one.name, spend=spend, reason=why)]

    def _of(self, node: str) -> list[RentedNode]:
        return [one for one in self._rented.values() if one.node == node]

    def _avoid(self, market: Market, now: float) -> None:
        self._avoided[market] = now + AVOID_PERIODS * self._terms.period_seconds

    def _warn(self, message: str) -> list[Event]:
        if message == self._said:
            return []
        self._said = message
        return [Warned(at_seconds=self._state.now(), message=message)]


RentingMaker = Callable[[State], Renting]
"""What makes a renting for a state."""


def _held(here: list[RentedNode], offers: tuple[Offer, ...]) -> Offer | None:
    """The offer that is what is rented, where all of it is of one market."""
    markets = {one.market for one in here}
    if len(markets) != 1:
        return None
    (market,) = markets
    return next((each for each in offers if each.market == market and each.count == len(here)), None)
