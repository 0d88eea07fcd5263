"""Which of the frequent combinations are behind the outliers, from counts alone."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.watch.ratios import interval_of, ratio_of
from dovetail.watch.streams.heavy_hitters import FrequentCombination

# Of streams in which nothing is behind outliers so many are to name nothing.
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnusualCombination:
    """Attribute values of which more are outliers than of others: how many times as likely, with the interval that
    holds the true ratio 19 times in 20."""

    values: dict[str, Any]
    events: float
    outliers: float
    support: float
    share: float
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        values = " and ".join(f"{name} = {value}" for name, value in self.values.items())
        return (
            f"{values}: {self.outliers:.0f} of {self.outliers / self.support:.0f} outliers, "
            f"{self.ratio:.1f} × as likely ({self.low:.1f} to {self.high:.1f}), {self.share:.0%} of events"
        )


def find_unusual(
    found: Sequence[FrequentCombination], *, events: float, outliers: float, least_support: float, least_ratio: float
) -> list[UnusualCombination]:
    """Those with support and ratio, each only where outliers are likelier in it than in the rest of each of its parts,
    and not due to a combination of which it is a part: beyond chance, over all that is asked."""
    rated = _rate([each for each in found if each.outliers >= least_support * outliers > 0], events, outliers)
    pairs = _pairs(rated)
    confidence = 1 - (1 - _CONFIDENCE) / max(len(rated) + len(pairs), 1)
    # Not by the ratio of the part: that is as infinite as its own, where all outliers are in both.
    sides = [(*_counts(rated[whole]), *_counts(rated[part])) for whole, part in pairs]
    is_no_more = {whole for (whole, _), low in zip(pairs, _lows(sides, confidence), strict=True) if low <= 1.0}
    lows = _lows([(*_counts(each), outliers, events) for each in rated], confidence)
    telling = {
        number
        for number, (each, low) in enumerate(zip(rated, lows, strict=True))
        if each.ratio >= least_ratio and low > 1.0 and number not in is_no_more
    }
    pairs = [(whole, part) for whole, part in pairs if whole in telling and part in telling]
    sides = [_without(rated[part], rated[whole], outliers, events) for whole, part in pairs]
    is_due = {
        part
        for (_, part), side, low in zip(pairs, sides, _lows(sides, confidence), strict=True)
        if low <= 1.0 or _ratio(*side) < least_ratio
    }
    alone = [rated[number] for number in sorted(telling - is_due)]
    return sorted(alone, key=lambda each: -each.support * math.log(each.ratio))


def _pairs(found: Sequence[UnusualCombination]) -> list[tuple[int, int]]:
    """Every two of which the second is a part of the first, by number."""
    number_of = {frozenset(each.values.items()): number for number, each in enumerate(found)}
    return [
        (whole, number_of[part])
        for values, whole in number_of.items()
        for size in range(1, len(values))
        for part in map(frozenset, itertools.combinations(values, size))
        if part in number_of
    ]


def _counts(each: UnusualCombination) -> tuple[float, float]:
    return each.outliers, each.events


def _without(
    each: UnusualCombination, narrow: UnusualCombination, outliers: float, events: float
) -> tuple[float, float, float, float]:
    """Its outliers and events, and all, without those of a combination of which it is a part."""
    left = (each.outliers - narrow.outliers, each.events - narrow.events)
    return *left, outliers - narrow.outliers, events - narrow.events


def _lows(sides: Sequence[tuple[float, float, float, float]], confidence: float) -> list[float]:
    """How much likelier outliers are at least inside than beside it, of outliers and events inside and of all."""
    if not sides:
        return []
    inside, events, outliers, of = np.maximum(np.array(sides), 0.0).T
    # What is counted with decay, as far as there is room, may be a little more inside than in all.
    outliers, of = np.maximum(outliers, inside), np.maximum(of, events + np.maximum(outliers - inside, 0.0))
    low, _ = interval_of("risk", inside, events, outliers=outliers, of=of, confidence=confidence)
    return list(low.tolist())


def _rate(found: Sequence[FrequentCombination], events: float, outliers: float) -> list[UnusualCombination]:
    counts = [each.outliers for each in found], [each.events for each in found]
    return [
        UnusualCombination(
            values=each.values,
            events=each.events,
            outliers=each.outliers,
            support=each.outliers / outliers,
            share=each.events / events,
            ratio=_ratio(each.outliers, each.events, outliers, events),
            low=float(low),
            high=float(high),
        )
        for each, low, high in zip(found, *interval_of("risk", *counts, outliers=outliers, of=events), strict=True)
    ]


def _ratio(mine: float, of_mine: float, outliers: float, events: float) -> float:
    return float(ratio_of("risk", mine, of_mine, outliers=outliers, of=events))
