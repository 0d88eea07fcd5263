"""Which combinations of attributes a drift happened to: the one that moved furthest first, then what moved besides.

A drift in one combination moves everything that overlaps it: its parts by less, because others dilute them, and what is
narrower by less, because it has fewer rows. So the one that moved furthest, in standard deviations, is named, its rows
are taken out of both windows, and what is left is looked at again, until nothing moved by more than chance.
"""

import dataclasses
from typing import Any

import numpy as np

from dovetail.watch.drift.combination_index import CombinationIndex, tally
from dovetail.watch.drift.shift_tests import normal_bar, p_values, shifts

SHARE = "share"
# More combinations than a person reads; what is left then is mostly what the first ones did.
MOST_FINDINGS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriftFinding:
    """What moved for which combination of attribute values (none: for all rows): its share of the rows, or the mean of
    a score between 0 and 1, from `before` to `after`; of so many rows in the reference and the current window.
    `deviations` is how far in standard deviations, and `p_value` how likely that is by chance, alone."""

    what: str
    values: dict[str, Any]
    before: float
    after: float
    reference_rows: int
    current_rows: int
    deviations: float
    p_value: float

    def __str__(self) -> str:
        where = " and ".join(f"{name} = {value}" for name, value in self.values.items()) or "all rows"
        if self.what == SHARE:
            return f"{where}: {self.before:.2%} of rows before, {self.after:.2%} now"
        return f"{where}: {_worded(self.what, self.before, self.after)}, {self.current_rows} rows"


def _worded(what: str, before: float, after: float) -> str:
    if what == "error":
        return f"{before:.1%} wrong before, {after:.1%} now"
    if what == "calibration":
        return f"labels above their probability by {2 * before - 1:+.3f} before, {2 * after - 1:+.3f} now"
    if what.startswith("spread of "):
        return f"{what} {'wider' if after > before else 'narrower'} than before"
    return f"{what} at rank {before:.0%} of the reference before, {after:.0%} now"


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows by the numbers of their combinations and by their scores."""

    numbers: np.ndarray
    scores: np.ndarray

    def state(self) -> list[np.ndarray]:
        """What `restored` takes."""
        return [self.numbers, self.scores]

    @classmethod
    def restored(cls, state: list[np.ndarray]) -> "ScoredRows":
        """The rows of a `state`."""
        return cls(np.asfortranarray(state[0]), state[1])

    def without(self, combination: int) -> "ScoredRows":
        """The rows that do not have a combination."""
        left = ~(self.numbers == combination).any(axis=1)
        return ScoredRows(np.asfortranarray(self.numbers[left]), self.scores[left])


def find_drift(
    index: CombinationIndex, names: list[str], reference: ScoredRows, current: ScoredRows, *, level: float
) -> list[DriftFinding]:
    """What moved with a p-value of at most `level`, each combination apart from the ones before it."""
    found: list[DriftFinding] = []
    while len(found) < MOST_FINDINGS and len(reference.numbers) and len(current.numbers):
        before, after = (tally(each.numbers, each.scores, index.count) for each in (reference, current))
        place = furthest(before, after, level=level)
        if place is None:
            break
        found.append(_finding(index, names, before, after, place))
        if place[1] == 0:  # all rows: there is nothing left to look at
            break
        reference, current = reference.without(place[1]), current.without(place[1])
    return found


def furthest(reference: np.ndarray, current: np.ndarray, *, level: float) -> tuple[int, int] | None:
    """The score and combination that moved furthest among those that moved by more than chance."""
    deviations, skewness = shifts(reference, current)
    distance = np.abs(deviations)
    able = np.flatnonzero(distance.ravel() > normal_bar(level))  # a skewed tail is heavier than the normal one
    likely = p_values(deviations.ravel()[able], skewness.ravel()[able]) <= level
    if not likely.any():
        return None
    best = able[likely][np.argmax(_gain(distance, reference, current).ravel()[able[likely]])]
    score, combination = np.unravel_index(best, deviations.shape)
    return int(score), int(combination)


def _gain(distance: np.ndarray, reference: np.ndarray, current: np.ndarray) -> np.ndarray:
    rows = reference[0] + current[0]
    rows[0] = rows[0, 0]
    return mean_gain(distance, rows)


def mean_gain(deviations: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How much likelier so many rows are where their mean moved by so many deviations than where it did not:
    -n/2 log(1 - r²), for normal scores. Where a move is as large as the scores' own spread, plain deviations would
    favour what is wider."""
    rows = np.maximum(rows, 1.0)
    return np.asarray(-rows / 2 * np.log1p(-np.minimum(deviations**2 / rows, 1.0 - 1e-12)))


def _finding(
    index: CombinationIndex, names: list[str], before: np.ndarray, after: np.ndarray, place: tuple[int, int]
) -> DriftFinding:
    deviations, skewness = (each[place] for each in shifts(before, after))
    means = [
        each[0, 0, place[1]] / each[0, 0, 0] if place[0] == 0 else each[(1, *place)] / each[(0, *place)]
        for each in (before, after)
    ]
    return DriftFinding(
        what=[SHARE, *names][place[0]],
        values=index.values(place[1]),
        before=float(means[0]),
        after=float(means[1]),
        reference_rows=int(before[0, 0, place[1]]),
        current_rows=int(after[0, 0, place[1]]),
        deviations=float(deviations),
        p_value=float(p_values(np.array([deviations]), np.array([skewness]))[0]),
    )
