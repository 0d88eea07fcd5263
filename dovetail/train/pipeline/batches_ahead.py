"""Batches drawn ahead of the steps that take them, with what a checkpoint must say of each step's beginning."""

import collections
import dataclasses
from typing import Any

from dovetail.feeds import Cursor
from dovetail.train.randomness import KeyedRandomness


@dataclasses.dataclass(frozen=True, slots=True)
class _DrawnBatches:
    batches: list[Any]
    feed: Any
    random: Any


class AheadCursor(Cursor):
    """A cursor that shows batches of further steps before they are taken; where it stands is before those."""

    def __init__(self, batches: Any, *, random: KeyedRandomness) -> None:
        super().__init__(batches, before_draw=random.before_batch)
        self._random = random
        self._drawn: collections.deque[_DrawnBatches] = collections.deque()

    def take(self, count: int) -> list[Any]:
        """Take the batches of the next step."""
        return self._drawn.popleft().batches if self._drawn else super().take(count)

    def see(self, step: int, count: int) -> list[Any]:
        """The batches of a step ahead, the next one being 0."""
        while len(self._drawn) <= step:
            feed, random = super().state(), self._random.state()
            self._drawn.append(_DrawnBatches(super().take(count), feed, random))
        return self._drawn[step].batches

    def state(self) -> dict[str, Any]:
        """Where the next step's batches begin."""
        return self._drawn[0].feed if self._drawn else super().state()

    def random(self) -> dict[str, Any]:
        """The random numbers with which they are drawn."""
        return self._drawn[0].random if self._drawn else self._random.state()

    def restore(self, state: Any) -> None:
        """Stand where `state` was taken, with nothing seen yet."""
        self._drawn.clear()
        super().restore(state)
