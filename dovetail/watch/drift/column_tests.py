"""How far a column moved as a whole: the population stability index, and Kolmogorov and Smirnov's test for numbers,
Pearson's for categories."""

import dataclasses
from typing import Any

import numpy as np

from dovetail.watch.columns import factorize

BINS = 10
# Pearson's test takes cells to be near normal: those with fewer rows than this expected count as one.
LEAST_EXPECTED = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """How far a column moved: `psi` below 0.1 is little, above 0.25 much. `test` is ks or chi-squared."""

    name: str
    test: str
    statistic: float
    p_value: float
    psi: float
    drifted: bool


def compare_numbers(reference: np.ndarray, current: np.ndarray) -> tuple[float, float, float]:
    """The greatest distance of the two distributions, how likely it is by chance, and their stability index."""
    from scipy import stats  # type: ignore[import-untyped]

    there = [each[~np.isnan(each)] for each in (reference, current)]
    if not all(map(len, there)):
        return _compare_counts(*(np.bincount(np.isnan(each).astype(int), minlength=2) for each in (reference, current)))
    with np.errstate(invalid="ignore"):
        found = stats.ks_2samp(*there, method="asymp")
    cuts = np.unique(np.quantile(there[0], np.arange(1, BINS) / BINS, method="nearest"))
    # What is missing is one more bin.
    counts = [
        np.append(
            np.bincount(np.searchsorted(cuts, mine, side="left"), minlength=len(cuts) + 1), len(every) - len(mine)
        )
        for mine, every in zip(there, (reference, current), strict=True)
    ]
    return float(found.statistic), float(found.pvalue), stability_index(*counts)


def compare_categories(reference: Any, current: Any, name: str) -> tuple[float, float, float]:
    """Pearson's statistic, how likely it is by chance, and the stability index."""
    first = factorize(reference, name)
    second = factorize(current, name, kind=first.kind)
    place_of = {value: place for place, value in enumerate(dict.fromkeys([*first.distinct, *second.distinct, None]))}
    counts = []
    for each in (first, second):
        mine = np.bincount(each.places % (len(each.distinct) + 1), minlength=len(each.distinct) + 1)
        every = np.zeros(len(place_of), dtype=np.int64)
        every[[place_of[value] for value in [*each.distinct, None]]] = mine
        counts.append(every)
    return _compare_counts(*counts)


def _compare_counts(reference: np.ndarray, current: np.ndarray) -> tuple[float, float, float]:
    from scipy import stats

    table = np.stack([reference, current]).astype(float)
    table = table[:, table.sum(axis=0) > 0]
    expected = table.sum(axis=0) * min(table.sum(axis=1)) / table.sum()
    rare = expected < LEAST_EXPECTED
    psi = stability_index(reference, current)
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)]) if rare.any() else table
    if table.shape[1] < 2 or not table.sum(axis=0).all():
        return 0.0, 1.0, psi
    found = stats.chi2_contingency(table, correction=False)
    return float(found.statistic), float(found.pvalue), psi


def stability_index(reference: np.ndarray, current: np.ndarray) -> float:
    """The population stability index of two rows of counts, half a row added to each cell: none may be 0.

    >>> round(stability_index(np.array([50, 50]), np.array([80, 20])), 2)
    0.41
    """
    used = (reference + current) > 0
    before, after = (each[used] + 0.5 for each in (reference, current))
    before, after = before / before.sum(), after / after.sum()
    return float(np.sum((after - before) * np.log(after / before)))
