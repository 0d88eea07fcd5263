"""Tables of others: how columns of pandas, Polars, Arrow and plain dicts are read without copying, and made again.

A column of numbers without missing values is an array; any other is left as the library has it, and numbered where it
is compared or grouped by. Libraries are imported by whoever gives their tables, not here.
"""

import functools
import operator
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy

from dovetail.frame.operations import is_native
from dovetail.frame.runner import thread_count
from dovetail.native.text_codes import code_arrow_text, look_up
from dovetail.vocabulary import DovetailError

# Below this many rows a thread more brings nothing.
_ROWS_EACH = 100_000
_FEW_LABELS = 1 << 16
# So many rows tell of the values of many more.
_FIRST_ROWS = 1 << 14


def library_of(data: Any) -> str:
    """The library that a table is of: pandas, polars, pyarrow or dict."""
    for name, kind in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table")):
        module = sys.modules.get(name)
        if module is not None and isinstance(data, getattr(module, kind)):
            return name
    if isinstance(data, Mapping):
        return "dict"
    raise DovetailError(
        f"df.table must be given a table of pandas, Polars or Arrow, or a dict of columns, got {type(data).__name__}."
    )


def columns_of(data: Any, library: str) -> dict[str, Any]:
    """Its columns by name, as that library has them."""
    if library in ("pandas", "pyarrow"):
        names = list(data.columns if library == "pandas" else data.column_names)
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise DovetailError(
                f"a table's columns must have different names, got {twice[0]!r} twice; rename one of them."
            )
    if library == "pandas":
        return {name: data[name] for name in data.columns}
    if library == "polars":
        return {name: data.get_column(name) for name in data.columns}
    if library == "pyarrow":
        return {name: data.column(name) for name in data.column_names}
    return {name: numpy.asarray(values) for name, values in data.items()}


def numbers_of(column: Any, library: str) -> numpy.ndarray | None:
    """A column as an array, or None where it is not one of numbers, or some are missing."""
    if library == "dict":
        array = column
    elif library == "pandas":
        if not isinstance(column.dtype, numpy.dtype):
            return None
        array = column.to_numpy()
    elif library == "polars":
        if (not column.dtype.is_numeric() and str(column.dtype) != "Boolean") or column.null_count():
            return None
        array = column.to_numpy()
    else:
        kind = str(column.type)
        if column.null_count or not kind.startswith(("int", "uint", "float", "double", "bool")):
            return None
        array = column.to_numpy()
    return array if isinstance(array, numpy.ndarray) and is_native(array.dtype) and array.ndim == 1 else None


def number_values(column: Any, library: str) -> tuple[numpy.ndarray, Any] | None:
    """Each value's number, and the distinct values, by the library's own hash table; None where values are missing."""
    if library == "polars":
        return None if column.null_count() else _number_arrow(column.to_arrow())
    if library == "pyarrow":
        return None if column.null_count else _number_arrow(_one_chunk(column))
    if library == "pandas":
        if hasattr(column.array, "__arrow_array__") and str(column.dtype) == "str":
            arrow = column.array.__arrow_array__()
            return None if arrow.null_count else _number_arrow(_one_chunk(arrow))
        codes, labels = column.factorize()
        return None if len(codes) and codes.min() < 0 else (codes, labels.tolist())
    try:
        labels, codes = numpy.unique(column, return_inverse=True)
    except TypeError:  # of values that have no order: texts of which some are missing
        return None
    return codes, labels.tolist()


