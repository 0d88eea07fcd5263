"""The search: combinations of one attribute, of two, and so on, that enough outliers have.

Outliers first: a combination can only pass if enough outliers have it, and so must every part of it. Outliers are few,
so that candidates are counted among them, and only what is left among all rows.
"""

import dataclasses
from typing import TYPE_CHECKING

from dovetail.watch.bitmaps import SetCounter
from dovetail.watch.items import Items

if TYPE_CHECKING:
    import numpy as np

# Where nobody says up to which order to search: so many rows times combinations, a few seconds of one core.
_WORK = 3e11
# What fits into memory in any case.
_MOST_SETS = 4_000_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Candidates:
    """Sets of items, sorted and padded with -1, and how many outliers each has; `order` is up to which size all are
    there, and `complete` whether there are none beyond it."""

    sets: "np.ndarray"
    outliers: "np.ndarray"
    order: int
    complete: bool


def find_candidates(items: Items, counter: SetCounter, *, least: int, order: int | None, rows: int) -> Candidates:
    """All sets of up to `order` items (any number, as far as the work allows, with None) with enough outliers."""
    import numpy as np

    singles = np.flatnonzero(items.outliers >= least).astype(np.int32)
    level, counts = singles[:, None], items.outliers[singles]
    levels = [(level, counts)]
    most = order if order is not None else len(items.attributes)
    room = _MOST_SETS if order is not None else int(min(_MOST_SETS, max(_WORK / max(rows, 1), 10_000)))
    is_cut = False
    while len(level) > 1 and level.shape[1] < most:
        room -= len(level)
        found = counter.extend(level, least=least, room=max(room, 0))
        if found is None:
            is_cut = True
            break
        level, counts = found
        if len(level):
            levels.append(found)
    reached = most if not is_cut else levels[-1][0].shape[1]
    return Candidates(
        sets=_padded([each for each, _ in levels]),
        outliers=np.concatenate([each for _, each in levels]),
        order=reached,
        complete=not is_cut,
    )


def sort_sets(sets: "np.ndarray") -> "np.ndarray":
    """The order in which sets that begin alike are neighbours, as counting wants them."""
    import numpy as np

    return np.lexsort(sets.T[::-1])


def _padded(levels: "list[np.ndarray]") -> "np.ndarray":
    import numpy as np

    width = levels[-1].shape[1]
    found = np.full((sum(len(each) for each in levels), width), -1, dtype=np.int32)
    start = 0
    for each in levels:
        found[start : start + len(each), : each.shape[1]] = each
        start += len(each)
    return found
