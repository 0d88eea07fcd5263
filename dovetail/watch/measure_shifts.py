"""Who contributes to a change of a measure between two windows of rows: DIFF's mean shift ratio, and that of sums.

A combination's mean is compared as in `drift/shift_tests`: which rows are of the current window is, without a change, a
draw from both. Sums also change with the number of rows: where nothing changed and the windows are as long as each
other, a row is as likely of the one as of the other, so that the difference of the sums has mean 0 and the variance of
the sum of squares. The combination that makes the change likeliest comes first; its rows are taken away, and the others
are looked at again.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from dovetail.vocabulary import DovetailError
from dovetail.watch.codes import Attribute, value_text
from dovetail.watch.criteria import Criteria
from dovetail.watch.drift.combination_index import CombinationIndex, tally
from dovetail.watch.drift.findings import MOST_FINDINGS, mean_gain
from dovetail.watch.drift.shift_tests import LEAST_ROWS, p_values, shifts
from dovetail.watch.significance import discovery_cutoff

# Where nobody says up to which order to look: each row has a number of four bytes for each set of attributes, which
# must fit into memory. Of more than a few attributes together soon no rows are enough to tell anything of; they are
# looked at as far as a few seconds go.
_FEW, _MOST_CELLS, _MOST_CELLS_OF_MANY = 3, 100_000_000, 10_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShiftExplanation:
    """A combination (all rows, where `values` are none) whose measure changed: its mean or sum `before` and `after`,
    their ratio and between what it lies, and by how much the mean or sum of all rows changed through it."""

    values: tuple[tuple[str, str], ...]
    before: float
    after: float
    change: float
    ratio: float
    low: float
    high: float
    p_value: float
    reference_rows: int
    current_rows: int

    @property
    def combination(self) -> str:
        """In words: `region = eu and version = 3`."""
        return " and ".join(f"{name} {text}" for name, text in self.values) or "all rows"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShiftExplanations:
    """What was found of a change of all rows from `before` to `after`, judged beside `tests` others."""

    found: tuple[ShiftExplanation, ...]
    measure: str
    statistic: str
    before: float
    after: float
    outliers: int
    rows: int
    tests: int
    notes: tuple[str, ...] = ()

    def lines(self, **_: str) -> list[str]:
        """A line for each, in words."""
        whole = f"the {self.statistic} of {self.measure}"
        return [
            f"{each.combination}: {whole} {value_text(each.before)} before, {value_text(each.after)} now, "
            f"{_times(each)}, {_signed(each.change)} of {_signed(self.after - self.before)} in all"
            for each in self.found
        ]


def _signed(change: float) -> str:
    return f"{'+' if change > 0 else ''}{value_text(change)}"


def _times(one: ShiftExplanation) -> str:
    if math.isinf(one.high):
        return "a ratio without bounds"
    return f"{one.ratio:.3g} × ({one.low:.3g} to {one.high:.3g})"


def search_shifts(
    attributes: Sequence[Attribute],
    values: np.ndarray,
    current: np.ndarray,
    criteria: Criteria,
    *,
    measure: str,
    notes: Sequence[str] = (),
) -> ShiftExplanations:
    """Which combinations are behind a change of a measure's mean or sum between the other rows and the `current`
    ones."""
    statistic = criteria.ratio.removesuffix("_shift")
    notes = list(notes)
    finite = np.isfinite(values)
    if not finite.all():
        notes.append(f"{measure!r} is missing or infinite in {np.sum(~finite):,} rows, which are left out")
    columns = {each.name: each.codes[finite] for each in attributes}
    values, current = values[finite], current[finite]
    _check_windows(current, measure)
    least = max(int(criteria.least_support * len(values)), LEAST_ROWS)
    order = criteria.order or _affordable_order(len(columns), len(values))
    if criteria.order is None and order < len(columns):
        notes.append(
            f"combinations of more than {order} attributes were not looked at: there are too many. Give an order, or "
            f"fewer attributes to see more"
        )
    index = CombinationIndex(columns, order=order, least_rows=least)
    windows = _Windows(index.numbers(columns), values, current, index.count, statistic)
    found = _choose(windows, criteria, tests=index.count)
    before, after = windows.totals(0)
    return ShiftExplanations(
        found=tuple(_explanation(each, index, attributes) for each in found),
        measure=measure,
        statistic=statistic,
        before=before,
        after=after,
        outliers=int(current.sum()),
        rows=len(values),
        tests=index.count,
        notes=tuple(notes),
    )


def _affordable_order(attributes: int, rows: int) -> int:
    """Up to which order memory and work go."""
    sets = itertools.accumulate(math.comb(attributes, order) for order in range(1, attributes + 1))
    most = ((order, _MOST_CELLS if order <= _FEW else _MOST_CELLS_OF_MANY) for order in itertools.count(1))
    return max((order for count, (order, cells) in zip(sets, most, strict=False) if count * rows <= cells), default=1)


def _check_windows(current: np.ndarray, measure: str) -> None:
    for what, rows in (("current window", np.sum(current)), ("reference", np.sum(~current))):
        if rows < LEAST_ROWS:
            raise DovetailError(
                f"the {what} must have at least {LEAST_ROWS} rows with a finite {measure!r} to be compared; it has "
                f"{rows}."
            )


class _Windows:
    """Rows by the numbers of their combinations, in two windows, and what is left of them."""

    def __init__(
        self, numbers: np.ndarray, values: np.ndarray, current: np.ndarray, count: int, statistic: str
    ) -> None:
        self._numbers, self._current, self._count = numbers, current, count
        self.statistic = statistic
        self.rows = (int(np.sum(~current)), int(np.sum(current)))
        # A mean far from 0 would leave nothing of a small variance; sums are compared as they are.
        self._center = float(values.mean()) if statistic == "mean" else 0.0
        self._scale = float(np.std(values)) or 1.0
        self._values = (values - self._center) / self._scale
        self._all = self.moments = self._tally()

    def _tally(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each window how many rows each combination has, and the sums of the measure and of its powers."""
        parts = [
            tally(np.asfortranarray(self._numbers[rows]), self._values[rows, None], self._count)
            for rows in (~self._current, self._current)
        ]
        return parts[0], parts[1]

    def take_away(self, combination: int) -> None:
        """Leave out the rows of a combination."""
        left = ~(self._numbers == combination).any(axis=1)
        self._numbers, self._values, self._current = self._numbers[left], self._values[left], self._current[left]
        self.moments = self._tally()

    def judge(self) -> tuple[np.ndarray, np.ndarray]:
        """How likely each combination's move is by chance, and how much likelier a move makes what is there."""
        before, after = self.moments
        if self.statistic == "mean":
            deviations, skewness = (each[1] for each in shifts(before, after))
            gain = mean_gain(np.abs(deviations), before[0, 1] + after[0, 1])
        else:
            count = before[0, 1] + after[0, 1]
            spread = np.sqrt(before[2, 1] + after[2, 1])
            moved = np.where(count >= LEAST_ROWS, after[1, 1] - before[1, 1], 0.0)
            deviations = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)
            skewness, gain = np.zeros_like(deviations), deviations**2 / 2
        return p_values(deviations, skewness), gain

    def totals(self, combination: int) -> tuple[float, float]:
        """The mean or sum of a combination in both windows, of all of its rows."""
        divide = self.counts(combination) if self.statistic == "mean" else (1, 1)
        before, after = (
            self._sum(each, combination) / max(rows, 1) for each, rows in zip(self._all, divide, strict=True)
        )
        return before, after

    def _sum(self, moments: np.ndarray, combination: int) -> float:
        return float(self._center * moments[0, 1, combination] + self._scale * moments[1, 1, combination])

    def variances(self, combination: int) -> tuple[float, float]:
        """The variances of these."""
        found = []
        for each in self._all:
            count, total, squares = (float(each[power, 1, combination]) for power in (0, 1, 2))
            if self.statistic == "mean":
                squares = max(squares - total**2 / max(count, 1), 0.0) / max(count - 1, 1) / max(count, 1)
            found.append(squares * self._scale**2)
        return found[0], found[1]

    def change(self, combination: int) -> float:
        """By how much the mean or sum of all rows changed through a combination."""
        of = self.rows if self.statistic == "mean" else (1, 1)
        before, after = (self._sum(each, combination) / rows for each, rows in zip(self._all, of, strict=True))
        return after - before

    def counts(self, combination: int) -> tuple[int, int]:
        """How many rows it has in both windows."""
        return int(self._all[0][0, 1, combination]), int(self._all[1][0, 1, combination])


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    number: int
    p_value: float
    windows: _Windows
    confidence: float


