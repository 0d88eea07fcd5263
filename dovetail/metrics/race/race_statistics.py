"""Figures over several runs: the olympic mean, intervals by bootstrap, and MLPerf's test of reference convergence.

A run that never arrives has an infinite time. Knows numbers only.
"""

import dataclasses
import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# An interval's ends move by less than a tenth of its length with another seed; 10 runs take 20 ms.
RESAMPLES = 2000
CONFIDENCE = 0.95
# Dropping both ends leaves something to average.
LEAST_OLYMPIC = 3
ALPHA = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, and the ends of its 95% interval; None for both where fewer than three runs tell nothing of that.

    >>> print(Estimate(value=1.25, low=1.19, high=1.32))
    1.25 [1.19, 1.32]
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return _show(self.value)
        return f"{_show(self.value)} [{_show(self.low, digits=3)}, {_show(self.high, digits=3)}]"


def keep_olympic(values: Sequence[float]) -> list[float]:
    """The values, sorted, without the least and the greatest; all of them where there are fewer than three.

    >>> keep_olympic([16, 14, 17, 15])
    [15, 16]
    """
    ordered = sorted(values)
    return ordered[1:-1] if len(ordered) >= LEAST_OLYMPIC else ordered


def olympic_mean(values: Sequence[float]) -> float:
    """The mean without the least and the greatest value. One run that never arrives is the slowest and dropped; with
    two the mean is infinite.

    >>> olympic_mean([10.0, 11.0, 12.0, math.inf]), olympic_mean([10.0, 12.0, math.inf, math.inf])
    (11.5, inf)
    """
    return sum(kept) / len(kept) if (kept := keep_olympic(values)) else math.nan


def estimate(values: Sequence[float]) -> Estimate:
    """The olympic mean of these values with its interval.

    >>> estimate([10.0, 10.0, 10.0])
    Estimate(value=10.0, low=10.0, high=10.0)
    """
    return _estimate(tuple(values))


@functools.lru_cache(maxsize=1024)  # tables, pages and exports ask for the same figures
def _estimate(values: tuple[float, ...]) -> Estimate:
    return bootstrap([values], lambda samples: olympic_mean(samples[0]))


def bootstrap(groups: Sequence[Sequence[T]], figure: Callable[[Sequence[Sequence[T]]], float]) -> Estimate:
    """A figure of several groups of runs, with the interval in which it lies for 95% of the groups that are drawn from
    these with replacement (percentile bootstrap).

    Its ends are figures of such draws and not interpolated, so that infinite ones may be among them. Draws whose figure
    is not a number (both sides infinite) are left out.

    >>> bootstrap([[1.0, 2.0, 3.0, 4.0]], lambda groups: max(groups[0])).high
    4.0
    """
    value = figure(groups)
    if min(map(len, groups), default=0) < LEAST_OLYMPIC:
        return Estimate(value=value)
    dice = random.Random(0)  # the same runs give the same interval
    drawn = (figure([dice.choices(group, k=len(group)) for group in groups]) for _ in range(RESAMPLES))
    found = sorted(each for each in drawn if not math.isnan(each))
    if not found:
        return Estimate(value=value)
    outside = (1 - CONFIDENCE) / 2
    low, high = (found[min(int(share * len(found)), len(found) - 1)] for share in (outside, 1 - outside))
    return Estimate(value=value, low=low, high=high)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceConvergence:
    """How few steps (or epochs) the runs of a contestant may take on average before it is said to converge faster than
    the reference: `least` and `most_speedup`, at a significance of 0.05; `mean` and `deviation` are the reference's."""

    mean: float
    deviation: float
    least: float
    most_speedup: float

    def judge(self, mean: float) -> str:
        """What is to be said of a contestant with this olympic mean: `slower`, or as fast, than the reference; `within`
        what chance allows, so that its time is to be multiplied by `factor`; or `too fast`."""
        if mean >= self.mean:
            return "slower"
        return "within" if mean >= self.least else "too fast"

    def factor(self, mean: float) -> float:
        """By how much a time is multiplied for having converged faster than the reference."""
        return max(1.0, self.mean / mean)


def reference_convergence(reference: Sequence[float], *, runs: int) -> ReferenceConvergence | None:
    """MLPerf's test for contestants of so many `runs`: the mean at which a one-sided t-test of two samples, of as many
    values as olympic means keep and of the reference's deviation, just says 0.05.

        least = mean − t(0.95, n + m − 2) · deviation · √(1/n + 1/m)

    None where olympic means keep fewer than two values of the reference, which tell no deviation, or none of the
    contestant, or where a reference run that is kept never arrived. The example of the rules:

    >>> found = reference_convergence([16, 14, 16, 17, 16, 16, 15, 16, 15, 16], runs=5)
    >>> found.mean, round(found.deviation, 2), round(found.least, 2), f"{found.most_speedup - 1:.2%}"
    (15.75, 0.43, 15.21, '3.53%')
    """
    kept = keep_olympic(reference)
    if len(reference) <= LEAST_OLYMPIC or runs < LEAST_OLYMPIC or not all(map(math.isfinite, kept)):
        return None
    mean, deviation, others = statistics.fmean(kept), statistics.pstdev(kept), runs - 2
    away = student_quantile(1 - ALPHA, len(kept) + others - 2) * deviation * math.sqrt(1 / len(kept) + 1 / others)
    least = max(mean - away, 0.0)
    return ReferenceConvergence(
        mean=mean, deviation=deviation, least=least, most_speedup=mean / least if least else math.inf
    )


def student_quantile(share: float, degrees: int) -> float:
    """The value below which this share (above a half) of Student's t distribution lies; by bisection of its integral,
    since scipy is a large thing to ask for one number.

    >>> round(student_quantile(0.95, 9), 4)
    1.8331
    """
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def below(value: float) -> float:
        # Simpson's rule from the middle on, over the angle whose tangent is t/√degrees: there even one degree of
        # freedom has no tail, and the density is a power of the cosine.
        end, parts = math.atan(value / math.sqrt(degrees)), 200
        heights = [math.cos(end * part / parts) ** (degrees - 1) for part in range(parts + 1)]
        area = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
        return 0.5 + scale * math.sqrt(degrees) * area * end / parts / 3

    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return low


def _show(value: float, *, digits: int = 4) -> str:
    return "never" if math.isinf(value) else "unknown" if math.isnan(value) else f"{value:.{digits}g}"
