"""The short list: of many combinations that overlap, the few that explain each outlier once.

The one that makes the outcome likeliest comes first; its rows are taken away, and of the others counts only what they
still explain. So a part of a cause, a whole that holds it, and a copy of it fall away.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dovetail.watch.ratios import gain_of
from dovetail.watch.significance import fisher_tail

if TYPE_CHECKING:
    import numpy as np

Passes = Callable[["np.ndarray", "np.ndarray", int, int], "np.ndarray"]
"""Which sets of so many outliers and rows each pass, of so many outliers among so many rows."""


def choose_short_list(
    marks: Sequence[int], *, outliers: int, rows: int, passes: Passes, cutoff: float
) -> list[tuple[int, int]]:
    """Which sets to show, the first first, and how many outliers each adds. `marks` have a bit for each row of a set,
    `outliers` one for each outlier; `cutoff` is up to which p-value a set may still be shown.

    >>> cause, part, other = 0b1111, 0b0011, 0b110000
    >>> whole = {"outliers": 0b111111, "rows": 64, "cutoff": 0.05}
    >>> choose_short_list([part, cause, other], passes=lambda eo, et, *of: eo > 0, **whole)
    [(1, 4), (2, 2)]
    """
    import numpy as np

    left = (1 << rows) - 1
    open_sets = list(range(len(marks)))
    chosen: list[tuple[int, int]] = []
    while open_sets:
        hits, total = (outliers & left).bit_count(), left.bit_count()
        counts = {
            each: ((marks[each] & outliers & left).bit_count(), (marks[each] & left).bit_count()) for each in open_sets
        }
        inside, within = np.array(list(counts.values())).T
        passing = (inside > 0) & passes(inside, within, hits, total)
        open_sets = [each for each, is_one in zip(open_sets, passing.tolist(), strict=True) if is_one]
        gained = gain_of(inside[passing], within[passing], outliers=hits, of=total)
        gains = dict(zip(open_sets, gained.tolist(), strict=True))
        # Likeliest first, so that chance is asked of the first ones only, mostly of one.
        ranked = sorted(open_sets, key=lambda each: (-gains[each], each))
        best = next((each for each in ranked if _tail(*counts[each], hits, total) <= cutoff), None)
        if best is None:
            break
        chosen.append((best, counts[best][0]))
        open_sets.remove(best)
        left &= ~marks[best]
    return chosen


def _tail(eo: int, et: int, hits: int, total: int) -> float:
    return float(fisher_tail(eo, et, outliers=hits, of=total))
