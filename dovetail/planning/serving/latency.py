"""How long a call takes by its rows, as measured."""

import bisect
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from dovetail.vocabulary import DovetailError

# The quantile of a normal distribution that 99 of 100 are below.
_P99 = 2.326


@dataclasses.dataclass(frozen=True)
class LatencyCurve:
    """Seconds of a call at some numbers of rows, straight between them and beyond the last. `spread` is how many times
    the median the slowest of a hundred calls takes.

    >>> curve = LatencyCurve(((1, 0.010), (9, 0.018)))
    >>> round(curve.seconds(5), 4), round(curve.seconds(17), 4)
    (0.014, 0.026)
    """

    points: tuple[tuple[int, float], ...]
    spread: float = 1.0

    def __post_init__(self) -> None:
        rows = [each for each, _ in self.points]
        is_sound = rows and rows == sorted(set(rows)) and rows[0] >= 1 and self.spread >= 1
        if not is_sound or any(not 0 < seconds < math.inf for _, seconds in self.points):
            raise DovetailError(
                f"latencies must be above 0 at rows in order, with a spread of 1 or more; got {self.points} and "
                f"{self.spread:g}."
            )

    @classmethod
    def measured(cls, samples: Mapping[int, Sequence[float]]) -> "LatencyCurve":
        """That of the seconds which calls of so many rows took."""
        medians = {rows: statistics.median(seconds) for rows, seconds in samples.items()}
        ratios = sorted(each / medians[rows] for rows, seconds in samples.items() for each in seconds)
        spread = max(1.0, ratios[min(len(ratios) - 1, math.ceil(0.99 * len(ratios)) - 1)])
        slowest, points = 0.0, []
        for rows in sorted(medians):  # more rows never take less; where they seem to, that is noise
            slowest = max(slowest, medians[rows])
            points.append((rows, slowest))
        return cls(tuple(points), spread)

    def seconds(self, rows: int) -> float:
        """The median of a call of so many rows."""
        counts = [each for each, _ in self.points]
        at = bisect.bisect_left(counts, rows)
        if at < len(counts) and counts[at] == rows:
            return self.points[at][1]
        if at == 0 or len(counts) == 1:
            return self.points[0][1] if at == 0 else self.points[0][1] * rows / counts[0]
        (low, less), (high, more) = self.points[at - 1 : at + 1] if at < len(counts) else self.points[-2:]
        return less + (more - less) * (rows - low) / (high - low)

    @property
    def sigma(self) -> float:
        """Of the logarithm of what a call takes."""
        return math.log(self.spread) / _P99
