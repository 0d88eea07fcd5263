"""Which combinations are more than their parts: a set is extended only where its rate grows, beyond chance."""

import itertools
from typing import TYPE_CHECKING

from dovetail.watch.bitmaps import SetCounter
from dovetail.watch.items import Items
from dovetail.watch.significance import fisher_tail

if TYPE_CHECKING:
    import numpy as np


def growth_p_values(
    sets: "np.ndarray",
    inside: "np.ndarray",
    rows: "np.ndarray",
    p_values: "np.ndarray",
    *,
    items: Items,
    counter: SetCounter,
    cutoff: float,
) -> "np.ndarray":
    """For each set the greatest of its p-values: that of the set among all rows, which is given, and for each part of
    it that of the set among the part's rows. It is as likely as chance makes the least convincing of these (an
    intersection-union test). Sets that are above `cutoff` already are not looked at further.

    Parts of one item are counted, so that they come first: of a cause of one item, which most sets that pass are
    extensions of, all extensions leave there.
    """
    import numpy as np

    found = p_values.copy()
    width = sets.shape[1]
    for place in range(width if width > 1 else 0):
        at = np.flatnonzero((sets[:, place] >= 0) & (sets[:, 1] >= 0) & (found <= cutoff))
        if len(at):
            item = sets[at, place]
            tail = fisher_tail(inside[at], rows[at], outliers=items.outliers[item], of=items.rows[item])
            found[at] = np.maximum(found[at], tail)
    left = np.flatnonzero((found <= cutoff) & ((sets >= 0).sum(axis=1) > 2))
    pairs = [(number, part) for number in left.tolist() for part in _parts(sets[number])]
    if not pairs:
        return found
    distinct = sorted({part for _, part in pairs})
    padded = np.array([[*part, *[-1] * (width - len(part))] for part in distinct], dtype=np.int32)
    place_of = {part: place for place, part in enumerate(distinct)}
    where = np.array([place_of[part] for _, part in pairs])
    numbers = np.array([number for number, _ in pairs])
    part_outliers, part_rows = counter.count_outliers(padded), counter.count(padded)
    tails = fisher_tail(inside[numbers], rows[numbers], outliers=part_outliers[where], of=part_rows[where])
    np.maximum.at(found, numbers, tails)
    return found


def _parts(one: "np.ndarray") -> list[tuple[int, ...]]:
    """The parts of a set of at least two items, without itself.

    >>> import numpy as np
    >>> _parts(np.array([3, 5, 8, -1]))
    [(3, 5), (3, 8), (5, 8)]
    """
    there = [int(item) for item in one if item >= 0]
    return [part for size in range(2, len(there)) for part in itertools.combinations(there, size)]
