"""How good a way of routing is, over everything it could spend: APGR, CPT and AIQ with bootstrap intervals.

A way of routing is a row of settings, from cheap to dear; for each query and setting we know the quality and the price
that came. Between two settings a share of the queries goes by each, so curves are lines between points.

- PGR(b), the performance gap recovered at a budget b: (quality − cheapest's) / (best's − cheapest's). APGR is its mean
  over budgets from the cheapest model's price to the best one's (Ong and others, RouteLLM, 2024).
- CPT(x), the call-performance threshold: the least share of that way at which a share x of the gap is recovered.
- AIQ, the average improvement in quality: the mean height of the curve's upper hull (Hu and others, RouterBench, 2024).
"""

import dataclasses

import numpy as np

from dovetail.serve.routing.outcome_table import Numbers

SAMPLES = 400
"""Of the bootstrap over queries."""
_BUDGETS = np.linspace(0.0, 1.0, 401)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RoutedOutcomes:
    """Queries by settings: the quality and the price that came."""

    quality: Numbers
    price: Numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutingScore:
    """One way of routing, judged. Intervals are 95%."""

    apgr: float
    apgr_interval: tuple[float, float]
    cpt50: float
    cpt80: float
    aiq: float
    aiq_interval: tuple[float, float]


def route_by_worth(score: Numbers, quality: Numbers, price: Numbers, *, settings: int = 201) -> RoutedOutcomes:
    """The outcomes of choosing the largest score − λ·price, over all λ that make a difference between the cheapest
    and the dearest model; queries by models."""
    cheap, dear = int(price.mean(axis=0).argmin()), int(price.mean(axis=0).argmax())
    step = np.maximum(price[:, dear] - price[:, cheap], 1e-12)
    ratios = (score[:, dear] - score[:, cheap]) / step
    edge = 1.0 + np.abs(ratios).max()
    moneys = np.concatenate([[edge], np.quantile(ratios, np.linspace(1, 0, settings)), [-edge]])
    every = np.arange(len(score))
    chosen = np.stack([(score - money * price).argmax(axis=1) for money in moneys], axis=1)
    return RoutedOutcomes(quality=quality[every[:, None], chosen], price=price[every[:, None], chosen])


def routed_after_answer(
    score: Numbers, quality: Numbers, price: Numbers, *, asked: int, settings: int = 201
) -> RoutedOutcomes:
    """The outcomes of asking one model of every query, and another where by then its score − λ·price is larger. What
    the first answer costs is paid in any case."""
    onward = int(np.delete(np.arange(score.shape[1]), asked)[np.delete(score.mean(axis=0), asked).argmax()])
    ratios = (score[:, onward] - score[:, asked]) / np.maximum(price[:, onward], 1e-12)
    edge = 1.0 + np.abs(ratios).max()
    moneys = np.concatenate([[edge], np.quantile(ratios, np.linspace(1, 0, settings)), [-edge]])
    goes = ratios[:, None] >= moneys
    came = np.where(goes, quality[:, [onward]], quality[:, [asked]])
    return RoutedOutcomes(quality=came, price=price[:, [asked]] + goes * price[:, [onward]])


def score_routing(
    routed: RoutedOutcomes, quality: Numbers, price: Numbers, *, seed: int = 0, samples: int = SAMPLES
) -> RoutingScore:
    """The figures of a way of routing over queries whose outcome with every single model is known, too."""
    cheap, best = int(price.mean(axis=0).argmin()), int(quality.mean(axis=0).argmax())
    ends = RoutedOutcomes(quality=quality[:, [cheap, best]], price=price[:, [cheap, best]])
    count = len(quality)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=samples) / count
    weights = np.concatenate([np.full((1, count), 1 / count), weights])
    at = [np.asarray(weights @ each) for each in (routed.price, routed.quality, ends.price, ends.quality)]
    figures = np.array([_figures(*(each[row] for each in at)) for row in range(len(weights))])
    # Draws in which the cheapest model is the best have no gap to recover, and no figures but the last.
    drawn = figures[1:][~np.isnan(figures[1:, 0])] if not np.isnan(figures[0, 0]) else figures[1:]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    apgr, cpt50, cpt80, aiq = figures[0].tolist()
    return RoutingScore(
        apgr=apgr,
        apgr_interval=(float(low[0]), float(high[0])),
        cpt50=cpt50,
        cpt80=cpt80,
        aiq=aiq,
        aiq_interval=(float(low[3]), float(high[3])),
    )


def _figures(price: Numbers, quality: Numbers, end_price: Numbers, end_quality: Numbers) -> tuple[float, ...]:
    """APGR, CPT(50%), CPT(80%) and AIQ of a curve between two ends. Nobody spends more than the best model takes."""
    gap, way = end_quality[1] - end_quality[0], end_price[1] - end_price[0]
    if gap <= 0 or way <= 0:  # the cheapest model is the best: nothing can be recovered
        return (np.nan, np.nan, np.nan, float(end_quality[1]))
    share = (price - end_price[0]) / way
    inside = (share > 0) & (share < 1)
    order = np.argsort(share[inside], kind="stable")
    x = np.concatenate([[0.0], share[inside][order], [1.0]])
    y = np.concatenate([[0.0], (quality[inside][order] - end_quality[0]) / gap, [1.0]])
    heights = np.interp(_BUDGETS, x, y)
    reached = [float(_BUDGETS[(heights >= part).argmax()]) for part in (0.5, 0.8)]
    aiq = end_quality[0] + gap * np.trapezoid(_hull(x, y), _BUDGETS)
    return (float(np.trapezoid(heights, _BUDGETS)), *reached, float(aiq))


def _hull(x: Numbers, y: Numbers) -> Numbers:
    """The least concave curve above the points that never falls, at the budgets."""
    tops: list[tuple[float, float]] = []
    for point in zip(x.tolist(), np.maximum.accumulate(y).tolist(), strict=True):
        while len(tops) > 1 and _is_below(tops[-2], tops[-1], point):
            tops.pop()
        tops.append(point)
    return np.interp(_BUDGETS, [top[0] for top in tops], [top[1] for top in tops])


def _is_below(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])
