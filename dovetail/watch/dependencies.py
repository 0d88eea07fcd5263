"""Attributes that say what others say already: copies of each other, and values that another attribute determines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.watch.codes import Attribute

if TYPE_CHECKING:
    import numpy as np

# So many rows refute most dependencies, and so many nearly all; what they do not refute is looked at over all rows.
_SAMPLES = (256, 4096)


def determines(one: Attribute, other: Attribute) -> bool:
    """Whether each value of `one` goes with a single value of `other`.

    >>> import numpy as np
    >>> city, country = Attribute("city", np.array([0, 1, 2]), "abc"), Attribute("country", np.array([0, 0, 1]), "xy")
    >>> determines(city, country), determines(country, city)
    (True, False)
    """
    steps = [step for size in _SAMPLES if (step := len(one.codes) // size) > 1]
    return all(_holds(one, other, step) for step in [*steps, 1])


def _holds(one: Attribute, other: Attribute, step: int) -> bool:
    import numpy as np

    first, second = one.codes[::step], other.codes[::step]
    seen = np.empty(len(one.values), dtype=second.dtype)
    seen[first] = second  # the last one stays
    return bool((seen[first] == second).all())


def says_same(one: Attribute, rows: "np.ndarray", other: Attribute, other_rows: "np.ndarray") -> bool:
    """Whether two attributes say the same of every row, perhaps in other words. `rows` are how many each code has.

    >>> import numpy as np
    >>> state, copy = (Attribute(name, np.array([0, 1, 0]), "ab") for name in ("state", "copy"))
    >>> says_same(state, np.array([2, 1]), copy, np.array([2, 1]))
    True
    """
    import numpy as np

    is_possible = np.count_nonzero(rows) == np.count_nonzero(other_rows)
    return is_possible and determines(one, other) and determines(other, one)


def exclusions(attributes: Sequence[Attribute], rows: Sequence["np.ndarray"]) -> "np.ndarray":
    """Which two attributes no combination has both of, because one determines the other: with both, a combination has
    the rows that it has with the one. `rows` are how many there are of each code of each attribute."""
    import numpy as np

    distinct = [np.count_nonzero(each) for each in rows]  # what has fewer values than another cannot determine it

    found = np.zeros((len(attributes), len(attributes)), dtype=np.uint8)
    for i, one in enumerate(attributes):
        for j, other in enumerate(attributes):
            is_possible = i != j and not one.bins and not other.bins and distinct[i] >= distinct[j]
            if is_possible and determines(one, other):
                found[i, j] = found[j, i] = 1
    return found
