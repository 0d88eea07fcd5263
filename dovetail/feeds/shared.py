"""One reading of batches for several trainings that stand at the same place in the same data.

A tap is a training's cursor. Of the taps that stand at one place, the first draws and hands the others copies of what
it drew; one that goes on alone takes up its own batches where it stood. Knows batches and cursors; whether the data are
the same is for others to know.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dovetail.feeds.cursor import Cursor


class Tap:
    """A cursor that may be handed its batches by another.

    >>> first, second = (Tap([1, 2, 3, 4], before_draw=lambda epoch, index: None) for _ in range(2))
    >>> draw([first, second], 2)
    >>> first.take(2), second.take(2)
    ([1, 2], [1, 2])
    >>> second.take(2)  # the other has not drawn for it
    [3, 4]
    """

    def __init__(self, batches: Any, *, before_draw: Callable[[int, int], None]) -> None:
        self._cursor = Cursor(batches, before_draw=before_draw)
        self._before_draw = before_draw
        self._leader: Tap | None = None
        self._stood: Mapping[str, Any] | None = None
        """Where it stood when it was left alone; its own cursor is still elsewhere."""
        self._handed: list[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that this tap is in."""
        return int(self.place[0])

    @property
    def index(self) -> int:
        """How many batches of its epoch were taken."""
        return int(self.place[1])

    @property
    def waited_seconds(self) -> float:
        """For how long it has waited for batches that it read itself."""
        return self._cursor.waited_seconds

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it stands; taps of the same data at the same place can be handed the same batches."""
        if self._leader is not None:
            return self._leader.place
        if self._stood is not None:
            return self._stood["epoch"], self._stood["index"], tuple(self._stood["digests"])
        return self._cursor.epoch, self._cursor.index, self._cursor.digests

    def take(self, count: int) -> list[Any]:
        """The next `count` batches, all of one epoch."""
        handed, self._handed = self._handed, None
        if handed is None:
            self.leave()
            return self._draw(count)
        self._before_draw(self.epoch, self.index)  # others have drawn since, with random numbers of their own
        return handed

    def leave(self) -> None:
        """Stop sharing: whatever is taken from here on is read by this tap itself."""
        if self._leader is not None:
            self._stood, self._leader = self._leader.state(), None

    @property
    def is_there(self) -> bool:
        """Whether its own batches stand where it does; taking them up there may take reading all before it again."""
        return self._leader is None and self._stood is None

    def state(self) -> dict[str, Any]:
        """Where it stands, as plain data and tensors."""
        if self._leader is not None:
            return self._leader.state()
        return dict(self._stood) if self._stood is not None else self._cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to where `state` was taken."""
        self._leader = self._stood = self._handed = None
        self._cursor.restore(state)

    def _draw(self, count: int) -> list[Any]:
        if self._stood is not None:
            self._cursor.follow(self._stood)
            self._stood = None
        return self._cursor.take(count)

    def _follow(self, leader: "Tap", batches: list[Any], *, new_epoch: bool) -> None:
        self._leader, self._stood, self._handed = leader, None, batches
        if new_epoch:  # as if it had drawn itself: an epoch begins with random numbers of its own
            self._before_draw(leader.epoch, -1)


def draw(taps: Sequence[Tap], count: int, *, absent: Sequence[Tap] = ()) -> None:
    """Let each of these taps take its next `count` batches, those at one place the same ones. `absent` are taps of the
    same data that take none now."""
    for tap in absent:
        tap.leave()
    places: dict[tuple[Any, ...], list[Tap]] = {}
    for tap in taps:
        places.setdefault(tap.place, []).append(tap)
    for group in places.values():
        leader = next((tap for tap in group if tap.is_there), group[0])
        leader.leave()
        epoch, index, _ = leader.place
        batches = leader._draw(count)
        for other in group:
            if other is not leader:
                copies = [copy_tensors(batch) for batch in batches]
                other._follow(leader, copies, new_epoch=leader.epoch != epoch or index == 0)
        leader._handed = batches


def copy_tensors(batch: Any) -> Any:
    """The batch with copies of its tensors: a training may write into what it is given.

    >>> batch = {"x": torch.zeros(1)}
    >>> copy_tensors(batch)["x"].add_(1), batch["x"]
    (tensor([1.]), tensor([0.]))
    """
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if isinstance(batch, Mapping):
        return type(batch)({key: copy_tensors(value) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copy_tensors(value) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(copy_tensors(value) for value in batch)
    return batch
