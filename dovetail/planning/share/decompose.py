"""Raising very many unlike tasks together by prices for the kinds of devices, when no gang ties tasks to one another.

With a price p on the devices of each kind every task is on its own: it buys its level of rate as cheaply as its time
allows, a mix of two neighbours on the lower hull of its (rate, price) points. The level at which one more would
cost more than it is worth solves  max t − p·use(t), which is also an upper bound less p·capacity (weak duality). Each
answer (t, use) is a point that can be had; the best mix of the points found so far within the capacity is a small
linear program, whose duals are the next prices (Dantzig and Wolfe 1960). Prices are tried half way to the best ones
known, which steadies them (Ben-Ameur and Neto 2007). What is left between mix and bound is stated as the gap.

Knows arrays; does not know policies.
"""

import dataclasses

import numpy as np

from dovetail.planning.solver.linear import Indices, LinearProgram, Numbers, maximise

GAP = 1e-6
_ROUNDS = 400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposed:
    """The mix found, the level that every group reaches in it, and what no allocation can exceed."""

    x: Numbers
    level: float
    bound: float


def decompose(
    *,
    groups: Indices,
    kinds: Indices,
    rates: Numbers,
    draws: Numbers,
    spends: Numbers,
    sizes: Numbers,
    capacity: Numbers,
) -> Decomposed:
    """Maximise t with Σ rates·x ≥ sizes·t in each group, Σ x ≤ sizes in each group, Σ draws·x ≤ capacity for each kind,
    and Σ spends·x ≤ the last of the capacity, which is money and may be infinite.

    Column i runs one task of `groups[i]` on `kinds[i]`.

    >>> two = decompose(groups=np.array([0, 1]), kinds=np.array([0, 0]), rates=np.array([1.0, 2.0]),
    ...                 draws=np.ones(2), spends=np.zeros(2), sizes=np.ones(2), capacity=np.array([1.0, np.inf]))
    >>> round(two.level, 5)
    0.66667
    """
    market = _PricedMarket(groups=groups, kinds=kinds, rates=rates, draws=draws, spends=spends, sizes=sizes)
    if not np.isfinite(capacity[-1]):
        # Money that nobody counts: as much as could be spent.
        capacity = np.append(capacity[:-1], 1.0 + float(np.max(spends, initial=0.0)) * float(sizes.sum()))
    points = [_MixedPoint(x=np.zeros(groups.size), level=0.0, use=np.zeros(capacity.size))]
    # With prices of zero everybody has the best, at a level nothing exceeds.
    best_prices, bound = np.zeros(capacity.size), np.inf
    prices = best_prices
    for _ in range(_ROUNDS):
        point = market.answer(prices)
        reaches = point.level - float(prices @ point.use) + float(prices @ capacity)
        if reaches < bound:
            bound, best_prices = reaches, prices
        points.append(point)
        weights, level, wanted = _mix(points, capacity)
        if bound - level <= GAP * max(level, 1e-300):
            break
        prices = (wanted + best_prices) / 2 if np.any(best_prices) else wanted
    x = sum((weight * point.x for weight, point in zip(weights, points, strict=True)), np.zeros(groups.size))
    return Decomposed(x=x, level=level, bound=bound)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MixedPoint:
    x: Numbers
    level: float
    use: Numbers


def _mix(points: list[_MixedPoint], capacity: Numbers) -> tuple[Numbers, float, Numbers]:
    """The weights of the best mix of the points, its level, and what each pool is worth in it."""
    size, pools = len(points), capacity.size
    # Of what there is none, nothing may be used.
    there = np.where(capacity > 0, capacity, 1.0)
    uses = np.array([point.use for point in points]) / there
    row, column = np.meshgrid(np.arange(pools + 1), np.arange(size), indexing="ij")
    found = maximise(
        LinearProgram(
            objective=np.array([point.level for point in points]),
            rows=row.ravel(),
            columns=column.ravel(),
            values=np.vstack([uses.T, np.ones(size)]).ravel(),
            lower=np.append(np.full(pools, -np.inf), 1.0),
            upper=np.append(capacity / there, 1.0),
        )
    )
    assert found is not None, "doing nothing is always possible"
    return found.x, found.value, np.maximum(found.duals[:pools], 0.0) / there


