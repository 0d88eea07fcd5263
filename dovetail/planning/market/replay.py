"""The same work begun at many moments of a price history, under a rule, with reclaims: what each run costs and when it
ends. Runs know only what was known at their moment (`outlook`), as a controller would.

A spot offer that is no longer in the history has been reclaimed: work since the last save is lost. A move pays for
`move_seconds` at the new place before work goes on. The decisions are those of `deciding.decide`, once in every period.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dovetail.planning.market.deciding import NOTHING, Ints, RentalRule, Runs, decide
from dovetail.planning.market.outlook import Bools, Floats, MarketOutlook
from dovetail.vocabulary.markets import Rental, RentalTerms

# A deadline is divided into so many periods at least.
_PERIODS = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of each run: its spend, seconds until it ended (infinite: not within the history), how often it moved
    and was reclaimed. Of a single run also what it rented when."""

    spend: Floats
    ended: Floats
    moves: Ints
    reclaims: Ints
    rentals: tuple[Rental, ...] = ()


def usual_period(outlook: MarketOutlook, terms: RentalTerms) -> float:
    """How often to decide: whenever the history has news, and often enough for the deadline."""
    steps = np.diff(outlook.times)
    news = float(steps.min()) if len(steps) else 3600.0
    return min(news, terms.deadline_seconds / _PERIODS)


def replay(
    outlook: MarketOutlook,
    terms: RentalTerms,
    starts: Sequence[float] | Floats,
    *,
    rule: RentalRule,
    period_seconds: float,
    free_moves: bool = False,
) -> Replay:
    """Runs that begin at these moments, to their ends, or to the end of the history where they have no deadline. With
    `free_moves` only the first start takes time, and reclaims lose nothing."""
    played = _MarketRuns(outlook, terms, np.asarray(starts, float), period_seconds, free_moves=free_moves)
    last = terms.deadline_seconds
    if math.isinf(last):
        last = float(outlook.times[-1]) - float(played.starts.min())
    for number in range(math.ceil(last / period_seconds) + 1):
        if not played.live.any():
            break
        played.turn(number * period_seconds, rule)
    return Replay(
        spend=played.spend,
        ended=played.ended,
        moves=played.moves,
        reclaims=played.reclaims,
        rentals=tuple(played.rentals),
    )


class _MarketRuns:
    """Where all runs of a replay stand."""

    def __init__(
        self, outlook: MarketOutlook, terms: RentalTerms, starts: Floats, period_seconds: float, *, free_moves: bool
    ) -> None:
        count = len(starts)
        self.free_moves = free_moves
        self.outlook, self.terms, self.starts, self.period = outlook, terms, starts, period_seconds
        self.here = np.full(count, NOTHING)
        self.left, self.starting, self.unsaved = np.ones(count), np.zeros(count), np.zeros(count)
        self.spend, self.ended = np.zeros(count), np.full(count, np.inf)
        self.moves, self.reclaims = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.rentals: list[Rental] = []

    @property
    def live(self) -> Bools:
        """Which runs have not ended."""
        return np.asarray(np.isinf(self.ended))

    def turn(self, now: float, rule: RentalRule) -> None:
        """One period, for all runs that go on: reclaims, the decision, then work."""
        rows = self.outlook.row(self.starts + now)
        self._reclaim(rows)
        runs = Runs(
            here=self.here,
            starting=self.starting,
            left=self.left,
            time_left=self.terms.deadline_seconds - now + np.zeros(len(self.left)),
        )
        chosen = decide(self.outlook, self.terms, runs, rows=rows, period_seconds=self.period, rule=rule)
        moved = self.live & (chosen != self.here)
        self.moves += moved & (chosen != NOTHING)
        again = self.moves > 1
        self.starting = np.where(moved, np.where(again & self.free_moves, 0.0, self.terms.move_seconds), self.starting)
        self.unsaved = np.where(moved, 0.0, self.unsaved)
        self.here = np.where(self.live, chosen, self.here)
        self._work(now, rows)

    def _reclaim(self, rows: Ints) -> None:
        """Spot offers that are gone take the work since the last save with them."""
        prices = self.outlook.prices[rows, self.here]
        gone = self.live & (self.here != NOTHING) & ~self.outlook.on_demand[self.here] & np.isnan(prices)
        most = 0.0 if self.free_moves else self.terms.lost_seconds
        lost = np.minimum(self.unsaved, most) / self.outlook.seconds[self.here]
        self.left = np.where(gone, np.minimum(1.0, self.left + lost), self.left)
        self.here = np.where(gone, NOTHING, self.here)
        self.reclaims += gone

    def _work(self, now: float, rows: Ints) -> None:
        seconds = self.outlook.seconds[self.here]
        busy = self.live & (self.here != NOTHING)
        used = np.where(busy, np.minimum(self.period, self.starting + self.left * seconds), 0.0)
        worked = np.maximum(0.0, used - self.starting)
        paid = np.where(busy, used / 3600 * self.outlook.prices[rows, self.here], 0.0)
        ends = busy & (self.starting + self.left * seconds <= self.period * (1 + 1e-12))
        if len(self.left) == 1:
            self._note(now, float(used[0]) if ends[0] else self.period, float(paid[0]))
        self.spend += paid
        self.left = np.where(ends, 0.0, self.left - worked / seconds)
        self.starting = np.maximum(0.0, self.starting - used)
        self.unsaved += worked
        self.ended = np.where(ends, now + used, self.ended)

    def _note(self, now: float, seconds: float, paid: float) -> None:
        """What a single run rents, joined to what it rented before where that is the same."""
        offer = None if self.here[0] == NOTHING else self.outlook.offers[int(self.here[0])]
        rental = Rental(offer=offer, start_seconds=now, end_seconds=now + seconds, spend=paid)
        if self.rentals and self.rentals[-1].offer == offer:
            before = self.rentals.pop()
            rental = dataclasses.replace(rental, start_seconds=before.start_seconds, spend=before.spend + paid)
        self.rentals.append(rental)
