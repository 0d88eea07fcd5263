"""`df.table`: tables of pandas, Polars and Arrow whose filters, new columns and group-bys become one loop.

Names are pandas' where they mean the same. A filter is a condition that later loops test, not a copy. Missing values
and NaN are left out of sums, as pandas does. What is not here is asked of the real library, on the table as it is
then.
"""

import functools
import operator
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from dovetail.frame.group_by import GroupKey, numbered_key, whole_number_key
from dovetail.frame.grouped_table import GroupedTable
from dovetail.frame.lazy_array import LazyArray
from dovetail.frame.nodes import BOOL, FrameNode, constant_node, input_node, map_node, merge_equal
from dovetail.frame.operations import is_native
from dovetail.frame.runner import compute
from dovetail.frame.table_source import (
    choose_rows,
    columns_of,
    condition_of,
    find_rows,
    find_values,
    is_condition,
    is_expression,
    library_of,
    make_column,
    make_table,
    number_values,
    numbers_of,
    take_rows,
    values_at,
)
from dovetail.frame.through_pandas import groups_of
from dovetail.native.text_codes import first_rows
from dovetail.vocabulary import DovetailError


class TableOrigin:
    """What a table was made of: the library's columns, their arrays, and the numbers of those that are text."""

    def __init__(self, data: Any) -> None:
        self.library = library_of(data)
        self.data = data
        self.columns = columns_of(data, self.library)
        lengths = {len(column) for column in self.columns.values()}
        if len(lengths) > 1:
            raise DovetailError(f"a table's columns must have one length, got {sorted(lengths)}.")
        self.length = lengths.pop() if lengths else 0
        # By identity, with the column, so that it stays its own.
        self._numbered: dict[int, tuple[Any, tuple[numpy.ndarray, Any] | None]] = {}

    def number_column(self, column: Any) -> tuple[numpy.ndarray, Any] | None:
        """Each value's number and the distinct values, worked out once."""
        if id(column) not in self._numbered:
            self._numbered[id(column)] = column, number_values(column, self.library)
        return self._numbered[id(column)][1]


