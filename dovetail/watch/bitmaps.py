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
    def mark(self, sets: "np.ndarray") -> "np.ndarray":
        """For each set the bits of its rows, as `pack_bits` gives them."""


def open_counter(
    items: Items, outliers: "np.ndarray", exclude: "np.ndarray", *, their_codes: "Sequence[np.ndarray]"
) -> SetCounter:
    """The counter that suits the table's size. `their_codes` are the outliers' codes of each attribute."""
    if len(outliers) * len(items.low) > _LARGE and _kernel():
        return KernelCounter(items, len(outliers), exclude, their_codes)
    return PythonCounter(items, outliers, exclude)


def pack_bits(mask: "np.ndarray") -> "np.ndarray":
    """A mask as words of 64 rows, the first row the lowest bit.

    >>> import numpy as np
    >>> pack_bits(np.array([True, False, True]))
    array([5], dtype=uint64)
    """
    import numpy as np

    packed = np.zeros((len(mask) + 63) // 64 * 8, dtype=np.uint8)
    packed[: (len(mask) + 7) // 8] = np.packbits(mask, bitorder="little")
    return packed.view(np.uint64)


class MarkCounter:
    """Counts, for each of some marks, how many of its rows are among others, and how many of those are outliers.

    >>> import numpy as np
    >>> marks = np.array([[0b0111], [0b1100]], dtype=np.uint64)
    >>> MarkCounter(marks, outliers=np.array([0b1000], np.uint64)).count(np.array([1]), np.array([0b1111], np.uint64))
    (array([2]), array([1]))
    """

    def __init__(self, marks: "np.ndarray", *, outliers: "np.ndarray") -> None:
        import numpy as np

        self._marks, self._outliers = marks, outliers
        self._kernel = _kernel() if marks.size > _LARGE // 64 else None
        count, words = marks.shape
        self._chosen, self._within, self._inside = (np.empty(count, dtype=np.int64) for _ in range(3))
        self._rows, self._hits = np.empty(words, dtype=np.uint64), np.empty(words, dtype=np.uint64)
        self._filled = np.empty(words, dtype=np.int64)
        # Asking an array for its address takes about as long as counting does, so each is asked once.
        self._first = _at(marks), _at(self._chosen)
        rest = (self._rows, outliers, self._filled, self._hits, self._within, self._inside)
        self._rest = [_at(each) for each in rest]

    def count(self, chosen: "np.ndarray", rows: "np.ndarray") -> "tuple[np.ndarray, np.ndarray]":
        """The two counts of each of the marks with these numbers."""
        if self._kernel is None:
            both = self._marks[chosen] & rows
            return _count_each(both), _count_each(both & self._outliers)
        count = len(chosen)
        self._chosen[:count], self._rows[:] = chosen, rows
        self._kernel.count_among(*self._first, count, len(self._rows), *self._rest)
        return self._within[:count].copy(), self._inside[:count].copy()


def _bits(words: "np.ndarray") -> int:
    return int.from_bytes(words.tobytes(), "little")


def _count_each(marks: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.array([_bits(each).bit_count() for each in marks], dtype=np.int64)


class PythonCounter(SetCounter):
    """Bitmaps that are whole numbers of Python, which has machine code to join them and to count their bits."""

    def __init__(self, items: Items, outliers: "np.ndarray", exclude: "np.ndarray") -> None:
        self._items, self._exclude, self._rows = items, exclude.tolist(), len(outliers)
        self._outliers = _bits(pack_bits(outliers))
        bitmaps: list[int] = []
        placed = [places[each.codes] for each, places in zip(items.attributes, items.base_of, strict=True)]
        for item in range(items.bases):
            bitmaps.append(_bits(pack_bits(placed[items.attribute_of[item]] == item)))
        for rest, last in zip(items.rest[items.bases :].tolist(), items.last[items.bases :].tolist(), strict=True):
            bitmaps.append(bitmaps[rest] | bitmaps[last])
        self._bitmaps = bitmaps
        self._among = [each & self._outliers for each in bitmaps]

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

        found = [self._intersect(each, self._bitmaps).bit_count() for each in sets.tolist()]
        return np.array(found, dtype=np.int64)

    def count_outliers(self, sets: "np.ndarray") -> "np.ndarray":
        import numpy as np

        return np.array([self._intersect(each, self._among).bit_count() for each in sets.tolist()], dtype=np.int64)

    def mark(self, sets: "np.ndarray") -> "np.ndarray":
        import numpy as np

        size = (self._rows + 63) // 64 * 8
        found = [self._intersect(each, self._bitmaps).to_bytes(size, "little") for each in sets.tolist()]
        return np.frombuffer(b"".join(found), dtype=np.uint64).reshape(len(sets), -1)

    def _intersect(self, one: list[int], bitmaps: list[int]) -> int:
        found = bitmaps[one[0]]
        for item in one[1:]:
            if item >= 0:
                found &= bitmaps[item]
        return found


class KernelCounter(SetCounter):
    """Bitmaps in C: those of all outliers at once, those of all rows block by block."""

    def __init__(self, items: Items, rows: int, exclude: "np.ndarray", their_codes: "Sequence[np.ndarray]") -> None:
        import numpy as np

        kernel = _kernel()
        assert kernel is not None, "ask open_counter"
        self._kernel, self._items, self._rows = kernel, items, rows
        self._exclude = np.ascontiguousarray(exclude, dtype=np.uint8)
        hits = len(their_codes[0])
        self._words = (hits + 63) // 64
        self._among = np.empty((len(items.low) + 1, self._words), dtype=np.uint64)
        kernel.fill_items(_at(self._among), self._words, 0, hits, *_table(their_codes, items), None)
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
        return _count_each(np.array(joined))

    def mark(self, sets: "np.ndarray") -> "np.ndarray":
        import numpy as np

        marks = np.zeros((len(sets), (self._rows + 63) // 64), dtype=np.uint64)
        counts, limits = np.zeros(len(sets), dtype=np.int64), np.full(len(sets), _NO_LIMIT, dtype=np.int64)
        self._count(sets, limits, counts, _at(marks))
        return marks

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


def _at(array: "np.ndarray") -> int:
    return array.ctypes.data


def _table(codes: "Sequence[np.ndarray | None]", items: Items) -> tuple[Any, ...]:
    """The arguments that say what items are."""
    count = len(codes)
    pointers = [None if each is None else each.ctypes.data for each in codes]
    widths = [1 if each is None else each.dtype.itemsize for each in codes]
    return (
        *(count, (ctypes.c_void_p * count)(*pointers), (ctypes.c_int32 * count)(*widths)),
        *((ctypes.c_void_p * count)(*(each.ctypes.data for each in items.base_of)), items.bases, len(items.low)),
        *(_at(items.rest), _at(items.last), _at(items.attribute_of), _at(items.low)),
    )


def count_codes(codes: "np.ndarray", values: int) -> "np.ndarray":
    """How often each code occurs.

    >>> import numpy as np
    >>> count_codes(np.array([0, 2, 2], np.uint8), 4).tolist()
    [1, 0, 2, 0]
    """
    import numpy as np

    # Where it is there already it is the faster one for few codes too.
    kernel = _kernel() if len(codes) > _LARGE // 10 or _kernel.cache_info().currsize else None
    if kernel is None:
        return np.bincount(codes, minlength=values)
    counts = np.zeros(values, dtype=np.int64)
    kernel.count_codes(_at(codes), codes.dtype.itemsize, len(codes), values, _at(counts))
    return counts


def places_of(mask: "np.ndarray", count: int) -> "np.ndarray":
    """Where a mask is true, which it is so many times.

    >>> import numpy as np
    >>> places_of(np.array([False, True, False, True]), 2).tolist()
    [1, 3]
    """
    import numpy as np

    kernel = _kernel() if len(mask) > _LARGE // 10 else None
    if kernel is None:
        return np.flatnonzero(mask)
    mask, found = np.ascontiguousarray(mask), np.empty(count + 1, dtype=np.int64)
    kernel.find_places(_at(mask), len(mask), _at(found))
    return found[:count]


@functools.cache
def _kernel() -> ctypes.CDLL | None:
    library = load_library(_SOURCE)
    if library is None:
        return None
    at, long, whole = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    table: list[Any] = [whole, at, at, at, whole, whole, at, at, at, at]
    library.find_places.argtypes = [at, long, at]
    library.count_codes.argtypes = [at, whole, long, long, at]
    library.fill_items.argtypes = [at, long, long, long, *table, at]
    library.extend_sets.argtypes = [at, long, at, whole, at, at, long, whole, long, at, at, long]
    library.count_sets.argtypes = [long, *table, at, long, whole, at, at, at]
    library.count_among.argtypes = [at, at, long, long, at, at, at, at, at, at]
    library.find_places.restype = library.count_codes.restype = library.fill_items.restype = (
        library.count_among.restype
    ) = None
    library.extend_sets.restype = library.count_sets.restype = long
    return library
