"""What counts as an explanation, and how one is put in words."""

import dataclasses
import math

from dovetail.vocabulary import DovetailError
from dovetail.watch.ratios import RATIOS, SHIFTS

LISTS = {
    "short": "each outlier explained once, the strongest first",
    "growing": "every combination that is beyond chance and more than each of its parts",
    "minimal": "MacroBase's rule: whatever passes and has no part that passes, chance or not",
}


class NoUsableAttribute(DovetailError):
    """Nothing is left to explain by: what there was is the same in all rows, or another in each."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """A combination must have at least `least_support` of the outliers and a ratio of at least `least_ratio`, and be of
    at most `order` attributes; `show` is which of those that do are given. Of all that are given on average at most
    `false_discoveries` are chance.

    >>> Criteria(order=0)
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: order must be a whole number of at least 1, or None for any, got 0.
    """

    ratio: str = "risk"
    least_support: float = 0.05
    least_ratio: float = 1.5
    order: int | None = None
    show: str = "short"
    false_discoveries: float = 0.05
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, value, known in (("ratio", self.ratio, RATIOS + SHIFTS), ("show", self.show, tuple(LISTS))):
            if value not in known:
                raise DovetailError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
        for name in ("least_support", "false_discoveries", "confidence"):
            if not 0 < getattr(self, name) <= 1:
                raise DovetailError(f"{name} must be above 0 and at most 1, got {getattr(self, name)!r}.")
        if not self.least_ratio > 0 or not math.isfinite(self.least_ratio):
            raise DovetailError(f"least_ratio must be a number above 0, got {self.least_ratio!r}.")
        if self.order is not None and (self.order < 1 or self.order != int(self.order)):
            raise DovetailError(f"order must be a whole number of at least 1, or None for any, got {self.order!r}.")


def usual_least_ratio(ratio: str) -> float:
    """What is asked of a ratio where nobody says: of a shift, which may be small and matter, only that it is none of
    chance.

    >>> usual_least_ratio("risk"), usual_least_ratio("mean_shift")
    (1.5, 1.0)
    """
    return 1.0 if ratio in SHIFTS else 1.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A combination: what it is, attribute by attribute, in words; its outliers and rows; its ratio and between what
    that lies; how likely chance is to do as much; and how many outliers it explains that none before it does."""

    values: tuple[tuple[str, str], ...]
    outlier_count: int
    total_count: int
    support: float
    ratio: float
    low: float
    high: float
    p_value: float
    explains: int

    @property
    def combination(self) -> str:
        """In words: `learning_rate ≥ 0.03 and norm = none`."""
        return " and ".join(f"{name} {text}" for name, text in self.values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """What was found of `outliers` among `rows`; `order` is up to how many attributes together were looked at, `tests`
    beside how many others each was judged, and `notes` say what was left out and why."""

    found: tuple[Explanation, ...]
    outliers: int
    rows: int
    order: int
    tests: float
    notes: tuple[str, ...] = ()

    def lines(self, *, outliers: str = "outliers", rows: str = "rows") -> list[str]:
        """A line for each, in words, with a name for outliers and rows.

        >>> one = Explanation(values=(("norm", "= none"),), outlier_count=31, total_count=60, support=31 / 37,
        ...     ratio=12.43, low=9.1, high=17.04, p_value=1e-9, explains=31)
        >>> all_found = Explanations(found=(one,), outliers=37, rows=1000, order=3, tests=9.0)
        >>> all_found.lines(outliers="failures", rows="tasks")
        ['norm = none: 31 of 37 failures, 12.4 × as likely (9.1 to 17), 6% of tasks']
        """
        return [
            f"{each.combination}: {each.outlier_count:,} of {self.outliers:,} {outliers}, {_times(each)}, "
            f"{_percent(each.total_count / self.rows)} of {rows}"
            for each in self.found
        ]


def _times(one: Explanation) -> str:
    if math.isinf(one.ratio):
        return f"nowhere else (at least {_figure(one.low)} × as likely)"
    return f"{_figure(one.ratio)} × as likely ({_figure(one.low)} to {_figure(one.high)})"


def _figure(value: float) -> str:
    """Three digits that count.

    >>> _figure(12.43), _figure(17.04), _figure(1234.5), _figure(2.0)
    ('12.4', '17', '1,234', '2')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