class LazyColumn(NDArrayOperatorsMixin):
    """A column of a lazy table: numbers that are not computed yet, or a library's own column.

    >>> import dovetail.frame as df
    >>> t = df.table({"price": [1.0, 2.0, 3.0]})
    >>> (t.price * 2)[t.price > 1].sum()
    np.float64(10.0)
    """

    def __init__(self, table: "LazyTable", content: LazyArray | Any) -> None:
        self._table, self._content = table, content

    def __array_ufunc__(self, ufunc: numpy.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and options.keys() == {"out"} and options["out"][0] is inputs[0]:
            options = {}  # `column += 1` gives the name another column
        if method == "__call__" and not options:
            if ufunc in (numpy.equal, numpy.not_equal) and (found := self._compare_text(ufunc, inputs)) is not None:
                return found
            if self._are_numbers(inputs) and (found := self._apply(ufunc, inputs, {})) is not None:
                return found
            if (found := self._find_by_library(ufunc, inputs)) is not None:
                return found
            if ufunc in _EQUALITIES:  # which answer where the ufunc has no loop, of dates and texts
                return _EQUALITIES[ufunc](*_collect(inputs))
        return getattr(ufunc, method)(*_collect(inputs), **_collect(options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        known = function in (numpy.where, numpy.clip) and self._are_numbers((*args, *options.values()))
        found = self._apply(function, args, options) if known else None
        return function(*_collect(args), **_collect(options)) if found is None else found

    def _are_numbers(self, values: Any) -> bool:
        """Whether these are numbers, and numbers of the same rows of one table, as one loop computes them."""
        for each in values:
            if isinstance(each, LazyColumn):
                if not (isinstance(each._content, LazyArray) and self._has_rows_of(each)):
                    return False
            elif isinstance(each, numpy.ndarray) and each.ndim:
                if self._table._mask is not None or each.dtype.kind not in "biuf":
                    return False
            elif not isinstance(each, int | float | numpy.number | numpy.bool_ | numpy.ndarray | None):
                return False
        return True

    def _has_rows_of(self, other: "LazyColumn") -> bool:
        return other._origin is self._origin and _same_rows(other._table._mask, self._table._mask)

    def _apply(self, function: Any, args: Any, options: dict[str, Any]) -> "LazyColumn | None":
        contents = [each._content if isinstance(each, LazyColumn) else each for each in (*args, *options.values())]
        found = function(*contents[: len(args)], **dict(zip(options, contents[len(args) :], strict=True)))
        lazy = isinstance(found, LazyArray) and found._node.shape == (self._origin.length,)
        return LazyColumn(self._table, found) if lazy else None

    def _find_by_library(self, ufunc: numpy.ufunc, inputs: tuple[Any, ...]) -> "LazyColumn | None":
        """A condition on all rows by the library, so that it can be a filter of later loops."""
        others = [each for each in inputs if isinstance(each, LazyColumn)]
        alone = all(isinstance(each, LazyColumn) or numpy.ndim(each) == 0 for each in inputs)
        library = self._origin.library
        known = library == "pandas" or any(not isinstance(each._content, LazyArray) for each in others)
        if library == "dict" or not (known and is_condition(ufunc) and alone and all(map(self._has_rows_of, others))):
            return None
        values = [_all_rows(each) if isinstance(each, LazyColumn) else each for each in inputs]
        found = find_rows(ufunc, values, library)
        return None if found is None else LazyColumn(self._table, _content_of(found, library))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        return numpy.asarray(self.collect(), dtype=dtype)

    def __getitem__(self, condition: Any) -> Any:
        chosen = self._table._filter(condition)
        return _collect(self)[_collect(condition)] if chosen is None else LazyColumn(chosen, self._content)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Any]:
        return iter(_collect(self))

    def __contains__(self, value: Any) -> bool:
        return value in _collect(self)

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._table._as_library(self), name)

    @property
    def _origin(self) -> TableOrigin:
        return self._table._origin

    @property
    def dtype(self) -> Any:
        return self._content.dtype

    def collect(self) -> Any:
        """Its values, computed: an array, or what the library has."""
        rows = self._table._rows()
        if isinstance(self._content, LazyArray):
            (found,) = compute([self._content._node])
            return found if rows is None else found[rows]
        return _other_rows(self._content, self._origin.library, rows)

    def isin(self, values: Any) -> "LazyColumn":
        """Which rows have one of these values.

        >>> import dovetail.frame as df
        >>> df.table({"state": ["CA", "NY", "TX"]}).state.isin(["CA", "TX"]).collect()
        array([ True, False,  True])
        """
        values, of_numbers = list(values), isinstance(self._content, LazyArray)
        plain = (type(each) in (int, float) and each == each if of_numbers else type(each) is str for each in values)
        library = self._origin.library
        asked = library == "pandas" or (library != "dict" and not of_numbers)  # who takes values of any type
        if asked and not (all(plain) and (of_numbers or self._numbered() is not None)):
            return LazyColumn(self._table, _content_of(find_values(_all_rows(self), values, library), library))
        found = LazyColumn(self._table, self._lazy(input_node(numpy.zeros(self._origin.length, bool))))
        for value in values:
            found = found | (self == value)
        return found

    def sum(self, **options: Any) -> Any:
        """The sum of what is there. With options it is the library's, as the others are.

        >>> import dovetail.frame as df
        >>> df.table({"x": [1.0, float("nan"), 3.0]}).x.sum()
        np.float64(4.0)
        """
        return self._ask("sum", options) if self._is_librarys(options) else self._totals()[0]

    def count(self) -> int:
        """How many values are there."""
        return self._ask("count", {}) if self._is_librarys({}) else self._totals()[1]

    def mean(self, **options: Any) -> float:
        """The mean of what is there."""
        if self._is_librarys(options):
            return self._ask("mean", options)  # type: ignore[no-any-return]
        total, count = self._totals(floats=True)
        return total / count if count else float("nan")

    def min(self, **options: Any) -> Any:
        """The least of what is there."""
        return self._ask("min", options) if self._is_librarys(options) else self._extreme("min")

    def max(self, **options: Any) -> Any:
        """The greatest of what is there."""
        return self._ask("max", options) if self._is_librarys(options) else self._extreme("max")

    def _totals(self, *, floats: bool = False) -> tuple[Any, int]:
        """One pass: the sum, of whole numbers as floats where it would wrap, and the count of rows that are chosen and
        there."""
        lazy = self._content
        lazy = lazy.astype("f8") if floats and lazy.dtype.kind != "f" else lazy
        there = self._counted_rows()
        values = lazy if there is None else numpy.where(there, lazy, lazy.dtype.type(0))
        nodes = [numpy.sum(values)._node] + ([] if there is None else [numpy.sum(there)._node])
        total, *counted = compute(nodes)
        return total[()], int(counted[0]) if counted else self._origin.length

    def _extreme(self, name: str) -> Any:
        lazy, there = self._content, self._counted_rows()
        if there is None and self._origin.length:
            return compute([getattr(numpy, name)(lazy)._node])[0][()]
        values = numpy.asarray(self.collect())
        values = values[~numpy.isnan(values)] if values.dtype.kind == "f" else values
        return getattr(numpy, name)(values) if len(values) else float("nan")

    def _counted_rows(self) -> Any:
        """Which rows count: chosen by the table's filter, and not NaN."""
        mask, node = self._table._mask, self._content._node
        valid = map_node("equal", numpy.equal, (node, node)) if node.dtype.kind == "f" else None
        given = [each for each in (mask, valid) if each is not None]
        if len(given) == 2:
            given = [map_node("logical_and", numpy.logical_and, tuple(given))]
        return self._lazy(given[0]) if given else None

    def _is_librarys(self, options: dict[str, Any]) -> bool:
        return bool(options) or not isinstance(self._content, LazyArray)

    def _ask(self, name: str, options: dict[str, Any]) -> Any:
        """A reduction of a column that loops do not hold, by its library."""
        column = self._table._as_library(self)
        if self._origin.library == "pyarrow":
            import pyarrow.compute

            return getattr(pyarrow.compute, name)(column, **options).as_py()
        if self._origin.library == "dict" and name == "count":
            return len(column)
        return getattr(column, name)(**options)

    def _lazy(self, node: FrameNode) -> LazyArray:
        return LazyArray(node, compute=compute)

    @property
    def str(self) -> "TextMethods":
        """Methods of text, as pandas has them: each is asked of the distinct values alone.

        >>> import pandas, dovetail.frame as df
        >>> t = df.table(pandas.DataFrame({"zip": ["94305-1", "00000", "94305"]}))
        >>> t.zip.str.slice(0, 5).unique().tolist()
        ['94305', '00000']
        """
        return TextMethods(self)

    def unique(self) -> Any:
        """The distinct values, in the order in which they first appear."""
        numbered = self._numbered()
        if numbered is None:
            return self._table._as_library(self).unique()
        codes, labels = numbered
        mask = self._table._mask
        first = first_rows(codes, len(labels), chosen=None if mask is None else compute([mask])[0])
        there = numpy.flatnonzero(first >= 0)
        return numpy.asarray(labels, object)[there[numpy.argsort(first[there])]]

    def _numbered(self) -> tuple[numpy.ndarray, Any] | None:
        """Each value's number and the distinct values, of a column that is no numbers and has none missing."""
        if isinstance(self._content, LazyArray):
            return None
        return self._content if isinstance(self._content, tuple) else self._origin.number_column(self._content)

    def _compare_text(self, ufunc: numpy.ufunc, inputs: tuple[Any, ...]) -> "LazyColumn | None":
        """`column == "text"` by the numbers of its values."""
        column, other = inputs if isinstance(inputs[0], LazyColumn) else inputs[::-1]
        if isinstance(column._content, LazyArray) or not isinstance(other, str | int | float):
            return None
        numbered = column._numbered()
        if numbered is None:
            return None
        codes, labels = numbered
        if not all(type(label) is type(other) for label in labels):
            return None  # a date, say, whose equality with a text is the library's to say
        number = labels.index(other) if other in labels else -1
        node = map_node(ufunc.__name__, ufunc, (input_node(codes), constant_node(number)))
        return LazyColumn(column._table, self._lazy(node))


class TextMethods:
    """What `column.str` gives: methods of pandas on text, computed once for each distinct value."""

    def __init__(self, column: LazyColumn) -> None:
        self._column = column

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        numbered = self._column._numbered()
        if numbered is None or self._column._origin.library != "pandas":
            return getattr(self._column._table._as_library(self._column).str, name)
        return functools.partial(self._apply, name, numbered)

    def _apply(self, name: str, numbered: tuple[numpy.ndarray, Any], *args: Any, **options: Any) -> Any:
        import pandas

        codes, labels = numbered
        found = getattr(pandas.Series(labels, dtype="str").str, name)(*args, **options)
        if not isinstance(found, pandas.Series) or len(found) != len(labels) or found.isna().any():
            return getattr(self._column._table._as_library(self._column).str, name)(*args, **options)
        table = self._column._table
        if isinstance(found.dtype, numpy.dtype) and found.dtype.kind in "biuf":
            return LazyColumn(table, self._column._lazy(input_node(values_at(found.to_numpy(), codes))))
        number, distinct = found.factorize()
        return LazyColumn(table, (values_at(number.astype("int32"), codes), distinct.tolist()))


def _other_rows(content: Any, library: str, rows: numpy.ndarray | None) -> Any:
    """Some rows of a column that is no numbers: a library's, or values with their numbers."""
    if not isinstance(content, tuple):
        return take_rows(content, library, rows)
    codes, labels = content
    import pandas

    return pandas.Series(labels, dtype="str").take(codes if rows is None else codes[rows]).reset_index(drop=True)


class LazyTable:
    """A lazy table. `df.table` makes one; filters, `assign` and `groupby` give others, and `collect` computes a table
    of the library that it came from. Attributes that it does not have are that library's.

    >>> import dovetail.frame as df
    >>> t = df.table({"state": ["CA", "NY", "CA"], "people": [3, 5, 4]})
    >>> t[t.people > 3].assign(half=t.people / 2).groupby("state").sum()
    {'state': array(['CA', 'NY'], dtype='<U2'), 'people': array([4, 5]), 'half': array([2. , 2.5])}
    """

    def __init__(self, origin: TableOrigin, columns: dict[str, Any], mask: FrameNode | None = None) -> None:
        self._origin, self._columns, self._mask = origin, columns, mask

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str | int | tuple) and key in self._columns:
            return LazyColumn(self, self._columns[key])
        if isinstance(key, str):
            raise KeyError(key)
        if isinstance(key, list):
            return LazyTable(self._origin, {name: self._columns[name] for name in key}, self._mask)
        chosen = self._filter(key)
        return choose_rows(self.collect(), self._origin.library, _collect(key)) if chosen is None else chosen

    def _filter(self, key: Any) -> "LazyTable | None":
        """The rows where a condition of this table's rows holds; None of what the library must look at."""
        if isinstance(key, numpy.ndarray) and key.dtype == BOOL and self._mask is None:
            if key.shape != (self._origin.length,):
                return None
            return LazyTable(self._origin, self._columns, input_node(key))
        if not isinstance(key, LazyColumn):
            return None
        if not isinstance(key._content, LazyArray):
            there = condition_of(key._content, self._origin.library)
            return None if there is None else self._filter(LazyColumn(key._table, key._lazy(input_node(there))))
        if key._content.dtype != BOOL or not self._may_have(key):
            return None
        node = key._content._node
        both = node if self._mask is None else map_node("logical_and", numpy.logical_and, (self._mask, node))
        return LazyTable(self._origin, self._columns, both)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._columns:
            return self[name]
        return getattr(self.collect(), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.collect())

    def __contains__(self, name: Any) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return self._origin.length if self._mask is None else int(compute([self._mask])[0].sum())

    def __repr__(self) -> str:
        chosen = "" if self._mask is None else ", filtered"
        names = ", ".join(map(str, self._columns))
        return f"LazyTable({names}; {self._origin.length:,} rows of {self._origin.library}{chosen})"

    def assign(self, **columns: Any) -> "LazyTable":
        """The table with these columns too; a function is given the table.

        >>> import dovetail.frame as df
        >>> df.table({"x": [1, 2]}).assign(y=lambda t: t.x * 10).y.collect()
        array([10, 20])
        """
        found = dict(self._columns)
        for name, value in columns.items():
            given = value(LazyTable(self._origin, found, self._mask)) if callable(value) else value
            of_array = isinstance(given, numpy.ndarray) and given.ndim and self._mask is not None
            if is_expression(given):
                raise DovetailError(
                    f"the new column {name!r} must be made of values or of the table's columns, got the expression "
                    f"{given}; write it with the table's columns (t.x * 2), or add it to the library's table first."
                )
            if isinstance(given, LazyColumn) and self._may_have(given):
                found[name] = given._content
            elif (
                isinstance(given, int | float | numpy.ndarray)
                and not of_array
                and is_native(numpy.asarray(given).dtype)
                and (numpy.shape(given) in ((), (self._origin.length,)))
            ):
                node = input_node(numpy.broadcast_to(numpy.asarray(given), (self._origin.length,)))
                found[name] = LazyArray(node, compute=compute)
            elif self._mask is not None:
                here = table(LazyTable(self._origin, found, self._mask).collect())
                left = list(columns.items())[list(columns).index(name) :]
                return here.assign(**{name: self._chosen_rows(value) for name, value in left})
            else:
                found[name] = _content_of(self._make_column(name, given), self._origin.library)
        return LazyTable(self._origin, found, self._mask)

    def _make_column(self, name: str, value: Any) -> Any:
        """As the library makes a column of a value."""
        library, length = self._origin.library, self._origin.length
        if library == "pandas":
            return _as_column(value, self._origin.data.index)
        found = make_column(_collect(value), library, length)
        if len(found) != length:
            raise DovetailError(f"the new column {name!r} must have {length:,} rows as its table, got {len(found):,}.")
        return found

    def _chosen_rows(self, value: Any) -> Any:
        """A column of more rows than this table's with those that are, any other value as it is."""
        own = isinstance(value, LazyColumn) and self._may_have(value)
        return _collect(LazyColumn(self, value._content)) if own else value

    def _may_have(self, column: LazyColumn) -> bool:
        """Whether it has all rows of this table, among others perhaps."""
        mask = column._table._mask
        return column._origin is self._origin and (mask is None or _same_rows(mask, self._mask))

    def groupby(self, by: str | list[str], **options: Any) -> Any:
        """Groups of rows with the same keys: `sum`, `mean` and `count` are one loop over the table."""
        names = [self._name_of(each) for each in _as_list(by)]
        known = not options and all(name is not None for name in names)
        keys = [self._key(name) for name in names] if known else [None]
        if any(key is None for key in keys):
            given = [each if name is None else name for each, name in zip(_as_list(by), names, strict=True)]
            found = _collect(given if isinstance(by, list) else given[0])
            return groups_of(self.collect(), self._origin.library, found, **options)
        return GroupedTable(self, keys)  # type: ignore[arg-type]

    def _name_of(self, key: Any) -> Any:
        """The name of a key that is a column of this table, by name or itself; None of another."""
        if isinstance(key, LazyColumn):
            own = [name for name, content in self._columns.items() if content is key._content]
            return own[0] if own and self._may_have(key) else None
        return key if isinstance(key, str | int) and key in self._columns else None

    def collect(self) -> Any:
        """Compute everything: a table of the library that this came from.

        >>> import pandas, dovetail.frame as df
        >>> t = df.table(pandas.DataFrame({"x": [1, 2, 3]}))
        >>> t[t.x > 1].collect()
           x
        1  2
        2  3
        """
        rows = self._rows()
        lazies = {name: value for name, value in self._columns.items() if isinstance(value, LazyArray)}
        arrays = dict(zip(lazies, compute([value._node for value in lazies.values()]), strict=True))
        found = {
            name: (arrays[name] if rows is None else arrays[name][rows])
            if name in arrays
            else _other_rows(value, self._origin.library, rows)
            for name, value in self._columns.items()
        }
        index = None
        if self._origin.library == "pandas":
            index = self._origin.data.index if rows is None else self._origin.data.index[rows]
        made = make_table(found, self._origin.library, index=index)
        if self._origin.library == "pandas" and list(made.columns) == list(self._origin.data.columns):
            made.columns = self._origin.data.columns  # with its name and type
        return made

    def _rows(self) -> numpy.ndarray | None:
        return None if self._mask is None else numpy.flatnonzero(compute([self._mask])[0])

    def _as_library(self, column: LazyColumn) -> Any:
        """A column as the library's own, for what only that knows."""
        return LazyTable(self._origin, {"column": column._content}, self._mask).collect()["column"]

    def _key(self, name: str) -> GroupKey | None:
        content = self._columns[name]
        if str(getattr(content, "dtype", "")) == "category":
            return None  # whose order is its own, and whose groups may have no rows
        if isinstance(content, LazyArray):
            if content.dtype.kind in "iub":
                found = whole_number_key(name, content._node)
                if found is not None:
                    return found
            if content.dtype.kind == "f" and self._origin.library == "pandas":
                return None
            codes, labels = numpy.unique(compute([content._node])[0], return_inverse=True)[::-1]
            return numbered_key(name, codes, labels)
        numbered = LazyColumn(self, content)._numbered()
        if numbered is None and self._origin.library in ("polars", "pyarrow"):
            return _key_with_null(name, content.to_list() if self._origin.library == "polars" else content.to_pylist())
        return None if numbered is None else numbered_key(name, *numbered)


