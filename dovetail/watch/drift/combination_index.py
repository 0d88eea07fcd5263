"""All combinations of attribute values that are frequent enough to be compared, and which of them each row has.

Made once from rows that are there; rows that come later are looked up in it. Sets of attributes are extended one by one
as in `streams/heavy_hitters`: only what is frequent without its last attribute can be frequent with it.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np

from dovetail.watch.columns import FactorizedColumn, factorize

NEW_VALUE = "(new)"
"""What stands for a value that the reference does not have."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Level:
    """The combinations of one set of attributes: ascending keys (combination before × width + value), numbered from
    `start` in the whole index."""

    width: int
    keys: np.ndarray
    start: int

    def codes(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        rows = before * self.width + last
        if not len(self.keys):
            return np.zeros_like(rows)
        places = np.minimum(np.searchsorted(self.keys, rows), len(self.keys) - 1)
        return np.where((self.keys[places] == rows) & (before > 0) & (last > 0), places + 1, 0)


class CombinationIndex:
    """Combinations of up to `order` attributes that at least `least_rows` of the rows have. Number 0 is all rows.

    >>> index = CombinationIndex({"region": np.array(["eu", "us", "eu", "eu"])}, order=2, least_rows=2)
    >>> index.values(1), index.values(2), index.numbers({"region": np.array(["us", "eu", "asia"])}).tolist()
    ({'region': '(new)'}, {'region': 'eu'}, [[0, 0], [0, 2], [0, 1]])
    """

    def __init__(self, columns: dict[str, Any], *, order: int, least_rows: int) -> None:
        self.names = list(columns)
        found = [factorize(column, name) for name, column in columns.items()]
        self._kinds = [each.kind for each in found]
        self._values: list[list[Any]] = []
        self._code_of: list[dict[Any, int]] = []
        coded: dict[tuple[int, ...], np.ndarray] = {}
        for number, each in enumerate(found):
            coded[(number,)] = self._choose_values(each, least_rows)
        self._levels: dict[tuple[int, ...], _Level] = {}
        self.count = 1
        for size in range(1, min(order, len(found)) + 1):
            for subset in itertools.combinations(range(len(found)), size):
                self._add_level(subset, coded, least_rows)

    def _choose_values(self, column: FactorizedColumn, least_rows: int) -> np.ndarray:
        """Codes from 2 on for frequent values, null among them, 1 for values that are new later, 0 for rare ones."""
        values = [*column.distinct, None]
        frequent = np.flatnonzero(np.bincount(column.places % len(values), minlength=len(values)) >= least_rows)
        self._values.append([None, NEW_VALUE, *(values[place] for place in frequent)])
        codes = np.zeros(len(values), dtype=np.intp)
        codes[frequent] = np.arange(2, len(frequent) + 2)
        self._code_of.append(dict(zip(values, codes.tolist(), strict=True)))
        return np.asarray(codes[column.places])  # -1, a null, is the last

    def _add_level(self, subset: tuple[int, ...], coded: dict[tuple[int, ...], np.ndarray], least_rows: int) -> None:
        last = coded[subset[-1:]]
        before = coded[subset[:-1]] if len(subset) > 1 else np.ones_like(last)
        width = len(self._values[subset[-1]])
        keys, counts = np.unique(before * width + last, return_counts=True)
        keys = keys[(counts >= least_rows) & (keys >= width) & (keys % width > 0)]
        if len(subset) == 1:  # nobody has a new value yet, and somebody may
            keys = np.union1d(keys, [width + 1])
        level = self._levels[subset] = _Level(width, keys, self.count)
        self.count += len(keys)
        if len(subset) > 1:
            coded[subset] = level.codes(before, last)

    def numbers(self, columns: dict[str, Any]) -> np.ndarray:
        """For every row and set of attributes the number of its combination, 0 (all rows) where that is not frequent;
        the first column is 0: all rows."""
        coded: dict[tuple[int, ...], np.ndarray] = {}
        for number, name in enumerate(self.names):
            coded[(number,)] = self._look_up(number, columns[name])
        rows = len(next(iter(columns.values())))
        found = np.zeros((rows, len(self._levels) + 1), dtype=np.int32, order="F")
        for place, (subset, level) in enumerate(self._levels.items(), start=1):
            last = coded[subset[-1:]]
            before = coded[subset[:-1]] if len(subset) > 1 else np.ones_like(last)
            codes = level.codes(before, last)
            if len(subset) > 1:
                coded[subset] = codes
            found[:, place] = np.where(codes > 0, codes - 1 + level.start, 0)
        return found

    def _look_up(self, number: int, column: Any) -> np.ndarray:
        each = factorize(column, self.names[number], kind=self._kinds[number])
        codes = [self._code_of[number].get(value, 1) for value in [*each.distinct, None]]
        return np.asarray(np.array(codes, dtype=np.intp)[each.places])

    def state(self) -> dict[str, Any]:
        """What `restored` takes."""
        levels = [[subset, level.width, level.keys, level.start] for subset, level in self._levels.items()]
        codes = [[list(each), list(each.values())] for each in self._code_of]
        return {"names": self.names, "kinds": self._kinds, "values": self._values, "codes": codes, "levels": levels}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "CombinationIndex":
        """The index of a `state`, which needs the rows that it was made of no more."""
        found = cls.__new__(cls)
        found.names, found._kinds, found._values = state["names"], state["kinds"], state["values"]
        found._code_of = [dict(zip(*each, strict=True)) for each in state["codes"]]
        found._levels = {tuple(subset): _Level(*rest) for subset, *rest in state["levels"]}
        found.count = 1 + sum(len(level.keys) for level in found._levels.values())
        return found

    def has_values(self, name: str) -> bool:
        """Whether an attribute has a value that is frequent."""
        return len(self._values[self.names.index(name)]) > 2

    def values(self, number: int) -> dict[str, Any]:
        """What a combination of this number is; nothing for all rows."""
        for subset, level in self._levels.items():
            if level.start <= number < level.start + len(level.keys):
                return self._named(subset, number - level.start + 1)
        return {}

    def _named(self, subset: tuple[int, ...], code: int) -> dict[str, Any]:
        level = self._levels[subset]
        before, last = divmod(int(level.keys[code - 1]), level.width)
        mine = {self.names[subset[-1]]: self._values[subset[-1]][last]}
        if len(subset) == 1:
            return mine
        if len(subset) == 2:
            return {self.names[subset[0]]: self._values[subset[0]][before]} | mine
        return self._named(subset[:-1], before) | mine


def tally(numbers: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """For each of `count` combinations and each score how many rows there are, and the sums of the score, its square
    and its cube; rows without a score (NaN) do not count for it. Shape (4, scores, combinations); the first score is
    that of all rows: 1.

    >>> tally(np.array([[0, 1], [0, 0]]), np.array([[0.5], [1.0]]), count=2)[:, 1].tolist()
    [[2.0, 1.0], [1.5, 0.5], [1.25, 0.25], [1.125, 0.125]]
    """
    found = np.zeros((4, scores.shape[1] + 1, count))
    for place in range(numbers.shape[1]):
        mine = numbers[:, place]
        found[:, 0] += np.bincount(mine, minlength=count) * (place == 0 or np.arange(count) > 0)
        for number in range(scores.shape[1]):
            score = scores[:, number]
            there = ~np.isnan(score)
            rows, values = (mine, score) if there.all() else (mine[there], score[there])
            weights = (None, values, values * values, values * values * values)
            sums = np.stack([np.bincount(rows, weights=weight, minlength=count) for weight in weights])
            if place:  # rows without a combination of these attributes stand at 0, which is all rows
                sums[:, 0] = 0.0
            found[:, number + 1] += sums
    return found
