"""Whether an approximation costs a metric more than a tolerance, from pairs of trainings of one seed each.

The differences of pairs, exact less approximate, each so that more is worse, are taken to be normal with unknown mean m
and deviation. For a supposed mean, M_n is the ratio of two likelihoods of what was seen: that with standardised effects
spread as N(0, 1/g), over that with none, the deviation integrated out of both by its right Haar prior:

    M_n(m) = sqrt(g / (n + g)) · (1 − n² (d̄ − m)² / ((n + g) Σ(dᵢ − m)²))^(−n/2)

It is a martingale with mean 1 if m is the true mean (Wang and Ramdas 2023, after Lai 1976), so that it ever exceeds
1/(1 − confidence) with a chance of at most 1 − confidence. The means at which it has not are an interval that holds the
true one at all n at once: whoever looks after every pair, and stops when it is decided, is not misled by that.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95
# How effects are spread in the alternative; it must be fixed beforehand. A small one is wide, which is narrowest for
# the few pairs that are affordable: at 4 pairs the interval is ± 3.3 deviations, at 20 ± 0.85.
SPREAD = 0.1
# Metrics are counted in steps, so that a few differences may all be zero, which says little of how others will vary:
# they are never taken to vary by less than this part of the tolerance.
LEAST_DEVIATION = 0.25
MOST_PAIRS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceBounds:
    """The mean difference of the pairs so far, and the interval that holds the true one."""

    pairs: int
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4g} [{self.low:+.4g}, {self.high:+.4g}] in {self.pairs} pairs"


def bound_difference(
    differences: Sequence[float], *, tolerance: float, confidence: float = CONFIDENCE
) -> DifferenceBounds:
    """The interval that holds the mean difference, at all numbers of pairs at once.

    >>> print(bound_difference([0.001, -0.002, 0.0, 0.001, 0.0], tolerance=0.01))
    +0 [-0.00605, +0.00605] in 5 pairs
    >>> bound_difference([0.1], tolerance=0.01).high
    inf
    """
    count, mean = len(differences), statistics.fmean(differences) if differences else 0.0
    if count < 2 or not math.isfinite(mean):
        return DifferenceBounds(pairs=count, mean=mean, low=-math.inf, high=math.inf)
    deviation = max(statistics.stdev(differences), LEAST_DEVIATION * tolerance)
    half = half_width(count, confidence=confidence) * deviation
    return DifferenceBounds(pairs=count, mean=mean, low=mean - half, high=mean + half)


def half_width(count: int, *, confidence: float = CONFIDENCE) -> float:
    """Half the interval's length after so many pairs, in standard deviations of their differences.

    >>> [round(half_width(count), 2) for count in (2, 3, 4, 10, 20)]
    [inf, 7.63, 3.27, 1.32, 0.85]
    """
    # M_n(m) < 1 / (1 - confidence), solved for n (mean - m)² / Σ(d - m)², the part of the squares that the mean has.
    most = math.sqrt((count + SPREAD) / SPREAD) / (1 - confidence)
    part = (1 - most ** (-2 / count)) * (count + SPREAD) / count
    return math.sqrt(part / (1 - part) * (count - 1) / count) if part < 1 else math.inf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the pairs so far say: `keeps` is True where the metric loses no more than the tolerance, False where that
    will not be shown, None where more pairs may tell; `why` says it in words."""

    keeps: bool | None
    bounds: DifferenceBounds
    why: str


def judge(
    differences: Sequence[float], *, tolerance: float, confidence: float = CONFIDENCE, most_pairs: int = MOST_PAIRS
) -> Verdict:
    """Whether the mean difference is at most the tolerance. A difference that is no number, because a training went
    astray, is as bad as can be; giving up early on what cannot be shown in `most_pairs` misleads nobody, since then
    training stays exact.

    >>> judge([0.0, 0.0], tolerance=0.002).keeps, judge([0.0] * 4, tolerance=0.002).keeps
    (None, True)
    >>> judge([0.05, 0.07, 0.06, 0.05], tolerance=0.002).why
    'it loses +0.0575 [+0.0262, +0.0888] in 4 pairs, more than 0.002'
    """
    bounds = bound_difference(differences, tolerance=tolerance, confidence=confidence)
    if any(not math.isfinite(each) for each in differences):
        return Verdict(keeps=False, bounds=bounds, why="a training with it came to no number")
    if bounds.high <= tolerance:
        return Verdict(keeps=True, bounds=bounds, why=f"it loses {bounds}, at most {tolerance:g}")
    if bounds.low > tolerance:
        return Verdict(keeps=False, bounds=bounds, why=f"it loses {bounds}, more than {tolerance:g}")
    if _is_hopeless(bounds, differences, tolerance, confidence, most_pairs):
        why = f"it loses {bounds}, and {most_pairs} pairs would not show that this is at most {tolerance:g}"
        return Verdict(keeps=False, bounds=bounds, why=why)
    return Verdict(keeps=None, bounds=bounds, why=f"it loses {bounds}: more pairs are to tell")


def _is_hopeless(
    bounds: DifferenceBounds, differences: Sequence[float], tolerance: float, confidence: float, most_pairs: int
) -> bool:
    """Whether even the most pairs, varying as those so far, would leave an interval that ends above the tolerance."""
    if math.isinf(bounds.high):
        return bounds.pairs >= most_pairs
    deviation = max(statistics.stdev(differences), LEAST_DEVIATION * tolerance)
    # The mean itself may still move by as much as so few pairs leave open.
    likely = bounds.mean - deviation / math.sqrt(bounds.pairs)
    return bounds.pairs >= most_pairs or likely + half_width(most_pairs, confidence=confidence) * deviation > tolerance
