"""Attributes that say what others say already: copies of each other, and values that another attribute determines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.watch.codes import Attribute

if TYPE_CHECKING:
    import numpy as np

# So many rows refute nearly all dependencies; what they do not refute is looked at over all rows.
_SAMPLE = 4096


def determines(one: Attribute, other: Attribute) -> bool:
    """Whether each value of `one` goes with a single value of `other`.

    >>> import numpy as np
    >>> city, country = Attribute("city", np.array([0, 1, 2]), "abc"), Attribute("country", np.array([0, 0, 1]), "xy")
    >>> determines(city, country), determines(country, city)
    (True, False)
    """
    step = max(1, len(one.codes) // _SAMPLE)
    return _holds(one, other, step) and (step == 1 or _holds(one, other, 1))


def _holds(one: Attribute, other: Attribute, step: int) -> bool:
    import numpy as np

    first, second = one.codes[::step], other.codes[::step]
    seen = np.empty(len(one.values), dtype=second.dtype)
    seen[first] = second  # the last one stays
    return bool((seen[first] == second).all())


def drop_copies(attributes: Sequence[Attribute]) -> tuple[list[Attribute], list[str]]:
    """The attributes without those that say the same as one before them, and a line for each that is left out.

    >>> import numpy as np
    >>> twice = [Attribute(name, np.array([0, 1, 0]), "ab") for name in ("state", "copy")]
    >>> drop_copies(twice)[1]
    ["'copy' is left out: it says the same of every row as 'state'"]
    """
    kept: list[Attribute] = []
    notes = []
    for each in attributes:
        same = next((one for one in kept if determines(each, one) and determines(one, each)), None)
        if same is None:
            kept.append(each)
        else:
            notes.append(f"{each.name!r} is left out: it says the same of every row as {same.name!r}")
    return kept, notes


def exclusions(attributes: Sequence[Attribute]) -> "np.ndarray":
    """Which two attributes no combination has both of, because one determines the other: with both, a combination has
    the rows that it has with the one."""
    import numpy as np

    found = np.zeros((len(attributes), len(attributes)), dtype=np.uint8)
    for i, one in enumerate(attributes):
        for j, other in enumerate(attributes):
            if i != j and not one.bins and not other.bins and determines(one, other):
                found[i, j] = found[j, i] = 1
    return found