def _choose(windows: _Windows, criteria: Criteria, *, tests: int) -> list[_Chosen]:
    """The likeliest first. What is left without its rows is judged anew: all that overlaps the first is beyond chance
    with it, and a cutoff that counts these as discoveries would let chance pass after them."""
    found: list[_Chosen] = []
    least = math.log(criteria.least_ratio)
    while len(found) < MOST_FINDINGS:
        likely, gain = windows.judge()
        cutoff = discovery_cutoff(likely, tests=tests, rate=criteria.false_discoveries)
        able = [
            int(at) for at in np.argsort(-gain, kind="stable") if likely[at] <= cutoff and _is_far(windows, at, least)
        ]
        if not able:
            break
        found.append(_Chosen(able[0], float(likely[able[0]]), windows, criteria.confidence))
        if able[0] == 0:  # all rows: nothing is left to look at
            break
        windows.take_away(able[0])
        if min(each[0, 1, 0] for each in windows.moments) < LEAST_ROWS:
            break
    return found


def _is_far(windows: _Windows, combination: int, least: float) -> bool:
    before, after = windows.totals(combination)
    return least <= 0 or before * after <= 0 or abs(math.log(after / before)) >= least


def _explanation(one: _Chosen, index: CombinationIndex, attributes: Sequence[Attribute]) -> ShiftExplanation:
    before, after = one.windows.totals(one.number)
    low, high = ratio_interval(after, before, *one.windows.variances(one.number)[::-1], confidence=one.confidence)
    by_name = {each.name: each for each in attributes}
    counts = one.windows.counts(one.number)
    return ShiftExplanation(
        values=tuple((name, by_name[name].text(code, code)) for name, code in index.values(one.number).items()),
        before=before,
        after=after,
        change=one.windows.change(one.number),
        ratio=after / before if before else math.inf,
        low=low,
        high=high,
        p_value=one.p_value,
        reference_rows=counts[0],
        current_rows=counts[1],
    )


def ratio_interval(
    top: float, bottom: float, top_variance: float, bottom_variance: float, *, confidence: float
) -> tuple[float, float]:
    """Between what the ratio of two means, near normal and independent, lies (Fieller): where the one below may be 0,
    there are no bounds.

    >>> [round(end, 2) for end in ratio_interval(20.0, 10.0, 1.0, 0.25, confidence=0.95)]
    [1.74, 2.3]
    """
    from scipy.special import ndtri  # type: ignore[import-untyped]

    reach = float(ndtri(0.5 + confidence / 2)) ** 2
    a, b, c = bottom**2 - reach * bottom_variance, top * bottom, top**2 - reach * top_variance
    if a <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(b * b - a * c, 0.0))
    return (b - root) / a, (b + root) / a