class _PricedMarket:
    """What tasks do at given prices. Ways are laid out as a table, a row for each group, a column for each rank in
    the order of rates, so that all hulls are found at once."""

    def __init__(
        self, *, groups: Indices, kinds: Indices, rates: Numbers, draws: Numbers, spends: Numbers, sizes: Numbers
    ) -> None:
        order = np.lexsort((rates, groups))
        counts = np.bincount(groups, minlength=sizes.size)
        rank = np.arange(groups.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self._place = (groups[order], rank + 1)
        self._order, self._sizes, self._kinds, self._draws, self._spends = order, sizes, kinds, draws, spends
        shape = (sizes.size, int(counts.max()) + 1)
        # Rank 0 is to do nothing; ranks that a group does not have repeat its last, which the hull passes over.
        self._rates = np.zeros(shape)
        self._rates[self._place] = rates[order]
        self._absent = np.ones(shape, bool)
        self._absent[self._place] = False
        self._absent[:, 0] = False

    def answer(self, prices: Numbers) -> _MixedPoint:
        """What maximises level less what its use costs at these prices."""
        spend = np.full(self._rates.shape, np.inf)
        spend[:, 0] = 0.0
        spend[self._place] = (self._draws * prices[self._kinds] + self._spends * prices[-1])[self._order]
        on_hull = self._hull(spend)
        level = self._level(spend, on_hull)
        x = self._bought(level, spend, on_hull)
        use = np.bincount(self._kinds, self._draws * x, minlength=prices.size).astype(np.float64)
        use[-1] = float(self._spends @ x)
        return _MixedPoint(x=x, level=level, use=use)

    def _hull(self, spend: Numbers) -> list[tuple[Numbers, Numbers, Indices, Indices]]:
        """The segments of each group's lower hull from left to right: for each the slope, the rate where it ends, and
        the ranks at its ends. A group whose hull has ended repeats its last rank with an infinite slope."""
        rows = np.arange(self._rates.shape[0])
        at = np.zeros(rows.size, dtype=np.int64)
        segments = []
        for _ in range(self._rates.shape[1] - 1):
            ahead = self._rates - self._rates[rows, at][:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                slopes = np.where((ahead > 0) & ~self._absent, (spend - spend[rows, at][:, None]) / ahead, np.inf)
            # Of equal slopes the farthest: ranks ascend with the rate, so look from the right.
            following = slopes.shape[1] - 1 - np.argmin(slopes[:, ::-1], axis=1)
            slope = slopes[rows, following]
            following = np.where(np.isfinite(slope), following, at)
            segments.append((slope, self._rates[rows, following], at, following))
            at = following
        return segments

    def _level(self, spend: Numbers, segments: list[tuple[Numbers, Numbers, Indices, Indices]]) -> float:
        """Where the sum over all tasks of what one more unit of level costs passes 1, or where a task can no more."""
        highest = float(np.min(segments[-1][1]))
        starts, rises = [], []
        before = np.zeros(self._sizes.size)
        begins = np.zeros(self._sizes.size)
        for slope, ends, _, _ in segments:
            real = np.isfinite(slope)
            starts.append(begins[real])
            rises.append(((slope - before) * self._sizes)[real])
            before, begins = np.where(real, slope, before), ends
        start, rise = np.concatenate(starts), np.concatenate(rises)
        order = np.argsort(start, kind="stable")
        passed = np.searchsorted(np.cumsum(rise[order]), 1.0)
        return highest if passed >= order.size else min(highest, float(start[order[passed]]))

    def _bought(
        self, level: float, spend: Numbers, segments: list[tuple[Numbers, Numbers, Indices, Indices]]
    ) -> Numbers:
        """How much of each column the tasks buy to reach the level."""
        share = np.zeros(self._rates.shape)
        open_ = np.ones(self._sizes.size, bool)
        rows = np.arange(self._sizes.size)
        for _, ends, left, right in segments:
            here = open_ & (ends >= level * (1 - 1e-15))
            begins = self._rates[rows, left]
            with np.errstate(divide="ignore", invalid="ignore"):
                part = np.clip(np.where(ends > begins, (level - begins) / (ends - begins), 1.0), 0.0, 1.0)
            share[rows[here], right[here]] += part[here]
            share[rows[here], left[here]] += 1 - part[here]
            open_ &= ~here
        x = np.zeros(self._order.size)
        x[self._order] = (share * self._sizes[:, None])[self._place]
        return x
