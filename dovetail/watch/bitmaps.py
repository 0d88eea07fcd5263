"""Counting the rows of combinations by bitmaps: by a small C kernel on large tables, else by Python's whole numbers.

A set is a row of item numbers, ascending, padded with -1. Both count the same.
"""

import abc
import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.native import load_library
from dovetail.vocabulary import DovetailError
from dovetail.watch.items import Items

if TYPE_CHECKING:
    import numpy as np

_SOURCE = Path(__file__).with_name("bitmaps.c")
# Compiling takes about a second, in which Python's numbers count this much.
_LARGE = 3_000_000
_NO_LIMIT = 1 << 62


class SetCounter(abc.ABC):
    """Counts of sets, for one search. `exclude` has the pairs of attributes that no set has both of."""

    @abc.abstractmethod
    def extend(self, sets: "np.ndarray", *, least: int, room: int) -> "tuple[np.ndarray, np.ndarray] | None":
        """Sets of one more item that at least `least` outliers have, and how many; None where these are more than
        `room`. `sets` are all of one size, sorted."""

    @abc.abstractmethod
    def count(self, sets: "np.ndarray", limits: "np.ndarray | None" = None) -> "np.ndarray":
        """How many rows each set has; any number above its limit, where that is exceeded."""

    @abc.abstractmethod
    def count_outliers(self, sets: "np.ndarray") -> "np.ndarray":
        """How many outliers each set has."""

    @abc.abstractmethod
    def mark(self, sets: "np.ndarray") -> list[int]:
        """For each set, its rows as the bits of one number."""


def open_counter(items: Items, outliers: "np.ndarray", exclude: "np.ndarray") -> SetCounter:
    """The counter that suits the table's size."""
    is_large = len(outliers) * len(items.low) > _LARGE
    return (
        KernelCounter(items, outliers, exclude) if is_large and _kernel() else PythonCounter(items, outliers, exclude)
    )


def bits_of(mask: "np.ndarray") -> int:
    """A mask as one number, whose bit 0 is the first row.

    >>> import numpy as np
    >>> bits_of(np.array([True, False, True]))
    5
    """
    import numpy as np

    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


class PythonCounter(SetCounter):
    """Bitmaps that are whole numbers of Python, which has machine code to join them and to count their bits."""

    def __init__(self, items: Items, outliers: "np.ndarray", exclude: "np.ndarray") -> None:
        import numpy as np

        self._items, self._exclude = items, exclude.tolist()
        self._outliers = bits_of(outliers)
        bitmaps: list[int] = []
        placed = [places[each.codes] for each, places in zip(items.attributes, items.base_of, strict=True)]
        for item in range(items.bases):
            bitmaps.append(bits_of(placed[items.attribute_of[item]] == item))
        for rest, last in zip(items.rest[items.bases :].tolist(), items.last[items.bases :].tolist(), strict=True):
            bitmaps.append(bitmaps[rest] | bitmaps[last])
        self._bitmaps = bitmaps
        self._among = [each & self._outliers for each in bitmaps]
        self._empty = np.zeros(0, dtype=np.int64)

    def extend(self, sets: "np.ndarray", *, least: int, room: int) -> "tuple[np.ndarray, np.ndarray] | None":
        import numpy as np

        found: list[list[int]] = []
        counts: list[int] = []
        attribute_of = self._items.attribute_of.tolist()
        rows = sets.tolist()
        for i, one in enumerate(rows):
            own = self._intersect(one, self._among)
            last = attribute_of[one[-1]]
            for other in rows[i + 1 :]:
                if other[:-1] != one[:-1]:
                    break
                attribute = attribute_of[other[-1]]
                if attribute == last or self._exclude[last][attribute]:
                    continue
                count = (own & self._among[other[-1]]).bit_count()
                if count >= least:
                    if len(found) == room:
                        return None
                    found.append([*one, other[-1]])
                    counts.append(count)
        shape = (len(found), sets.shape[1] + 1)
        return np.array(found, dtype=np.int32).reshape(shape), np.array(counts, dtype=np.int64)

    def count(self, sets: "np.ndarray", limits: "np.ndarray | None" = None) -> "np.ndarray":
        import numpy as np

        return np.array([each.bit_count() for each in self.mark(sets)], dtype=np.int64)

    def count_outliers(self, sets: "np.ndarray") -> "np.ndarray":
        import numpy as np

        return np.array([self._intersect(each, self._among).bit_count() for each in sets.tolist()], dtype=np.int64)

    def mark(self, sets: "np.ndarray") -> list[int]:
        return [self._intersect(each, self._bitmaps) for each in sets.tolist()]

    def _intersect(self, one: list[int], bitmaps: list[int]) -> int:
        found = bitmaps[one[0]]
        for item in one[1:]:
            if item >= 0:
                found &= bitmaps[item]
        return found