_EQUALITIES = {numpy.equal: operator.eq, numpy.not_equal: operator.ne}


def _as_list(by: Any) -> list[Any]:
    return by if isinstance(by, list) else [by]


def _collect(value: Any) -> Any:
    """The same with columns that are computed: pandas' own, which know which row is which, or arrays."""
    if isinstance(value, LazyColumn):
        return value._table._as_library(value) if value._origin.library == "pandas" else value.collect()
    if type(value) in (list, tuple):
        return type(value)(map(_collect, value))
    return {name: _collect(each) for name, each in value.items()} if type(value) is dict else value


def _all_rows(column: LazyColumn) -> Any:
    """A column as the library's own, of all rows that the table came with."""
    return LazyTable(column._origin, {"column": column._content}).collect()["column"]


def _same_rows(one: FrameNode | None, other: FrameNode | None) -> bool:
    """Whether two filters are the same condition."""
    if one is None or other is None:
        return one is other
    first, second = merge_equal([one, other])
    return first is second


def _key_with_null(name: str, values: list[Any]) -> GroupKey:
    """A key of which some values are missing: these are the last group, as Polars and Arrow have one for them."""
    labels = [*sorted({each for each in values if each is not None}), None]
    numbers = {label: number for number, label in enumerate(labels)}
    return GroupKey(name, input_node(numpy.array([numbers[each] for each in values], "int32")), labels, "hash table")


def _as_column(value: Any, index: Any) -> Any:
    """As pandas makes a column of a value, for rows of this index."""
    import pandas

    return pandas.DataFrame(index=index).assign(column=_collect(value))["column"]


def _content_of(column: Any, library: str) -> Any:
    """A library's column as loops hold it, or itself where they do not."""
    array = numbers_of(column, library)
    return column if array is None else LazyArray(input_node(array), compute=compute)


def table(data: Any) -> LazyTable:
    """A lazy table over one of pandas, Polars or Arrow, or over a dict of columns; nothing is copied.

    >>> import dovetail.frame as df
    >>> t = df.table({"city": ["A", "B"], "people": [600_000, 5]})
    >>> t[t.people > 500_000].collect()
    {'city': array(['A'], dtype='<U1'), 'people': array([600000])}
    """
    origin = TableOrigin(data)
    return LazyTable(origin, {name: _content_of(each, origin.library) for name, each in origin.columns.items()})
