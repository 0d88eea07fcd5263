"""What is rented follows the prices: asks the market and the provisioner again and again, and has nodes started and
stopped as `planning/market` decides.

A move is a start, and, once what was started is in the cluster, an emptying of what it replaces, which is stopped when
nothing runs there any more. Whoever provides nodes may take minutes, fail or hang: that is a thread's business, never
the loop's. What goes wrong is said once, and its market is left alone for a while.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping

from dovetail.control.renting.calls import Calls
from dovetail.control.renting.rented import RentedNode, match_nodes, take_listing
from dovetail.control.renting.work_left import make_offers
from dovetail.control.state import State
from dovetail.describe.markets import MarketSource, check_fresh, show_time
from dovetail.engines.provisioning import ProvidedNode, Provisioner
from dovetail.vocabulary import DovetailError, Event, NoFeasiblePlan, Task
from dovetail.vocabulary.events import Warned
from dovetail.vocabulary.markets import Market, Offer, PriceHistory, RentalTerms
from dovetail.vocabulary.node_events import NodeLeaving, NodeRented, NodeReturned
from dovetail.vocabulary.units import show_seconds

# What was asked for is to be in the cluster by then, or it is said that it is not. It is waited for as long as a move
# is said to take: machines of clouds take minutes to start.
JOIN_SECONDS = 55.0
_CURE = "Give a later deadline (--objective), more devices (--cluster) or less work."
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


class Renting:
    """Rents for a state. Called by the loop alone, from its thread: `step` between two waits, `admit` before tasks are
    taken on, `emptied` and `departed` as nodes are, and `close` at the end, which gives everything back."""

    def __init__(self, state: State, *, market: MarketSource, provisioner: Provisioner, terms: RentingTerms) -> None:
        self._state, self._market, self._provisioner, self._terms = state, market, provisioner, terms
        self._provider = Calls("the provisioner", now=state.now)
        self._prices = Calls("the market", now=state.now)
        self._ask_at, self._since = -math.inf, math.nan
        self._rented: dict[str, RentedNode] = {}
        self._returned: set[str] = set()  # of which it is not known yet that they are stopped
        self._strangers: set[str] = set()  # nodes of the cluster that are none of those that are rented
        self._avoided: dict[Market, float] = {}
        self._said: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._is_listed, self._is_late = False, False
        self._is_listing_due, self._are_prices_due = False, False
        self._history: PriceHistory | None = None

    def step(self) -> list[Event]:
        """Take up what was answered, judge what came of it, and decide; ask again where it is time to. Never waits.
        Gives what happened."""
        now = self._state.now()
        before = self._provider.taken + self._prices.taken
        events = [*self._provider.take(), *self._prices.take()]
        has_news = self._provider.taken + self._prices.taken > before
        strangers = match_nodes(self._rented, self._state.cluster)
        has_come, self._strangers = bool(strangers - self._strangers), strangers
        events += self._judge(now)
        if (has_news or events) and self._is_listed and self._history is not None:
            events += self._decide(now)
        events += [each for calls in (self._provider, self._prices) for each in self._warn(calls.find_late())]
        self._ask(now, is_joining=has_come and any(not one.node for one in self._rented.values()))
        return events

    def wake_seconds(self) -> float:
        """When there is something to ask, or to say of what does not come, on the engine's clock."""
        waited = (
            one.since_seconds + (self._due_seconds if one.is_late else self._terms.join_seconds)
            for one in self._rented.values()
            if not (one.node or one.is_leaving)
        )
        return min(self._ask_at, self._provider.late_seconds, self._prices.late_seconds, *waited)

    def admit(self, tasks: Iterable[Task]) -> None:
        """Refuse tasks, those of which is known how long they take, where the deadline cannot be met with them even on
        demand. Raises `NoFeasiblePlan`."""
        known = [task for task in tasks if self._state.ledger[task.identity].fingerprint]
        if not known or self._history is None:
            return
        now = self._state.now()
        offers = make_offers(self._state, self._history.at(now), most=self._terms.most, more=known)
        late = self._lateness(offers, [one for one in self._rented.values() if not one.is_leaving], now)
        if late:
            raise NoFeasiblePlan(f"{late} {_CURE}")

    def emptied(self, node: str) -> list[Event]:
        """Nothing runs on a node any more: where it was given back, it is stopped."""
        return [event for one in self._of(node) if one.is_leaving for event in self._return(one, "it is empty")]

    def departed(self, node: str) -> list[Event]:
        """A node has left the cluster: it is not paid for any longer than it is there."""
        return [event for one in self._of(node) for event in self._return(one, "it has left the cluster")]

    def close(self) -> list[Event]:
        """Stop everything that is rented; waits until that is done."""
        events = [event for one in list(self._rented.values()) for event in self._return(one, "the controller ends")]
        return [*events, *self._provider.close(), *self._prices.close()]

    # What is asked, and what is answered

    def _ask(self, now: float, *, is_joining: bool) -> None:
        if now >= self._ask_at:
            self._ask_at = now + self._terms.period_seconds
            self._is_listing_due = self._are_prices_due = True
        # Who has joined may be known by no more than the number that the provisioner lists.
        self._is_listing_due |= is_joining
        if self._is_listing_due and self._provider.are_answered:
            self._is_listing_due, warn = False, functools.partial(self._warn, about="list")
            self._provider.make("list", self._provisioner.nodes, done=self._take_listing, failed=warn)
        if self._are_prices_due and self._prices.are_answered:
            self._are_prices_due, warn = False, functools.partial(self._warn, about="prices")
            self._prices.make("prices", self._market.ask, done=self._take_prices, failed=warn)

    def _take_prices(self, history: PriceHistory) -> list[Event]:
        self._history = history
        self._said.pop("prices", None)
        return []

    def _take_listing(self, listed: list[ProvidedNode]) -> list[Event]:
        now, self._is_listed = self._state.now(), True
        self._said.pop("list", None)
        gone = take_listing(self._rented, listed, now=now, returned=self._returned)
        return [*(event for one in gone for event in self._note_return(one, "it was taken away")), *self._notices(now)]

    def _refused(self, name: str, market: Market, why: str) -> list[Event]:
        """A node could not be asked for."""
        self._avoid(market, self._state.now())
        one = self._rented.pop(name, None)
        return [*self._warn(why), *(self._note_return(one, "it could not be had") if one else [])]

    def _stopped(self, name: str, why: str = "") -> list[Event]:
        self._returned.discard(name)
        return self._warn(f"node {name} may still be paid for: {why}") if why else []

    # What is decided

    @property
    def _due_seconds(self) -> float:
        """For how long a node is waited for."""
        return max(self._terms.join_seconds, self._terms.rental.move_seconds)

    def _judge(self, now: float) -> list[Event]:
        """What was asked for and has not come, or is something else, is given back, and its market left alone."""
        events: list[Event] = []
        for one in [each for each in self._rented.values() if not each.is_leaving]:
            why, waited = one.fault(), now - one.since_seconds
            if not (why or one.node) and waited >= self._due_seconds:
                why = self._absence(one, self._due_seconds)
            if why:
                events += self._warn(f"node {one.name} was asked for as {one.market}; {why}. It is given back.")
                self._avoid(one.market, now)
                events += self._give_back(one, now, why)
            elif not (one.node or one.is_late) and waited >= self._terms.join_seconds:
                one.is_late = True
                events += self._warn(
                    f"node {one.name} was asked for as {one.market}; {self._absence(one, self._terms.join_seconds)}. "
                    f"It is waited for until {self._due_seconds:.0f} s are over (--move)."
                )
        return events

    def _absence(self, one: RentedNode, seconds: float) -> str:
        same = [each for each in self._rented.values() if each.market == one.market and not each.is_leaving]
        there = sum(bool(each.node) for each in same)
        of_all = f" ({there} of {len(same)} such nodes have)" if len(same) > 1 else ""
        return f"it has not joined the cluster within {seconds:.0f} s{of_all}"

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
            self._since, self._is_late = math.nan, False
            return [event for one in here for event in self._give_back(one, now, "there is nothing to do")]
        self._since = now if math.isnan(self._since) else self._since
        try:
            offers = self._offers(now)
            wanted = self._wanted(offers, here, now) if offers else self._learning(here, now)
        except DovetailError as error:  # prices of another time, or no way to be in time that there is a price of
            return self._warn(str(error), about="deciding")
        self._said.pop("deciding", None)
        events = self._note_lateness(offers, here, now)
        if wanted is None:
            return events
        same = [one for one in here if one.market == wanted.market]
        missing = math.ceil(wanted.count) - len(same)
        events += [self._start(wanted.market, now) for _ in range(missing)]
        if missing <= 0 and all(one.node for one in same):
            surplus = [*same[math.ceil(wanted.count) :], *(one for one in here if one.market != wanted.market)]
            for one in surplus:
                events += self._give_back(one, now, f"{wanted.market} is cheaper")
        return events

    def _offered(self, now: float) -> dict[Market, float]:
        """What may be rented now, and its price."""
        assert self._history is not None
        check_fresh(self._history, now=now)
        prices = {
            market: price
            for market, price in self._history.at(now).items()
            if self._terms.most.get(market.kind) and self._avoided.get(market, -math.inf) <= now
        }
        if not prices:
            raise NoFeasiblePlan("some market must offer a kind that may be rented (--cluster); now none does.")
        return prices

    def _offers(self, now: float) -> tuple[Offer, ...]:
        return make_offers(self._state, self._offered(now), most=self._terms.most)

    def _learning(self, here: list[RentedNode], now: float) -> Offer | None:
        """What to rent to learn how fast anything is: the cheapest that there is."""
        prices = self._offered(now)
        cheapest = min(prices, key=lambda market: (prices[market], market))
        is_there = any(one.market in prices for one in here)
        return None if is_there else Offer(market=cheapest, count=1, work_seconds=1.0)

    def _wanted(self, offers: tuple[Offer, ...], here: list[RentedNode], now: float) -> Offer | None:
        """What should be rented now."""
        from dovetail.planning.market.deciding import decide_now  # with numpy, which few runs need

        assert self._history is not None
        terms = dataclasses.replace(self._terms.rental, deadline_seconds=max(1e-3, self._left(now)))
        held = _held(here, offers)
        try:
            return decide_now(
                self._history.of({each.market for each in offers}),
                offers,
                terms,
                at_seconds=now,
                here=held,
                starting_seconds=0.0 if held is None else self._starting_seconds(held, here, now),
                period_seconds=self._terms.period_seconds,
            )
        except NoFeasiblePlan:
            if not _sure(offers):
                raise
            late = self._soonest(_sure(offers) if held is None else (*_sure(offers), held), here, now)
            return late[1] if late else None

    # The deadline

    def _left(self, now: float) -> float:
        """How long it is to the deadline of what is to be done; it counts from when that came."""
        return self._terms.rental.deadline_seconds - (0.0 if math.isnan(self._since) else now - self._since)

    def _starting_seconds(self, offer: Offer, here: list[RentedNode], now: float) -> float:
        """In how long an offer is there."""
        move = self._terms.rental.move_seconds
        there = [one.joins_seconds(now=now, within_seconds=move) for one in here if one.market == offer.market]
        return max(sorted(there)[: math.ceil(offer.count)]) if len(there) >= offer.count else move

    def _soonest(self, offers: Iterable[Offer], here: list[RentedNode], now: float) -> tuple[float, Offer] | None:
        """The offer with which all is done first, and in how long."""
        ends = [(self._starting_seconds(each, here, now) + each.work_seconds, each) for each in offers]
        return min(ends, key=lambda end: end[0], default=None)

    def _lateness(self, offers: tuple[Offer, ...], here: list[RentedNode], now: float) -> str:
        """That the deadline cannot be met even on demand, and by how much; empty: it can, as far as is known."""
        soonest, left = self._soonest(_sure(offers), here, now), self._left(now)
        if soonest is None or soonest[0] <= left:
            return ""
        seconds, offer = soonest
        return (
            f"a deadline must be one that can be met on demand; {show_time(now + left)} cannot: the fastest offer, "
            f"{offer.count:g} × {offer.market}, is done at {show_time(now + seconds)}, "
            f"{show_seconds(seconds - left)} late."
        )

    def _note_lateness(self, offers: tuple[Offer, ...], here: list[RentedNode], now: float) -> list[Event]:
        """Say once that the deadline will be missed, and once more where that is so again."""
        was_late, late = self._is_late, self._lateness(offers, here, now)
        self._is_late = bool(late)
        if not late or was_late:
            return []
        return self._warn(f"{late} It is trained all the same, as little late as can be. {_CURE}")

    # What follows

    def _start(self, market: Market, now: float) -> Event:
        name = f"dovetail-{now:.0f}-{next(self._numbers)}"
        self._rented[name] = RentedNode(name=name, market=market, since_seconds=now)
        self._provider.make(
            f"start {name}",
            functools.partial(self._provisioner.start, name, market),
            done=lambda _: [],
            failed=functools.partial(self._refused, name, market),
        )
        self._is_listing_due = True
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
        self._returned.add(one.name)
        self._provider.make(
            f"stop {one.name}",
            functools.partial(self._provisioner.stop, one.name),
            done=lambda _: self._stopped(one.name),
            failed=functools.partial(self._stopped, one.name),
        )
        self._is_listing_due = True
        return self._note_return(one, why)

    def _note_return(self, one: RentedNode, why: str) -> list[Event]:
        now, history = self._state.now(), self._history
        is_known = history is not None and one.market in history.markets
        spend = history.spend(one.market, one.since_seconds, now) if history is not None and is_known else 0.0
        return [NodeReturned(at_seconds=now, name=one.name, spend=spend, reason=why)]

    def _of(self, node: str) -> list[RentedNode]:
        return [one for one in self._rented.values() if one.node == node]

    def _avoid(self, market: Market, now: float) -> None:
        self._avoided[market] = now + AVOID_PERIODS * self._terms.period_seconds

    def _warn(self, message: str, *, about: str = "") -> list[Event]:
        """Say what is wrong; what goes wrong again and again is said once, until it goes well."""
        if not message or self._said.get(about) == message:
            return []
        if about:
            self._said[about] = message
        return [Warned(at_seconds=self._state.now(), message=message)]


def _sure(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers on demand."""
    return tuple(each for each in offers if not each.market.spot)


RentingMaker = Callable[[State], Renting]
"""What makes a renting for a state."""


def _held(here: list[RentedNode], offers: tuple[Offer, ...]) -> Offer | None:
    """The offer that is what is rented, where all of it is of one market."""
    markets = {one.market for one in here}
    if len(markets) != 1:
        return None
    (market,) = markets
    return next((each for each in offers if each.market == market and each.count == len(here)), None)
