"""Which of the frequent combinations are behind the outliers, from counts alone."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from dovetail.watch.streams.heavy_hitters import FrequentCombination

# 95% of a normal variate lie within so many standard deviations; ratios are near normal in their logarithm.
_DEVIATIONS = 1.96


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
    rated = [_rate(each, events, outliers) for each in found if each.outliers >= least_support * outliers > 0]
    likely = [each for each in rated if each.ratio >= least_ratio and each.low > 1.0]
    telling = [each for each in likely if not any(_includes(part, each) and part.ratio >= each.low for part in rated)]
    alone = [each for each in telling if not _is_due_to_part(each, telling, events, outliers, least_ratio)]
    return sorted(alone, key=lambda each: -each.support * math.log(each.ratio))


def _rate(each: FrequentCombination, events: float, outliers: float) -> UnusualCombination:
    ratio, error = _ratio(each.outliers, each.events, events, outliers)
    return UnusualCombination(
        values=each.values,
        events=each.events,
        outliers=each.outliers,
        support=each.outliers / outliers,
        share=each.events / events,
        ratio=ratio,
        low=ratio * math.exp(-_DEVIATIONS * error),
        high=ratio * math.exp(_DEVIATIONS * error),
    )


def _ratio(mine: float, of: float, events: float, outliers: float) -> tuple[float, float]:
    """The risk ratio, half an event added to each count (none may be 0), and the standard error of its logarithm."""
    others, rest = outliers - mine + 0.5, max(events - of, outliers - mine) + 0.5
    mine, of = mine + 0.5, max(of, mine) + 0.5
    error = math.sqrt(max(1 / mine - 1 / of + 1 / others - 1 / rest, 0.0))
    return (mine / of) / (others / rest), error


def _includes(part: UnusualCombination, whole: UnusualCombination) -> bool:
    return part.values.items() < whole.values.items()


def _is_due_to_part(
    each: UnusualCombination, found: Sequence[UnusualCombination], events: float, outliers: float, least_ratio: float
) -> bool:
    """Whether, without the events of a narrower combination, it is no longer as unusual as asked for."""
    for narrow in found:
        if _includes(each, narrow):
            left = (each.outliers - narrow.outliers, each.events - narrow.events)
            ratio, _ = _ratio(*left, events - narrow.events, outliers - narrow.outliers)
            if ratio < least_ratio:
                return True
    return False
