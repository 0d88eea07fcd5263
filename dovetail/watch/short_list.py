"""The short list: of many combinations that overlap, the few that explain each outlier once.

The one that makes the outcome likeliest comes first; its rows are taken away, and of the others counts only what they
still explain. So a part of a cause, a whole that holds it, and a copy of it fall away.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.watch.bitmaps import MarkCounter
from dovetail.watch.ratios import gain_of
from dovetail.watch.significance import fisher_tail

if TYPE_CHECKING:
    import numpy as np

Passes = Callable[["np.ndarray", "np.ndarray", int, int], "np.ndarray"]
"""Which sets of so many outliers and rows each pass, of so many outliers among so many rows."""


def choose_short_list(
    marks: "np.ndarray",
    inside: "np.ndarray",
    within: "np.ndarray",
    *,
    outliers: "np.ndarray",
    hits: int,
    rows: int,
    passes: Passes,
    cutoff: float,
) -> list[tuple[int, int]]:
    """Which sets to show, the first first, and how many outliers each adds. `marks` have a bit for each row of a set,
    of which `inside` are outliers, of `within` rows; `outliers` have one for each of all `hits` outliers of all `rows`.
    `cutoff` is up to which p-value a set may still be shown.

    >>> import numpy as np
    >>> marks = np.array([[0b0011], [0b1111], [0b110000]], np.uint64)  # a part of a cause, the cause, another
    >>> whole = {"outliers": np.array([0b111111], np.uint64), "hits": 6, "rows": 64, "cutoff": 0.05}
    >>> counts = np.array([2, 4, 2])
    >>> choose_short_list(marks, counts, counts, passes=lambda eo, et, *of: eo > 0, **whole)
    [(1, 4), (2, 2)]
    """
    import numpy as np

    open_sets, left, total = np.arange(len(marks)), ~np.zeros_like(outliers), rows
    counter = MarkCounter(marks, outliers=outliers)
    chosen: list[tuple[int, int]] = []
    while len(open_sets):
        passing = (inside > 0) & passes(inside, within, hits, total)
        open_sets, inside, within = open_sets[passing], inside[passing], within[passing]
        # Likeliest first, so that chance is asked of the first ones only, mostly of one.
        ranked = np.argsort(-gain_of(inside, within, outliers=hits, of=total), kind="stable").tolist()
        best = next((at for at in ranked if _is_beyond(int(inside[at]), int(within[at]), hits, total, cutoff)), None)
        if best is None:
            break
        chosen.append((int(open_sets[best]), int(inside[best])))
        hits, total = hits - int(inside[best]), total - int(within[best])
        gone = marks[open_sets[best]] & left
        left ^= gone
        others = np.arange(len(open_sets)) != best
        open_sets = open_sets[others]
        fewer, fewer_outliers = counter.count(open_sets, gone)
        inside, within = inside[others] - fewer_outliers, within[others] - fewer
    return chosen


def _is_beyond(eo: int, et: int, hits: int, total: int, cutoff: float) -> bool:
    """Whether chance does as much with at most `cutoff`: by Hoeffding's bound on draws without replacement where that
    is enough, as it mostly is, else by Fisher's test."""
    rate, share = eo / et, hits / total
    if rate > share:
        distance = rate * math.log(rate / share) + (math.log((1 - rate) / (1 - share)) * (1 - rate) if rate < 1 else 0)
        if cutoff > 0 and -et * distance <= math.log(cutoff):
            return True
    return float(fisher_tail(eo, et, outliers=hits, of=total)) <= cutoff
