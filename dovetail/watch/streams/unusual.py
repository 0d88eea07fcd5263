"""Which of the frequent combinations are behind the outliers, from counts alone."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from dovetail.watch.ratios import interval_of, ratio_of
from dovetail.watch.streams.heavy_hitters import FrequentCombination


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
    """Those with support and ratio, each only where it says more than its parts and is not due to a part of it."""
    rated = _rate([each for each in found if each.outliers >= least_support * outliers > 0], events, outliers)
    likely = [each for each in rated if each.ratio >= least_ratio and each.low > 1.0]
    telling = [each for each in likely if not any(_includes(part, each) and part.ratio >= each.low for part in rated)]
    alone = [each for each in telling if not _is_due_to_part(each, telling, events, outliers, least_ratio)]
    return sorted(alone, key=lambda each: -each.support * math.log(each.ratio))


def _rate(found: Sequence[FrequentCombination], events: float, outliers: float) -> list[UnusualCombination]:
    counts = [each.outliers for each in found], [each.events for each in found]
    return [
        UnusualCombination(
            values=each.values,
            events=each.events,
            outliers=each.outliers,
            support=each.outliers / outliers,
            share=each.events / events,
            ratio=_ratio(each.outliers, each.events, events, outliers),
            low=float(low),
            high=float(high),
        )
        for each, low, high in zip(found, *interval_of("risk", *counts, outliers=outliers, of=events), strict=True)
    ]


def _ratio(mine: float, of: float, events: float, outliers: float) -> float:
    return float(ratio_of("risk", mine, of, outliers=outliers, of=events))


def _includes(part: UnusualCombination, whole: UnusualCombination) -> bool:
    return part.values.items() < whole.values.items()


def _is_due_to_part(
    each: UnusualCombination, found: Sequence[UnusualCombination], events: float, outliers: float, least_ratio: float
) -> bool:
    """Whether, without the events of a narrower combination, it is no longer as unusual as asked for."""
    for narrow in found:
        if _includes(each, narrow):
            left = (each.outliers - narrow.outliers, each.events - narrow.events)
            if _ratio(*left, events - narrow.events, outliers - narrow.outliers) < least_ratio:
                return True
    return False
