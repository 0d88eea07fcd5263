"""Groups of tables of Polars, Arrow and dicts as pandas has them: the table goes to pandas, and what that gives comes
back as a table of the library that it was of, with the types that it had.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from dovetail.vocabulary import DovetailError


def groups_of(data: Any, library: str, by: Any, **options: Any) -> Any:
    """A table's groups as pandas has them."""
    if library == "pandas":
        return data.groupby(by, **options)
    table = to_pandas(data, library)
    taken = list(table.columns)
    keys = [_named_key(key, library, taken) for key in (by if isinstance(by, list) else [by])]
    # Those libraries have a group of the rows without a key.
    options = {"dropna": False, **options}
    return GroupsThroughPandas(table.groupby(keys if isinstance(by, list) else keys[0], **options), library)


class GroupsThroughPandas:
    """Groups of another library's table, by pandas; tables that they give are that library's."""

    def __init__(self, groups: Any, library: str) -> None:
        self._groups, self._library = groups, library

    def __getitem__(self, names: Any) -> "GroupsThroughPandas":
        return GroupsThroughPandas(self._groups[names], self._library)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, from_pandas(rows, self._library)) for key, rows in self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._groups, name)
        if not callable(found):
            return GroupsThroughPandas(found, self._library) if hasattr(found, "agg") else found
        return lambda *args, **options: from_pandas(found(*args, **options), self._library, unnamed=name)


def to_pandas(data: Any, library: str) -> Any:
    """The same table as pandas has it, with the library's own types: whole numbers of which some are missing would be
    floats in pandas'."""
    try:
        import pandas
    except ImportError:
        raise DovetailError(
            "groups other than sums, means and counts are made by pandas: pip install pandas."
        ) from None
    if library == "dict":
        return pandas.DataFrame(data)
    if library == "polars":
        return data.to_pandas(use_pyarrow_extension_array=True)
    return data.to_pandas(types_mapper=pandas.ArrowDtype)


def _named_key(key: Any, library: str, taken: list[Any]) -> Any:
    """A key, and where it is an array, one with a name that no other has: one without is left out as it comes back."""
    import pandas

    if not (hasattr(key, "dtype") or hasattr(key, "to_pandas")) or numpy.ndim(key) == 0:
        return key
    taken.append(name := _free_name("key", taken))
    values = to_pandas(key, library) if hasattr(key, "to_pandas") else key
    return pandas.Series(getattr(values, "array", values), name=name)


def _free_name(name: Any, taken: Iterable[Any]) -> Any:
    """The name, or with a number that makes it another than those that are taken."""
    found, number, names = name, 1, set(taken)
    while found in names:
        number += 1
        found = f"{name}_{number}"
    return found


def from_pandas(found: Any, library: str, *, unnamed: str = "value") -> Any:
    """What pandas gave as another library has it: tables with their keys as columns, all else as it is."""
    import pandas

    if not isinstance(found, pandas.DataFrame | pandas.Series):
        return found
    keys = [name for name in found.index.names if name is not None]
    if isinstance(found, pandas.Series):
        found = found.to_frame(unnamed if found.name is None else found.name)
    names = ["_".join(str(part) for part in name if part != "") if isinstance(name, tuple) else name
             for name in found.columns]  # fmt: skip
    table = found.set_axis([_free_name(name, keys) for name in names], axis=1)
    table = table.reset_index() if keys else table
    if library == "dict":
        return {name: table[name].to_numpy() for name in table.columns}
    if library == "polars":
        import polars

        return polars.from_pandas(table)
    import pyarrow

    return pyarrow.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
