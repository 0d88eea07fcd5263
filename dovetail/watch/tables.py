"""Tables of others: pandas, Polars, Arrow, DuckDB and plain columns come in, and answers go out as the same kind.

Everything but pandas and plain columns is read through Arrow. Columns are read when they are asked for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.native.text_codes import code_text
from dovetail.vocabulary import DovetailError
from dovetail.watch.codes import Attribute, encode_integers, encode_objects, encode_range, narrow

if TYPE_CHECKING:
    import numpy as np

Rows = Mapping[str, Sequence[Any]]


class TableReader:
    """A table as columns of codes and of numbers.

    >>> table = TableReader({"norm": ["none", "layer"], "rate": [0.1, 0.2]})
    >>> table.rows, table.names, table.encode("norm").values
    (2, ['norm', 'rate'], ['none', 'layer'])
    """

    def __init__(self, table: Any) -> None:
        self.kind = _kind_of(table)
        self._came = table
        self._table = _ARROW[self.kind](table) if self.kind in _ARROW else table
        self._given = {str(name): name for name in _names(self._table)}  # pandas may name columns by numbers
        names = [str(name) for name in _names(self._table)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DovetailError(
                f"the columns of a table must have different names; {twice[0]!r} is there {names.count(twice[0])} "
                f"times. Rename or drop all but one."
            )
        self.names = names
        self.rows = _length(self._table)

    def columns(self, names: Iterable[str]) -> dict[str, Any]:
        """The columns of these names as arrays of NumPy or pandas.

        >>> TableReader({"latency": [0.5, 0.7], "region": ["eu", "us"]}).columns(["region"])["region"].tolist()
        ['eu', 'us']
        """
        from dovetail.watch.columns import to_array

        names = list(names)
        if strange := [name for name in names if name not in self.names]:
            raise DovetailError(f"the table must have the columns {names}; {strange} are not among its {self.names}.")
        return {name: to_array(self._table[self._given[name]]) for name in names}

    def encode(self, name: str, *, as_range: bool | None = None) -> Attribute:
        """A column's codes: bins of a measure with `as_range`, which is so for floats where nobody says."""
        column = self._table[self._given[name]]
        if self.kind == "columns":
            return _encode_plain(name, column, as_range)
        return (_encode_pandas if self.kind == "pandas" else _encode_arrow)(name, column, as_range)

    def numbers(self, name: str) -> Any:
        """A column as an array: of floats where it has numbers, what is missing as NaN; else of objects."""
        import numpy as np

        column = self._table[self._given[name]]
        if self.kind == "columns":
            return _array(column)
        if self.kind == "pandas":
            kind = getattr(column.dtype, "kind", "O")
            return column.to_numpy(dtype=float, na_value=np.nan) if kind in "iufb" else column.to_numpy(dtype=object)
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if is_number or pa.types.is_boolean(column.type) or pa.types.is_decimal(column.type):
            return column.cast(pa.float64(), safe=False).to_numpy()  # whole numbers may be beyond 2**53
        return np.array(column.to_pylist(), dtype=object)

    def build(self, rows: Rows) -> Any:
        """A table of the kind that came in, with these columns."""
        return _BUILD[self.kind](rows, self._came)


def _kind_of(table: Any) -> str:
    root = type(table).__module__.partition(".")[0].lstrip("_")
    if root in ("pandas", "polars", "pyarrow", "duckdb") and hasattr(type(table), "columns"):
        return root
    if isinstance(table, Mapping):
        return "columns"
    raise DovetailError(
        f"a table must be a DataFrame of pandas or Polars, an Arrow table, a DuckDB relation, or columns by name, got "
        f"{type(table).__name__}."
    )


def _polars_to_arrow(table: Any) -> Any:
    return (table.collect() if hasattr(table, "collect") else table).to_arrow()


def _duckdb_to_arrow(table: Any) -> Any:
    return table.to_arrow_table() if hasattr(table, "to_arrow_table") else table.fetch_arrow_table()


def _pyarrow_to_arrow(table: Any) -> Any:
    import pyarrow as pa

    return table if isinstance(table, pa.Table) else pa.table(table)


_ARROW: dict[str, Callable[[Any], Any]] = {
    "polars": _polars_to_arrow,
    "duckdb": _duckdb_to_arrow,
    "pyarrow": _pyarrow_to_arrow,
}


def _names(table: Any) -> Any:
    return table if isinstance(table, Mapping) else getattr(table, "column_names", None) or list(table.columns)


def _length(table: Any) -> int:
    if not isinstance(table, Mapping):
        return len(table)
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise DovetailError(f"the columns of a table must be of one length, got {lengths}.")
    return next(iter(lengths.values()), 0)


def _array(column: Any) -> "np.ndarray":
    """A plain column as floats where every value is a number or missing; else as objects."""
    import numpy as np

    if isinstance(column, np.ndarray):
        return column.astype(float) if column.dtype.kind in "iufb" else column
    if all(value is None or isinstance(value, int | float) for value in column):
        return np.array([np.nan if value is None else value for value in column], dtype=float)
    return np.array(column, dtype=object)


