"""The most frequent items of a weighted stream in a fixed number of slots, with a bound on what was missed.

Misra and Gries, merged a batch at a time (Agarwal et al., Mergeable Summaries, 2012): exact weights of a batch are
added, and where more items remain than there are slots, the largest weight that does not fit is taken from all. Of a
stream of weight W, whatever weighs more than W / (capacity + 1) holds a slot. Beside the weight that decides who stays,
a slot tallies its item's events since it came; how many it may have missed before is known from what was taken until
then, and nothing for an item that has been there from the start. Everything decays by one factor, so that the bounds
hold for decayed counts. Knows slots and weights, not what items are.
"""

from typing import Any

import numpy as np

_LEAST_WEIGHT = 1e-300


class SlotTable:
    """Slots 1 to `capacity`; 0 means none. `tallies` are events and outliers of each.

    >>> table = SlotTable(capacity=2)
    >>> events = np.array([5, 3, 1])
    >>> table.merge(np.zeros(3, dtype=np.intp), weights=events, events=events, outliers=0 * events)
    (array([1, 2, 0]), array([], dtype=int64))
    >>> table.taken, table.held().tolist(), table.tallies[1].tolist()
    (1.0, [1, 2], [5.0, 0.0])
    """

    def __init__(self, *, capacity: int) -> None:
        self.capacity = capacity
        self.taken = 0.0
        self.tallies = np.zeros((capacity + 1, 2))
        self.missed = np.zeros(capacity + 1)
        self._weights = np.zeros(capacity + 1)

    def held(self) -> np.ndarray:
        """The slots that are in use."""
        return np.flatnonzero(self._weights)

    def top(self) -> int:
        """The highest slot in use; they are given out from the lowest."""
        held = self.held()
        return int(held[-1]) if len(held) else 0

    def decay(self, factor: float) -> None:
        """Let everything so far count for less."""
        self.taken *= factor
        for each in (self.tallies, self.missed, self._weights):
            each *= factor
        # A slot is in use while it has weight: what has not come for a thousand half-lives gives way to anybody.
        np.maximum(self._weights, _LEAST_WEIGHT, out=self._weights, where=self._weights > 0)

    def merge(
        self, slots: np.ndarray, *, weights: np.ndarray, events: np.ndarray, outliers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a batch's distinct items: the slot each has, 0 where none, with its weight, events and outliers. Gives
        each item's slot now, and the slots whose items lost theirs."""
        before = self.taken
        known = np.flatnonzero(slots)
        self._weights[slots[known]] += weights[known]
        new = np.flatnonzero(slots == 0)
        freed, left = self._make_room(weights[new])
        slots = slots.copy()
        slots[known[self._weights[slots[known]] == 0]] = 0
        entering = np.flatnonzero(left > 0)
        given = np.flatnonzero(self._weights[1:] == 0)[: len(entering)] + 1
        slots[new[entering]], self._weights[given] = given, left[entering]
        self.tallies[given], self.missed[given] = 0.0, before
        stay = np.flatnonzero(slots)
        self.tallies[slots[stay], 0] += events[stay]
        self.tallies[slots[stay], 1] += outliers[stay]
        return slots, freed

    def free(self, slots: np.ndarray) -> None:
        """Forget the items of these slots."""
        self._weights[slots] = 0.0

    def _make_room(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take the same weight from all until they fit: the slots that are free by it, and what newcomers have left."""
        held = self.held()
        if len(held) + len(new) <= self.capacity:
            return held[:0], new
        everything = np.concatenate([self._weights[held], new])
        place = len(everything) - self.capacity - 1
        taken = float(np.partition(everything, place)[place])
        self.taken += taken
        self._weights[held] = np.maximum(self._weights[held] - taken, 0.0)
        return held[self._weights[held] == 0], np.maximum(new - taken, 0.0)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        vars(self).update(state)
