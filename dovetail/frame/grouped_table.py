"""Groups of a lazy table's rows: sums, means and counts are one loop, all else is asked of the library, or of pandas
where that has no groups as pandas has them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy

from dovetail.frame.group_by import GroupKey, GroupSums, label_array, sum_groups
from dovetail.frame.lazy_array import LazyArray
from dovetail.frame.nodes import FLOAT64, cast
from dovetail.frame.table_source import make_table
from dovetail.frame.through_pandas import groups_of

if TYPE_CHECKING:
    from dovetail.frame.lazy_table import LazyTable


class GroupedTable:
    """A table's rows in groups; what it gives has a row for each group that has any, in the order of the keys."""

    def __init__(self, table: "LazyTable", keys: list[GroupKey], chosen: list[str] | str | None = None) -> None:
        self._table, self._keys, self._chosen = table, keys, chosen

    def __getitem__(self, names: list[str] | str) -> "GroupedTable":
        return GroupedTable(self._table, self._keys, names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._by_library(), name)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._by_library())

    def __len__(self) -> int:
        return len(self._by_library())

    def _by_library(self) -> Any:
        by = [key.name for key in self._keys] if len(self._keys) > 1 else self._keys[0].name
        grouped = groups_of(self._table.collect(), self._table._origin.library, by)
        return grouped if self._chosen is None else grouped[self._chosen]

    def sum(self) -> Any:
        """Each column's sum in each group."""
        kept = self._table._origin.library == "pandas"  # which gives sums the type of what was added, where they fit
        kinds = [getattr(self._table._columns[name], "dtype", None) for name in self._names()]

        def total(found: GroupSums, place: int) -> numpy.ndarray:
            dtype = kinds[place]
            if not kept or dtype is None or dtype.kind not in "iu":
                return found.sums[place]
            alike = [sums for sums, kind in zip(found.sums, kinds, strict=True) if kind == dtype]
            fits = all((sums.astype(dtype) == sums).all() for sums in alike)
            return found.sums[place].astype(dtype) if fits else found.sums[place]

        return self._compute("sum", total)

    def mean(self) -> Any:
        """Each column's mean in each group."""

        def kind(place: int) -> numpy.dtype:
            dtype: numpy.dtype = self._table._columns[self._names()[place]].dtype
            return dtype if dtype.kind == "f" else FLOAT64

        def mean(found: GroupSums, place: int) -> numpy.ndarray:
            with numpy.errstate(all="ignore"):
                share: numpy.ndarray = numpy.true_divide(found.sums[place], found.counts[place], dtype="f8")
                return share.astype(kind(place))

        return self._compute("mean", mean, floats=True)

    def count(self) -> Any:
        """How many values of each column each group has."""
        return self._compute("count", lambda found, place: found.counts[place])

    def _names(self) -> list[str]:
        keys = {key.name for key in self._keys}
        if self._chosen is not None:
            return self._chosen if isinstance(self._chosen, list) else [self._chosen]
        return [name for name in self._table.columns if name not in keys]

    def _compute(self, method: str, column: Any, *, floats: bool = False) -> Any:
        names = self._names()
        contents = [self._table._columns[name] for name in names]
        if not all(isinstance(content, LazyArray) for content in contents):
            return self.__getattr__(method)()
        nodes = [content._node for content in contents]
        nodes = [cast(node, FLOAT64) if floats and node.dtype.kind != "f" else node for node in nodes]
        found = sum_groups(self._keys, self._table._mask, nodes)
        if found is None:
            return self.__getattr__(method)()
        labels = self._labels(found.groups)
        columns = {name: column(found, place) for place, name in enumerate(names)}
        library = self._table._origin.library
        if library != "pandas":
            return make_table(labels | columns, library)
        import pandas

        kind = pandas.MultiIndex.from_arrays(list(labels.values()), names=list(labels)) if len(labels) > 1 else None
        index = pandas.Index(next(iter(labels.values())), name=next(iter(labels))) if kind is None else kind
        made = make_table(columns, library, index=index)
        return made if self._chosen is None or isinstance(self._chosen, list) else made[self._chosen]

    def _labels(self, groups: numpy.ndarray) -> dict[str, Any]:
        """Each group's keys, from its number."""
        found: dict[str, Any] = {}
        for key in reversed(self._keys):
            groups, number = numpy.divmod(groups, key.count())
            null = isinstance(key.labels, list) and key.labels[-1:] == [None]  # which no array holds
            found[key.name] = [key.labels[each] for each in number] if null else label_array(key.labels)[number]
        return dict(reversed(found.items()))
