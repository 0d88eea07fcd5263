"""The frequent combinations of attribute values of a stream, of any order up to a given one, with decay.

Combinations of a set of attributes are counted where the set without its last attribute is frequent, for only then can
they be: a batch's rows carry the slot of their combination so far, and with the slot of the next attribute's value that
is one number, small enough to count by address. So every set of attributes costs about the same few nanoseconds an
event, whatever its order, and holds a fixed number of slots.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.watch.columns import FactorizedColumn, factorize
from dovetail.watch.streams.slot_table import SlotTable

# Counting by address pays while there are not many more addresses than rows.
ADDRESSES_PER_ROW = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrequentCombination:
    """Attribute values, the decayed number of events that have them and of outliers among those, and how many events
    may be `missed` at most from before they were frequent."""

    values: dict[str, Any]
    events: float
    outliers: float
    missed: float


class HeavyHitters:
    """Frequent values of each attribute, and frequent combinations of up to `order` attributes.

    An outlier weighs as much as 1 / `outlier_share` events when it is decided who stays, so that what is frequent among
    outliers is counted even where it is rare among all.

    >>> hitters = HeavyHitters(["region", "version"], capacity=100, order=2)
    >>> hitters.update([np.array(["eu", "eu", "us"]), np.array([1, 1, 2])])
    >>> [(each.values, each.events) for each in hitters.combinations() if len(each.values) == 2]
    [({'region': 'eu', 'version': 1}, 2.0), ({'region': 'us', 'version': 2}, 1.0)]
    """

    def __init__(
        self,
        attributes: Sequence[str],
        *,
        capacity: int,
        order: int,
        half_life: float = float("inf"),
        outlier_share: float = 0.01,
    ) -> None:
        self._attributes, self._half_life, self._outlier_weight = tuple(attributes), half_life, 1.0 / outlier_share
        self._values = [ValueTable(name, capacity=capacity) for name in attributes]
        self._combinations = {
            subset: CombinationTable(capacity=capacity)
            for size in range(2, min(order, len(attributes)) + 1)
            for subset in itertools.combinations(range(len(attributes)), size)
        }
        self.events, self.outliers = 0.0, 0.0

    def update(self, columns: Sequence[Any], outliers: np.ndarray | None = None) -> None:
        """Count a batch: one column for each attribute, and which rows are outliers."""
        self.count(self.factorize(columns), outliers)

    def factorize(self, columns: Sequence[Any]) -> list[FactorizedColumn]:
        """What `count` takes of a column for each attribute; values that cannot be are refused, and nothing changes."""
        return [
            factorize(column, table.name, kind=table.kind) for table, column in zip(self._values, columns, strict=True)
        ]

    def count(self, columns: Sequence[FactorizedColumn], outliers: np.ndarray | None = None) -> None:
        """Count a batch that was factorized."""
        count = len(columns[0].places) if columns else 0
        unusual = np.flatnonzero(outliers) if outliers is not None else np.empty(0, dtype=np.intp)
        self._decay(0.5 ** (count / self._half_life))
        self.events, self.outliers = self.events + count, self.outliers + len(unusual)
        coded: dict[tuple[int, ...], CodedRows] = {
            (number,): table.update(column, unusual, self._outlier_weight)
            for number, (table, column) in enumerate(zip(self._values, columns, strict=True))
        }
        for subset, table in self._combinations.items():
            coded[subset] = table.update(
                coded[subset[:-1]],
                coded[subset[-1:]],
                unusual,
                self._outlier_weight,
                is_extended=(*subset, len(self._values) - 1) in self._combinations,
            )

    def _decay(self, factor: float) -> None:
        if factor < 1.0:
            self.events, self.outliers = self.events * factor, self.outliers * factor
            for table in self._tables():
                table.slots.decay(factor)

    def combinations(self) -> list[FrequentCombination]:
        """All that are counted, by order, the most frequent first."""
        found = [
            self._frequent(subset, int(slot))
            for subset in [(number,) for number in range(len(self._values))] + list(self._combinations)
            for slot in self._table(subset).slots.held()
        ]
        return sorted(found, key=lambda each: (len(each.values), -each.events, str(each.values)))

    def nulls(self) -> dict[str, int]:
        """How many events had no value of an attribute, where any had none; they are in no combination of it."""
        return {table.name: table.nulls for table in self._values if table.nulls}

    def without_frequent_values(self) -> list[str]:
        """Attributes of which values came, more than are kept, and none of them is frequent: no use to count."""
        return [table.name for table in self._values if table.slots.taken and not len(table.slots.held())]

    def _tables(self) -> "list[ValueTable | CombinationTable]":
        return [*self._values, *self._combinations.values()]

    def _table(self, subset: tuple[int, ...]) -> "ValueTable | CombinationTable":
        return self._values[subset[0]] if len(subset) == 1 else self._combinations[subset]

    def _frequent(self, subset: tuple[int, ...], slot: int) -> FrequentCombination:
        slots = self._table(subset).slots
        events, outliers = slots.tallies[slot].tolist()
        return FrequentCombination(
            values=self._named(subset, slot), events=events, outliers=outliers, missed=float(slots.missed[slot])
        )

    def _named(self, subset: tuple[int, ...], slot: int) -> dict[str, Any]:
        if len(subset) == 1:
            return {self._attributes[subset[0]]: self._values[subset[0]].of_slot[slot]}
        table = self._combinations[subset]
        before, last = int(table.before[slot]), int(table.last[slot])
        return self._named(subset[:-1], before) | self._named(subset[-1:], last)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        tables = [table.state() for table in self._tables()]
        return {"events": self.events, "outliers": self.outliers, "tables": tables}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.events, self.outliers = state["events"], state["outliers"]
        for table, saved in zip(self._tables(), state["tables"], strict=True):
            table.restore(saved)


@dataclasses.dataclass(frozen=True, slots=True)
class CodedRows:
    """The slot of each row, those slots whose items are forgotten, and the table that they are of."""

    codes: np.ndarray
    freed: np.ndarray
    slots: SlotTable


class ValueTable:
    """The frequent values of one attribute."""

    def __init__(self, name: str, *, capacity: int) -> None:
        self.name, self.slots = name, SlotTable(capacity=capacity)
        self.nulls = 0
        self.of_slot: list[Any] = [None] * (capacity + 1)
        self._slot_of: dict[Any, int] = {}
        self.kind = ""

    def update(self, column: FactorizedColumn, unusual: np.ndarray, outlier_weight: float) -> CodedRows:
        """Count a batch of values; rows of nulls and of values that are not frequent have slot 0."""
        places, distinct, self.kind = column.places, column.distinct, column.kind
        events = np.bincount(places + 1, minlength=len(distinct) + 1)
        outliers = np.bincount(places[unusual] + 1, minlength=len(distinct) + 1)
        self.nulls += int(events[0])
        known = np.fromiter(map(self._slot_of.get, distinct, itertools.repeat(0)), dtype=np.intp, count=len(distinct))
        weights = events[1:] + (outlier_weight - 1.0) * outliers[1:]
        slots, freed = self.slots.merge(known, weights=weights, events=events[1:], outliers=outliers[1:])
        for slot in freed.tolist():
            del self._slot_of[self.of_slot[slot]]
        for place in np.flatnonzero((slots > 0) & (slots != known)).tolist():
            self.of_slot[slots[place]] = distinct[place]
            self._slot_of[distinct[place]] = int(slots[place])
        return CodedRows(np.concatenate([[0], slots])[places + 1], freed, self.slots)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"slots": self.slots.state(), "nulls": self.nulls, "of_slot": self.of_slot, "kind": self.kind}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.slots.restore(state["slots"])
        self.nulls, self.of_slot, self.kind = state["nulls"], state["of_slot"], state["kind"]
        self._slot_of = {self.of_slot[slot]: slot for slot in self.slots.held().tolist()}


class CombinationTable:
    """The frequent combinations of one set of attributes: for each slot the slot of the combination `before` its last
    attribute, and of the `last` one's value."""

    def __init__(self, *, capacity: int) -> None:
        self.slots = SlotTable(capacity=capacity)
        self.before, self.last = np.zeros(capacity + 1, dtype=np.intp), np.zeros(capacity + 1, dtype=np.intp)

    def update(
        self, before: CodedRows, last: CodedRows, unusual: np.ndarray, outlier_weight: float, *, is_extended: bool
    ) -> CodedRows:
        """Count a batch whose rows have these slots before the last attribute, and of the last one. Rows are only coded
        where the set `is_extended` by another attribute."""
        dropped = self._drop(before.freed, last.freed)
        width = last.slots.top() + 1
        counted = count_pairs(before.codes, last.codes, (before.slots.top() + 1, width), unusual)
        known = self._known(counted.keys, width)
        weights = counted.events + (outlier_weight - 1.0) * counted.outliers
        slots, freed = self.slots.merge(known, weights=weights, events=counted.events, outliers=counted.outliers)
        entered = np.flatnonzero((slots > 0) & (slots != known))
        first, second = np.divmod(counted.keys[entered], width)
        self.before[slots[entered]], self.last[slots[entered]] = first, second
        self.slots.missed[slots[entered]] += before.slots.missed[first] + last.slots.missed[second]
        codes = counted.spread(slots) if is_extended else slots[:0]
        return CodedRows(codes, np.union1d(dropped, freed), self.slots)

    def _drop(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        held = self.slots.held()
        gone = held[np.isin(self.before[held], before) | np.isin(self.last[held], last)]
        self.slots.free(gone)
        return gone

    def _known(self, keys: np.ndarray, width: int) -> np.ndarray:
        """The slots of the combinations of these keys, which ascend; 0 where they have none."""
        held = self.slots.held()
        mine = self.before[held] * width + self.last[held]
        places = np.searchsorted(keys, mine)
        came = np.flatnonzero(np.append(keys, -1)[places] == mine)
        slots = np.zeros(len(keys), dtype=np.intp)
        slots[places[came]] = held[came]
        return slots

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"slots": self.slots.state(), "before": self.before, "last": self.last}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.slots.restore(state["slots"])
        self.before, self.last = state["before"], state["last"]