def _encode_numbers(name: str, values: "np.ndarray", as_range: bool | None) -> Attribute | None:
    """Codes of an array without missing values but NaN; None where it must go through a dictionary."""
    if as_range if as_range is not None else values.dtype.kind == "f":
        return encode_range(name, values.astype(float, copy=False))
    return encode_integers(name, values) if values.dtype.kind in "iu" and len(values) else None


def _encode_plain(name: str, column: Any, as_range: bool | None) -> Attribute:
    import numpy as np

    if isinstance(column, np.ndarray):
        return _encode_numbers(name, column, as_range) or _encode_unique(name, column)
    found = _array(column)
    has_floats = any(isinstance(value, float) for value in column)
    if found.dtype.kind == "f" and (as_range if as_range is not None else has_floats):
        return encode_range(name, found)
    return encode_objects(name, column)


def _encode_unique(name: str, column: "np.ndarray") -> Attribute:
    import numpy as np

    if column.dtype.kind == "O":
        return _encode_text(name, column) or encode_objects(name, column.tolist())
    values, codes = np.unique(column, return_inverse=True)
    return Attribute(name, narrow(codes, len(values)), values.tolist())


def _encode_pandas(name: str, column: Any, as_range: bool | None) -> Attribute:
    import pandas as pd

    kind = getattr(column.dtype, "kind", "O")
    is_number = kind in "iuf" and not isinstance(column.dtype, pd.CategoricalDtype)
    if is_number and (as_range if as_range is not None else kind == "f"):
        return encode_range(name, column.to_numpy(dtype=float, na_value=float("nan")))
    if is_number and not column.hasnans and len(column) and (found := encode_integers(name, column.to_numpy())):
        return found
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _with_missing(name, column.array.codes, column.array.categories.tolist())
    if column.dtype == object:  # types may be mixed, and True equal 1
        return _encode_text(name, column.to_numpy()) or encode_objects(name, column.tolist())
    if found := _encode_text(name, column.array):
        return found
    codes, values = pd.factorize(column)
    return _with_missing(name, codes, list(values))


def _encode_text(name: str, column: Any) -> Attribute | None:
    found = code_text(column)
    return None if found is None else _with_missing(name, *found)


def _encode_arrow(name: str, column: Any, as_range: bool | None) -> Attribute:
    import pyarrow as pa

    is_float, is_integer = pa.types.is_floating(column.type), pa.types.is_integer(column.type)
    if (is_float or is_integer) and (as_range if as_range is not None else is_float):
        return encode_range(name, column.cast(pa.float64(), safe=False).to_numpy())
    if is_integer and not column.null_count and len(column) and (found := encode_integers(name, column.to_numpy())):
        return found
    if found := _encode_text(name, column):
        return found
    if pa.types.is_null(column.type):  # a column without any value, which has no dictionary
        return encode_objects(name, [None] * len(column))
    if pa.types.is_nested(column.type):  # nor have lists and structs
        return encode_objects(name, column.to_pylist())
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    one = encoded.combine_chunks() if hasattr(encoded, "chunks") else encoded
    if isinstance(one, pa.ChunkedArray):
        one = one.unify_dictionaries().chunk(0) if one.num_chunks else pa.array([], one.type)
    indices = one.indices.cast(pa.int64())  # Polars' have no sign
    codes = indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return _with_missing(name, codes, one.dictionary.to_pylist(), nulls=indices.null_count)


def _with_missing(name: str, codes: "np.ndarray", values: list[Any], *, nulls: int | None = None) -> Attribute:
    """Codes in which a negative one is a missing value."""
    if not (codes.min(initial=0) < 0 if nulls is None else nulls):
        return Attribute(name, narrow(codes, len(values)), values)
    import numpy as np

    return Attribute(name, narrow(np.where(codes < 0, len(values), codes), len(values) + 1), [*values, None])


def _build_pandas(rows: Rows, _: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(dict(rows))


def _build_polars(rows: Rows, _: Any) -> Any:
    import polars as pl

    return pl.from_arrow(_build_arrow(rows, None))


def _build_arrow(rows: Rows, _: Any) -> Any:
    import pyarrow as pa

    # A column without a value would have no type.
    types = {name: pa.string() for name, values in rows.items() if all(value is None for value in values)}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in rows.items()})


def _build_duckdb(rows: Rows, relation: Any) -> Any:
    """On the relation's own connection, so that both can be in one query. DuckDB finds the table by its variable, and
    holds it as long as what is made of it."""
    dovetail_answer = _build_arrow(rows, None)
    found = relation.query("dovetail_rows", "SELECT * FROM dovetail_answer")
    del dovetail_answer
    return found


_BUILD: dict[str, Callable[[Rows, Any], Any]] = {
    "pandas": _build_pandas,
    "polars": _build_polars,
    "pyarrow": _build_arrow,
    "duckdb": _build_duckdb,
    "columns": lambda rows, _: dict(rows),
}