def _one_chunk(column: Any) -> Any:
    """An array of Arrow, copied only where it lies in several."""
    if not hasattr(column, "num_chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _number_arrow(array: Any) -> tuple[numpy.ndarray, list[Any]]:
    """By a hash table that leaves the interpreter's lock: a part of the rows for each thread, then one numbering for
    all, in the order of the values where they are few, so that grouping by them sorts nothing. Where the first rows
    have all values, the parts are numbered so from the start."""
    codes, parts = numpy.empty(len(array), "int32"), _parts(len(array)) or [slice(0, 0)]
    known = _first_values(array)
    encoded = list(_threads().map(lambda rows: _number_part(array[rows], codes[rows], known), parts))
    if known and all(len(each) == len(known) for each in encoded):
        return codes, known
    labels = list(dict.fromkeys(label for each in encoded for label in each))
    labels = sorted(labels) if len(labels) <= _FEW_LABELS else labels
    numbers = {label: number for number, label in enumerate(labels)}
    tables = [numpy.asarray([numbers[label] for label in each], "int32") for each in encoded]
    list(_threads().map(lambda rows, table: look_up(table, codes[rows], into=codes[rows]), parts, tables))
    return codes, labels


def _first_values(array: Any) -> list[str]:
    """The values of the first of many rows, in order, where those are texts."""
    if len(array) < 8 * _FIRST_ROWS or (found := code_arrow_text(array[:_FIRST_ROWS])) is None:
        return []
    return sorted(found[1])


def _number_part(array: Any, into: numpy.ndarray, known: list[str]) -> list[Any]:
    """Number a part of the rows, and give its distinct values, after those that are known."""
    if (found := code_arrow_text(array, into=into, known=known)) is not None:
        return found[1]
    encoded = array.dictionary_encode()  # Arrow's own, where there is no compiler
    into[:] = encoded.indices.to_numpy(zero_copy_only=False)
    labels: list[Any] = encoded.dictionary.to_pylist()
    return labels


def values_at(table: numpy.ndarray, codes: numpy.ndarray) -> numpy.ndarray:
    """The value of each row, by its number; by all threads."""
    found = numpy.empty(len(codes), table.dtype)
    list(_threads().map(lambda rows: look_up(table, codes[rows], into=found[rows]), _parts(len(codes))))
    return found


def _parts(rows: int) -> list[slice]:
    count = max(1, min(thread_count(), rows // _ROWS_EACH))
    step = -(-rows // count) or 1
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, thread_count()), thread_name_prefix="frame table")


def take_rows(column: Any, library: str, rows: numpy.ndarray | None) -> Any:
    """Some rows of a column that is left as the library has it."""
    if rows is None:
        return column
    if library == "pandas":
        return column.iloc[rows]
    return column[rows] if library in ("dict", "polars") else column.take(rows)


def make_table(columns: dict[str, Any], library: str, *, index: Any = None) -> Any:
    """Make a table of this library from columns by name."""
    if library == "dict":
        return columns
    if library == "pandas":
        import pandas

        plain = {name: getattr(column, "array", column) for name, column in columns.items()}
        return pandas.DataFrame(plain, index=index, copy=False)
    if library == "polars":
        import polars

        return polars.DataFrame(columns)
    import pyarrow

    return pyarrow.table(columns)


_OPERATORS: dict[numpy.ufunc, Callable[..., Any]] = {
    numpy.equal: operator.eq,
    numpy.not_equal: operator.ne,
    numpy.less: operator.lt,
    numpy.less_equal: operator.le,
    numpy.greater: operator.gt,
    numpy.greater_equal: operator.ge,
}
# With the names that Arrow has for them where values may be missing.
_LOGIC: dict[numpy.ufunc, tuple[Callable[..., Any], str]] = {
    numpy.bitwise_and: (operator.and_, "and_kleene"),
    numpy.bitwise_or: (operator.or_, "or_kleene"),
    numpy.bitwise_xor: (operator.xor, "xor"),
    numpy.invert: (operator.invert, "invert"),
}


def is_condition(ufunc: numpy.ufunc) -> bool:
    """Whether it may say of rows whether they are chosen."""
    return ufunc in _OPERATORS or ufunc in _LOGIC


def find_rows(ufunc: numpy.ufunc, inputs: list[Any], library: str) -> Any:
    """A comparison of whole columns, or logic of conditions, by their library; None of what is not its. A missing value
    equals nothing and is not more or less than anything; in logic it stays missing."""
    compares = ufunc in _OPERATORS
    if not compares and (library == "pandas" or not all(map(_is_of_bools, inputs))):
        return None
    if library == "pandas":
        found = ufunc(*inputs)
        return found if found.dtype == bool else None
    inputs = [_plain_scalar(each) for each in inputs]
    if library == "polars":
        found = (_OPERATORS[ufunc] if compares else _LOGIC[ufunc][0])(*inputs)
    else:
        import pyarrow.compute

        found = getattr(pyarrow.compute, ufunc.__name__ if compares else _LOGIC[ufunc][1])(*inputs)
    return found.fill_null(ufunc is numpy.not_equal) if compares else found


def _plain_scalar(value: Any) -> Any:
    """A scalar of NumPy as Python's, which Polars and Arrow take: a date to the microsecond, as Python has it."""
    if isinstance(value, numpy.datetime64):
        return value.astype("M8[us]").item()
    return value.item() if isinstance(value, numpy.generic) else value


def find_values(column: Any, values: list[Any], library: str) -> Any:
    """Which rows have one of these values, by the library; a missing value among them is that of any row."""
    if library == "pandas":
        return column.isin(values)
    if library == "polars":
        return column.is_in(values, nulls_equal=True)
    import pyarrow.compute

    return pyarrow.compute.is_in(column, value_set=pyarrow.array(values, column.type))


def condition_of(column: Any, library: str) -> numpy.ndarray | None:
    """Where a library's column of truths holds, which it does not where they are missing; None of another column."""
    if not _is_of_bools(column):
        return None
    if library == "pandas":
        found: numpy.ndarray = column.to_numpy(dtype=bool, na_value=False)
        return found
    return numbers_of(column.fill_null(False), library)


def _is_of_bools(values: Any) -> bool:
    kind = getattr(values, "dtype", getattr(values, "type", type(values).__name__))
    return str(kind).lower().startswith("bool")


def choose_rows(data: Any, library: str, condition: Any) -> Any:
    """The rows of a library's table where a condition holds, or whatever else it has in brackets, by that library."""
    if library == "dict":
        return {name: numpy.asarray(column)[condition] for name, column in data.items()}
    filters = _is_of_bools(condition) or is_expression(condition)
    return data.filter(condition) if library != "pandas" and filters else data[condition]


def is_expression(value: Any) -> bool:
    """Whether it is one of Polars' or Arrow's, which has no values until it is given a table."""
    return type(value).__name__ in ("Expr", "Expression") and type(value).__module__.startswith(("polars", "pyarrow"))


def make_column(value: Any, library: str, length: int) -> Any:
    """A column of a library other than pandas, of a value for each row or of one for all."""
    if library == "polars":
        import polars

        if isinstance(value, polars.Series):
            return value
        return polars.Series([value] * length if _is_one(value) else value)
    if library == "pyarrow":
        import pyarrow

        if isinstance(value, pyarrow.Array | pyarrow.ChunkedArray):
            return pyarrow.chunked_array(value) if isinstance(value, pyarrow.Array) else value
        return pyarrow.chunked_array([[value] * length if _is_one(value) else value])
    return numpy.full(length, value) if _is_one(value) else numpy.asarray(value)


def _is_one(value: Any) -> bool:
    return isinstance(value, str | bytes) or not hasattr(value, "__len__")
