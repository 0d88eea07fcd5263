"""Columns of text as places among their distinct values, by a small C kernel that makes no object of any text.

What it gives is what `pandas.factorize` gives. It knows Arrow's buffers and Python's strings, and leaves all else to
others.
"""

import ctypes
import functools
import secrets
from pathlib import Path
from typing import Any

from dovetail.native.library_cache import cached_library

_SOURCE = Path(__file__).with_name("text_codes.c")
# Below, the kernel's compilation, a quarter of a second at the first use on a machine, never pays.
_MANY_ROWS = 1 << 14


def code_text(column: Any) -> "tuple[Any, list[str]] | None":
    """The place of each row's text among the distinct ones, in the order in which they came, -1 for a missing one, and
    those; None where not everything is text, or where there is no kernel or too little for one.

    >>> import numpy as np
    >>> found = code_text(np.array(["eu", "us", None, "eu"] * 5_000, dtype=object))
    >>> found is None or (found[0][:4].tolist(), found[1])
    ([0, 1, -1, 0], ['eu', 'us'])
    """
    if len(column) < _MANY_ROWS:
        return None
    import numpy as np

    if isinstance(column, np.ndarray):
        return _code_objects(column) if column.dtype == object and isinstance(column[0], str) else None
    dtype = getattr(column, "dtype", None)
    if type(column).__module__.startswith("pyarrow") or type(dtype).__name__ in ("StringDtype", "ArrowDtype"):
        return _code_arrow(column)
    return None


def _code_objects(column: Any) -> "tuple[Any, list[str]] | None":
    import numpy as np

    kernel = _kernel()
    if kernel is None:
        return None
    column = np.ascontiguousarray(column)
    places, firsts = np.empty(len(column), dtype=np.int32), np.empty(len(column), dtype=np.intp)
    try:
        count = kernel.holding.code_objects(
            *(column.ctypes.data, len(column), _utf8(), id(None), _seed(), places.ctypes.data, firsts.ctypes.data)
        )
    except (TypeError, UnicodeEncodeError):  # not all are text, or some is none that UTF-8 has
        return None
    return None if count < 0 else (places.astype(np.intp), column[firsts[:count]].tolist())


def _code_arrow(column: Any) -> "tuple[Any, list[str]] | None":
    import numpy as np
    import pyarrow as pa

    array = column if type(column).__module__.startswith("pyarrow") else pa.array(column)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    found = code_arrow_text(array)
    return None if found is None else (found[0].astype(np.intp), found[1])


def code_arrow_text(array: Any, *, into: Any = None, known: Any = ()) -> "tuple[Any, list[str]] | None":
    """The same for an array of Arrow, of any length, in 32 bits, `into` an array of its length where one is given; None
    where it is none of text or there is no kernel. Texts that are `known`, all unlike, have the first places whether
    they come or not. Other threads run meanwhile.

    >>> import pyarrow as pa
    >>> found = code_arrow_text(pa.array(["eu", "us", "eu"]))
    >>> found is None or (found[0].tolist(), found[1])
    ([0, 1, 0], ['eu', 'us'])
    >>> found = code_arrow_text(pa.array(["eu", "us", "eu"]), known=["in", "us"])
    >>> found is None or (found[0].tolist(), found[1])
    ([2, 1, 2], ['in', 'us', 'eu'])
    """
    import numpy as np
    import pyarrow as pa

    kernel = _kernel()
    if kernel is None or not isinstance(array, pa.Array):
        return None
    is_wide = pa.types.is_large_string(array.type)
    if not (is_wide or pa.types.is_string(array.type)):
        return None
    valid, offsets, data = array.buffers()
    places = np.empty(len(array), dtype=np.int32) if into is None else into
    firsts = np.empty(len(known) + len(array), dtype=np.intp)
    _, known_offsets, known_data = pa.array(known, pa.string()).buffers()
    count = kernel.free.code_buffers(
        *(data.address if data else None, offsets.address, 8 if is_wide else 4, valid.address if valid else None),
        *(array.offset, len(array), _seed(), known_data.address if known_data else None, known_offsets.address),
        *(len(known), places.ctypes.data, firsts.ctypes.data),
    )
    return None if count < 0 else (places, [*known, *array.take(pa.array(firsts[len(known) : count])).to_pylist()])


def look_up(table: Any, places: Any, *, into: Any = None) -> Any:
    """`table[places]`, of a NumPy array of values of one or four bytes and places in 32 bits, none missing; `into` an
    array where one is given, which may be the places. Other threads run meanwhile.

    >>> import numpy as np
    >>> look_up(np.array([True, False]), np.array([0, 1, 0], dtype=np.int32))
    array([ True, False,  True])
    """
    import numpy as np

    kernel = _kernel()
    found = np.empty(len(places), dtype=table.dtype) if into is None else into
    if kernel is None or table.dtype.itemsize not in (1, 4) or places.dtype != np.int32:
        found[:] = table[places]
        return found
    table, places = np.ascontiguousarray(table), np.ascontiguousarray(places)
    kernel.free.look_up(*(table.ctypes.data, table.dtype.itemsize, places.ctypes.data, len(places), found.ctypes.data))
    return found


def first_rows(places: Any, count: int, *, chosen: Any = None) -> Any:
    """The first row in which each of so many places stands, -1 for those that are in none, of all rows or of those that
    are chosen.

    >>> import numpy as np
    >>> first_rows(np.array([2, 0, 2, 1], dtype=np.int32), 4, chosen=np.array([False, True, True, True]))
    array([ 1,  3,  2, -1])
    """
    import numpy as np

    kernel, found = _kernel(), np.full(count, -1)
    if kernel is None or places.dtype != np.int32:
        rows = np.arange(len(places)) if chosen is None else np.flatnonzero(chosen)
        found[places[rows][::-1]] = rows[::-1]  # of several writes to one place, the last stays
        return found
    places, chosen = np.ascontiguousarray(places), None if chosen is None else np.ascontiguousarray(chosen, dtype=bool)
    mask = None if chosen is None else chosen.ctypes.data
    kernel.free.first_rows(places.ctypes.data, mask, len(places), count, found.ctypes.data)
    return found


@functools.cache
def _seed() -> int:
    """Nobody outside can choose texts that fall on one address."""
    return secrets.randbits(64)


@functools.cache
def _utf8() -> Any:
    return ctypes.cast(ctypes.pythonapi.PyUnicode_AsUTF8AndSize, ctypes.c_void_p)


class _TextKernel:
    """The compiled functions: `free` ones leave the interpreter's lock, `holding` ones keep it, and raise what is
    raised."""

    def __init__(self, library: Any) -> None:
        self.free, self.holding = library, ctypes.PyDLL(None, handle=library._handle)
        at, long, narrow = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        self.free.code_buffers.argtypes = [at, at, narrow, at, long, long, ctypes.c_uint64, at, at, long, at, at]
        self.holding.code_objects.argtypes = [at, long, at, at, ctypes.c_uint64, at, at]
        self.free.code_buffers.restype = self.holding.code_objects.restype = long
        self.free.look_up.argtypes, self.free.look_up.restype = [at, narrow, at, long, at], None
        self.free.first_rows.argtypes, self.free.first_rows.restype = [at, at, long, long, at], None


@functools.cache
def _kernel() -> _TextKernel | None:
    library = cached_library(_SOURCE.read_text())
    return None if library is None else _TextKernel(library)
