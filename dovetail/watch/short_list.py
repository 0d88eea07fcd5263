"""The short list: of many combinations that overlap, the few that explain each outlier once.

The one that makes the outcome likeliest comes first; its rows are taken away, and of the others counts only what they
still explain. So a part of a cause, a whole that holds it, and a copy of it fall away.
"""

from collections.abc import Callable, Sequence

from dovetail.watch.ratios import gain_of
from dovetail.watch.significance import fisher_tail

Passes = Callable[[int, int, int, int], bool]
"""Whether so many outliers among so many rows pass, of so many outliers among so many rows."""


def choose_short_list(
    marks: Sequence[int], *, outliers: int, rows: int, passes: Passes, cutoff: float
) -> list[tuple[int, int]]:
    """Which sets to show, the first first, and how many outliers each adds. `marks` have a bit for each row of a set,
    `outliers` one for each outlier; `cutoff` is up to which p-value a set may still be shown.

    >>> cause, part, other = 0b1111, 0b0011, 0b110000
    >>> choose_short_list([part, cause, other], outliers=0b111111, rows=64, passes=lambda *counts: True, cutoff=0.05)
    [(1, 4), (2, 2)]
    """
    left = (1 << rows) - 1
    open_sets = list(range(len(marks)))
    chosen: list[tuple[int, int]] = []
    while open_sets:
        hits, total = (outliers & left).bit_count(), left.bit_count()
        counts = {
            each: ((marks[each] & outliers & left).bit_count(), (marks[each] & left).bit_count()) for each in open_sets
        }
        open_sets = [
            each
            for each, (eo, et) in counts.items()
            if eo and passes(eo, et, hits, total) and float(fisher_tail(eo, et, outliers=hits, of=total)) <= cutoff
        ]
        if not open_sets:
            break
        best = max(open_sets, key=lambda each: (float(gain_of(*counts[each], outliers=hits, of=total)), -each))
        chosen.append((best, counts[best][0]))
        open_sets.remove(best)
        left &= ~marks[best]
    return chosen