@dataclasses.dataclass(frozen=True, slots=True)
class CountedPairs:
    """Distinct pairs of codes as ascending keys (first × width + second), the rows of each, and the outliers among
    them; `spread` gives every row the value of its key, 0 where it has none."""

    keys: np.ndarray
    events: np.ndarray
    outliers: np.ndarray
    spread: Callable[[np.ndarray], np.ndarray]


def count_pairs(first: np.ndarray, second: np.ndarray, shape: tuple[int, int], unusual: np.ndarray) -> CountedPairs:
    """Count rows by two codes below `shape`; rows in which one is 0 count nowhere.

    >>> found = count_pairs(np.array([1, 2, 1, 0]), np.array([1, 1, 1, 1]), (3, 2), np.array([2]))
    >>> found.keys, found.events, found.outliers, found.spread(np.array([7, 8]))
    (array([3, 5]), array([2, 1]), array([1, 0]), array([7, 8, 7, 0]))
    """
    rows, addresses = first * shape[1] + second, shape[0] * shape[1]
    if addresses > ADDRESSES_PER_ROW * len(rows):
        return _count_sorted(rows, shape[1], unusual)
    events, outliers = np.bincount(rows, minlength=addresses), np.bincount(rows[unusual], minlength=addresses)
    by_pair = events.reshape(shape)
    by_pair[0, :] = by_pair[:, 0] = 0
    keys = np.flatnonzero(events)

    def spread(values: np.ndarray) -> np.ndarray:
        by_address = np.zeros(addresses, dtype=values.dtype)
        by_address[keys] = values
        return np.asarray(by_address[rows])

    return CountedPairs(keys, events[keys], outliers[keys], spread)


def _count_sorted(rows: np.ndarray, width: int, unusual: np.ndarray) -> CountedPairs:
    """The same by sorting, where addresses would be many more than rows."""
    keys, places, events = np.unique(rows, return_inverse=True, return_counts=True)
    outliers = np.bincount(places[unusual], minlength=len(keys))
    real = np.flatnonzero((keys >= width) & (keys % width > 0))

    def spread(values: np.ndarray) -> np.ndarray:
        of_key = np.zeros(len(keys), dtype=values.dtype)
        of_key[real] = values
        return np.asarray(of_key[places])

    return CountedPairs(keys[real], events[real], outliers[real], spread)
