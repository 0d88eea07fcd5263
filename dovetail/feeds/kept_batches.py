"""Batches that one has read and several will take, one after another: kept until all have had them."""

from collections.abc import Hashable, Iterable
from typing import Any

from dovetail.feeds.shared import copy_tensors


class KeptBatches:
    """Values by number, for some takers that each take all of them in order. One that is `most_behind` others has
    ended, and is not waited for. For one thread.

    >>> kept = KeptBatches(["one", "other"], most_behind=3)
    >>> kept.put(0, [1.5])
    >>> kept.take("one", 0), 0 in kept, kept.take("other", 0), 0 in kept
    ([1.5], True, [1.5], False)
    """

    def __init__(self, takers: Iterable[Hashable], *, most_behind: int, first: int = 0) -> None:
        self._values: dict[int, Any] = {}
        self._next = dict.fromkeys(takers, first)
        """For each taker the number of what it has not had yet."""
        self._end, self._most_behind = first, most_behind

    def __contains__(self, number: int) -> bool:
        return number in self._values

    @property
    def is_wanted(self) -> bool:
        """Whether there is anybody who takes."""
        return bool(self._next)

    def items(self) -> Iterable[tuple[int, Any]]:
        """The batches that are kept, each with its number."""
        return self._values.items()

    def put(self, number: int, value: Any) -> None:
        """Keep a batch, whose number is one above that of the last one kept."""
        self._values[number] = value
        self._end = number + 1

    def take(self, taker: Hashable, number: int) -> Any:
        """What has this number: a copy where others will want it, too, for a training may write into it."""
        value = self._values[number]
        self._next[taker] = number + 1
        self._next = {each: own for each, own in self._next.items() if own >= self._end - self._most_behind}
        least = min(self._next.values())
        for passed in [each for each in self._values if each < least]:
            del self._values[passed]
        return copy_tensors(value) if number in self._values else value

    def forget(self, taker: Hashable) -> None:
        """Keep no more batches for this taker."""
        self._next.pop(taker, None)
