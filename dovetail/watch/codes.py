"""An attribute as codes: small whole numbers for its values, or for the ranges of a measure. Knows no table library.

Values of an attribute that is a measure (floats, or named in `ranges`) are cut into bins, each with about as many rows,
or one for each value where there are few. A value that is missing has a code of its own, the last.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BINS = 10
# Codes may leave gaps, so that whole numbers need no dictionary, as long as the counts of all codes are small beside
# the rows.
_GAPS_PER_ROW = 4
_FEW_CODES = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """A column's codes and what each stands for; None among `values` is a missing one. The first `bins` codes are
    neighbouring ranges, the value of each its least and its greatest."""

    name: str
    codes: "np.ndarray"
    values: Sequence[Any]
    bins: int = 0

    def text(self, low: int, high: int) -> str:
        """The rows with a code from `low` to `high`, in words, after the attribute's name.

        >>> import numpy as np
        >>> rate = Attribute("rate", np.array([0, 1, 2]), [(1, 2), (3, 5), (6, 9)], bins=3)
        >>> rate.text(0, 1), rate.text(1, 1), rate.text(1, 2)
        ('≤ 5', '3 to 5', '≥ 3')
        """
        if low >= self.bins:
            return "is missing" if self.values[low] is None else f"= {value_text(self.values[low])}"
        least, greatest = value_text(self.values[low][0]), value_text(self.values[high][1])
        if least == greatest:
            return f"= {least}"
        if low == 0 or high == self.bins - 1:
            return f"≤ {greatest}" if low == 0 else f"≥ {least}"
        return f"{least} to {greatest}"


def value_text(value: Any) -> str:
    """A value as people write it.

    >>> value_text(0.30000000000000004), value_text("none"), value_text(None), value_text(3e-5)
    ('0.3', 'none', 'missing', '3e-05')
    """
    if value is None:
        return "missing"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.6g}"
    return str(value)


def narrow(codes: "np.ndarray", count: int) -> "np.ndarray":
    """Codes below `count` in as few bytes as they need; none of them is negative."""
    import numpy as np

    width = np.dtype(np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.uint32)
    if codes.dtype.kind in "iu" and codes.dtype.itemsize == width.itemsize:
        codes = codes.view(width)
    return np.ascontiguousarray(codes, dtype=width)


def encode_integers(name: str, values: "np.ndarray", missing: "np.ndarray | None" = None) -> Attribute | None:
    """Whole numbers by their distance from the least, where they are close together; else None.

    >>> import numpy as np
    >>> found = encode_integers("year", np.array([2024, 2026, 2024]))
    >>> found.codes.tolist(), found.values[2]
    ([0, 2, 0], 2026)
    """
    import numpy as np

    if missing is not None:
        values = np.where(missing, values[~missing][0] if not missing.all() else 0, values)
    least, greatest = int(values.min()), int(values.max())
    count = greatest - least + 1
    if count > max(_GAPS_PER_ROW * len(values), _FEW_CODES) or count >= 1 << 31:
        return None
    codes = np.subtract(values, least, dtype=values.dtype if values.dtype.itemsize > 1 else np.int16, casting="unsafe")
    if missing is None:
        return Attribute(name, narrow(codes, count), range(least, greatest + 1))
    codes = narrow(codes, count + 1)
    codes[missing] = count
    return Attribute(name, codes, [*range(least, greatest + 1), None])


def encode_range(name: str, values: "np.ndarray") -> Attribute:
    """A measure's bins; infinities count as the least and greatest numbers, and what is not a number as missing.

    >>> import numpy as np
    >>> found = encode_range("rate", np.array([0.1, 0.1, 0.3, np.nan]))
    >>> found.codes.tolist(), found.values, found.bins
    ([0, 0, 1, 2], [(0.1, 0.1), (0.3, 0.3), None], 2)
    """
    import numpy as np

    there = values[~np.isnan(values)]
    distinct, counts = np.unique(there, return_counts=True)
    if len(distinct) > BINS:
        # A value that has a bin's worth of rows, such as 0 often has, is one of its own: another begins behind it.
        heavy = np.flatnonzero(counts >= len(there) / BINS)
        ends = np.searchsorted(np.cumsum(counts), len(there) * np.arange(1, BINS) / BINS)
        starts = np.unique(np.concatenate([[0], ends, heavy, heavy + 1]))
        starts = starts[starts < len(distinct)]
    else:
        starts = np.arange(len(distinct))
    bounds = [*starts.tolist(), len(distinct)]
    bins = [(_number(distinct[start]), _number(distinct[end - 1])) for start, end in itertools.pairwise(bounds)]
    codes = np.searchsorted(distinct[starts], values, side="right") - 1 if len(bins) else np.zeros(len(values), int)
    if len(there) == len(values):
        return Attribute(name, narrow(codes, len(bins)), bins, bins=len(bins))
    codes[np.isnan(values)] = len(bins)
    return Attribute(name, narrow(codes, len(bins) + 1), [*bins, None], bins=len(bins))


def encode_objects(name: str, values: Sequence[Any]) -> Attribute:
    """Values of any types by a dictionary; those that cannot be looked up, such as lists, by how they are written. Of
    1, 1.0 and True, which Python calls equal, each is a value of its own.

    >>> found = encode_objects("norm", ["none", None, "layer", "none"])
    >>> found.codes.tolist(), found.values
    ([0, 2, 1, 0], ['none', 'layer', None])
    """
    import numpy as np

    found: dict[Any, int] = {}
    codes = [-1 if _is_missing(value) else found.setdefault(_key(value), len(found)) for value in values]
    labels: list[Any] = [value for _, value in found]
    encoded = np.array(codes, dtype=np.int64)
    if -1 in codes:
        encoded[encoded < 0] = len(labels)
        labels.append(None)
    return Attribute(name, narrow(encoded, len(labels)), labels)


def _key(value: Any) -> tuple[type, Any]:
    plain = isinstance(value, str | int | float | bool | datetime.date | datetime.timedelta)
    return (type(value), value) if plain else (str, str(value))


def _is_missing(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def _number(value: Any) -> Any:
    found = value.item()
    return int(found) if isinstance(found, float) and found.is_integer() and abs(found) < 1e15 else found
