"""One budget for every byte that a feed holds: items in work, in queues, and waiting for their turn.

Items are admitted before they are read, so their size is not known then: it is taken to be the largest seen so far,
with room for one more of twice that. Not thread-safe: its owner holds a lock.
"""

import dataclasses


@dataclasses.dataclass(slots=True)
class ByteBudget:
    """How many bytes may be held, how many are, and how large items have been.

    >>> budget = ByteBudget(limit_bytes=1000)
    >>> budget.learn(items=10, held_bytes=500, most_bytes=80)
    >>> budget.expected_bytes(2, copies=1), budget.fits(200), budget.fits(2000)
    (260, True, False)
    """

    limit_bytes: int
    held_bytes: int = 0
    most_held_bytes: int = 0
    item_bytes: float = 0.0
    """The largest mean size of the items in one part that was read."""
    most_item_bytes: int = 0
    batch_growth: float = 1.0
    """How many bytes a batch has been at most, for each byte of its items."""
    has_seen: bool = False
    has_seen_batch: bool = False

    def expected_bytes(self, items: int, *, copies: float) -> int:
        """What so many items will hold at most while they are worked at, as far as one knows: with `copies` of 2 they
        are copied into a batch."""
        return int(copies * items * self.item_bytes) + 2 * self.most_item_bytes

    def fits(self, more_bytes: int) -> bool:
        """Whether so many bytes more can be held."""
        return self.held_bytes + more_bytes <= self.limit_bytes

    def hold(self, more_bytes: int) -> None:
        """Count bytes that are held from now on, or with a minus sign no longer."""
        self.held_bytes += more_bytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)

    def learn(self, *, items: int, held_bytes: int, most_bytes: int) -> None:
        """Learn how much items hold from a part of them that was read."""
        if items:
            self.item_bytes = max(self.item_bytes, held_bytes / items)
        self.most_item_bytes = max(self.most_item_bytes, most_bytes)
        self.has_seen = True
