"""What combinations are made of: values of attributes that enough outliers have, and ranges of bins."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.watch.codes import Attribute

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Items:
    """Items by number: codes `low` to `high` of attribute `attribute_of`, which so many outliers and rows have.

    The first `bases` are single codes, one after another in the order of attributes and codes; then come ranges, each
    of which is the item `rest` and one base more, `last`. `base_of` has for each attribute the base of each code, and
    `bases` itself for codes that nobody asks for.
    """

    attributes: tuple[Attribute, ...]
    attribute_of: "np.ndarray"
    low: "np.ndarray"
    high: "np.ndarray"
    outliers: "np.ndarray"
    rows: "np.ndarray"
    bases: int
    rest: "np.ndarray"
    last: "np.ndarray"
    base_of: tuple["np.ndarray", ...]

    def text(self, item: int) -> str:
        """An item in words: `learning_rate ≥ 0.03`."""
        attribute = self.attributes[self.attribute_of[item]]
        return f"{attribute.name} {attribute.text(int(self.low[item]), int(self.high[item]))}"


def make_items(
    attributes: Sequence[Attribute], outliers: Sequence["np.ndarray"], rows: Sequence["np.ndarray"], *, least: int
) -> Items:
    """Items with at least `least` outliers, and the bins that ranges need. `outliers` and `rows` are how many there are
    of each code of each attribute.

    >>> import numpy as np
    >>> rate = Attribute("rate", np.array([0, 1, 2], np.uint8), [(1, 2), (3, 5), (6, 9)], bins=3)
    >>> items = make_items([rate], [np.array([0, 4, 4])], [np.array([9, 9, 9])], least=4)
    >>> [items.text(item) for item in range(len(items.low)) if items.outliers[item] >= 4]
    ['rate 3 to 5', 'rate ≥ 6', 'rate ≤ 5', 'rate ≥ 3']
    """
    import numpy as np

    found: list[tuple[int, int, int]] = []  # attribute, low, high
    base_of = []
    for number, attribute in enumerate(attributes):
        wanted = np.asarray(outliers[number] >= least)
        wanted[: attribute.bins] = True
        codes = np.flatnonzero(wanted)
        places = np.full(len(wanted), -1, dtype=np.int32)
        places[codes] = np.arange(len(found), len(found) + len(codes), dtype=np.int32)
        base_of.append(places)
        found += [(number, code, code) for code in codes.tolist()]
    bases = len(found)
    for places in base_of:
        places[places < 0] = bases
    rest, last = list(range(bases)), list(range(bases))
    for number, attribute in enumerate(attributes):
        for low in range(attribute.bins):
            before = int(base_of[number][low])
            # Of a range that holds every bin, every row that is not missing would be part.
            for high in range(low + 1, attribute.bins - (low == 0)):
                rest.append(before)
                last.append(int(base_of[number][high]))
                before = len(found)
                found.append((number, low, high))
    sums = [[np.concatenate([[0], np.cumsum(counts)]) for counts in each] for each in (outliers, rows)]
    ends = np.array(found, dtype=np.int32).reshape(-1, 3)
    counted = [np.array([of[a][h + 1] - of[a][lo] for a, lo, h in found], dtype=np.int64) for of in sums]
    return Items(
        attributes=tuple(attributes),
        attribute_of=np.ascontiguousarray(ends[:, 0]),
        low=np.ascontiguousarray(ends[:, 1]),
        high=np.ascontiguousarray(ends[:, 2]),
        outliers=counted[0],
        rows=counted[1],
        bases=bases,
        rest=np.array(rest, dtype=np.int32),
        last=np.array(last, dtype=np.int32),
        base_of=tuple(base_of),
    )


def count_hypotheses(items: Items, rows_by_code: Sequence["np.ndarray"], *, least: int, order: int, rows: int) -> float:
    """How many combinations of up to `order` attributes could be found, whichever rows the outliers were: those with at
    least `least` rows. What is found is judged beside all of these, since only such as have many outliers are looked
    at, and these were chosen by what is to be tested.

    A row has one value of each attribute, so that of any set of attributes at most rows / least combinations have so
    many rows; ranges overlap, and for them this bound is no bound.
    """
    import numpy as np

    single = [int(np.count_nonzero(counts[each.bins :] >= least)) for each, counts in _pairs(items, rows_by_code)]
    ranges = [max(each.bins * (each.bins + 1) // 2 - 1, 0) for each in items.attributes]
    most = rows / max(least, 1) if not any(ranges) else math.inf
    ways = [1.0]  # by order, as the coefficients of the product of (1 + values * x)
    for values in (a + b for a, b in zip(single, ranges, strict=True)):
        ways = [
            x + values * y if math.isfinite(y) else math.inf for x, y in zip([*ways, 0.0], [0.0, *ways], strict=True)
        ]
    count = len(items.attributes)
    return sum(min(ways[size], math.comb(count, size) * most) for size in range(1, min(order, count) + 1))


def _pairs(items: Items, counts: Sequence["np.ndarray"]) -> list[tuple[Attribute, "np.ndarray"]]:
    return list(zip(items.attributes, counts, strict=True))