class KernelCounter(SetCounter):
    """Bitmaps in C: those of all outliers at once, those of all rows block by block."""

    def __init__(self, items: Items, outliers: "np.ndarray", exclude: "np.ndarray") -> None:
        import numpy as np

        kernel = _kernel()
        assert kernel is not None, "ask open_counter"
        self._kernel, self._items, self._rows = kernel, items, len(outliers)
        self._exclude = np.ascontiguousarray(exclude, dtype=np.uint8)
        where = np.flatnonzero(outliers)
        self._words = (len(where) + 63) // 64
        self._among = np.empty((len(items.low) + 1, self._words), dtype=np.uint64)
        codes = [np.ascontiguousarray(each.codes[where]) for each in items.attributes]
        table = _table(codes, items)
        kernel.fill_items(_at(self._among), self._words, 0, len(where), *table)
        self._codes = [each.codes for each in items.attributes]

    def extend(self, sets: "np.ndarray", *, least: int, room: int) -> "tuple[np.ndarray, np.ndarray] | None":
        import numpy as np

        sets = np.ascontiguousarray(sets, dtype=np.int32)
        most = min(room, 1 << 14)
        while True:  # as much room as is needed, at most fourfold
            found, counts = np.empty((most, sets.shape[1] + 1), np.int32), np.empty(most, np.int64)
            made = self._kernel.extend_sets(
                *(_at(self._among), self._words, _at(self._items.attribute_of), len(self._codes)),
                *(_at(self._exclude), _at(sets), len(sets), sets.shape[1], least, _at(found), _at(counts), most),
            )
            if made >= 0:
                return found[:made].copy(), counts[:made].copy()
            if most == room:
                return None
            most = min(room, most * 4)

    def count(self, sets: "np.ndarray", limits: "np.ndarray | None" = None) -> "np.ndarray":
        import numpy as np

        counts = np.zeros(len(sets), dtype=np.int64)
        if limits is None:
            limits = np.full(len(sets), _NO_LIMIT, dtype=np.int64)
        self._count(sets, np.minimum(limits, _NO_LIMIT).astype(np.int64), counts, None)
        return counts

    def count_outliers(self, sets: "np.ndarray") -> "np.ndarray":
        import numpy as np

        joined = [np.bitwise_and.reduce(self._among[each[each >= 0]], axis=0) for each in sets]
        return np.array([int.from_bytes(each.tobytes(), "little").bit_count() for each in joined], dtype=np.int64)

    def mark(self, sets: "np.ndarray") -> list[int]:
        import numpy as np

        marks = np.zeros((len(sets), (self._rows + 63) // 64), dtype=np.uint64)
        counts, limits = np.zeros(len(sets), dtype=np.int64), np.full(len(sets), _NO_LIMIT, dtype=np.int64)
        self._count(sets, limits, counts, _at(marks))
        return [int.from_bytes(each.tobytes(), "little") for each in marks]

    def _count(self, sets: "np.ndarray", limits: "np.ndarray", counts: "np.ndarray", marks: Any) -> None:
        import numpy as np

        if not len(sets):
            return
        sets = np.ascontiguousarray(sets, dtype=np.int32)
        used = set(self._items.attribute_of[np.unique(sets[sets >= 0])].tolist())
        codes = [each if number in used else None for number, each in enumerate(self._codes)]
        failed = self._kernel.count_sets(
            *(self._rows, *_table(codes, self._items), _at(sets), len(sets), sets.shape[1]),
            *(_at(limits), _at(counts), marks),
        )
        if failed:
            raise DovetailError(
                f"counting {len(sets)} combinations must find memory for {len(self._items.low)} bitmaps and at most 32 "
                f"attributes in each; it did not. Give a lower order, or a higher least_support."
            )


def _at(array: "np.ndarray") -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


def _table(codes: "Sequence[np.ndarray | None]", items: Items) -> tuple[Any, ...]:
    """The arguments that say what items are."""
    count = len(codes)
    pointers = [None if each is None else each.ctypes.data for each in codes]
    widths = [1 if each is None else each.dtype.itemsize for each in codes]
    return (
        *(count, (ctypes.c_void_p * count)(*pointers), (ctypes.c_int32 * count)(*widths)),
        *((ctypes.c_void_p * count)(*(each.ctypes.data for each in items.base_of)), items.bases, len(items.low)),
        *(_at(items.rest), _at(items.last)),
    )


def count_codes(codes: "np.ndarray", values: int) -> "np.ndarray":
    """How often each code occurs.

    >>> import numpy as np
    >>> count_codes(np.array([0, 2, 2], np.uint8), 4).tolist()
    [1, 0, 2, 0]
    """
    import numpy as np

    kernel = _kernel() if len(codes) > _LARGE // 10 else None
    if kernel is None:
        return np.bincount(codes, minlength=values)
    counts = np.zeros(values, dtype=np.int64)
    kernel.count_codes(_at(codes), codes.dtype.itemsize, len(codes), _at(counts))
    return counts


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    library = load_library(_SOURCE)
    if library is None:
        return None
    at, long, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    table: list[Any] = [whole, at, at, at, whole, whole, at, at]
    library.count_codes.argtypes = [at, whole, long, at]
    library.fill_items.argtypes = [at, long, long, long, *table]
    library.extend_sets.argtypes = [at, long, at, whole, at, at, long, whole, long, at, at, long]
    library.count_sets.argtypes = [long, *table, at, long, whole, at, at, at]
    library.count_codes.restype = library.fill_items.restype = None
    library.extend_sets.restype = library.count_sets.restype = long
    return library
