"""Finds out what a training step keeps in attributes of a module or trainer: no checkpoint has them, so it would be
lost when training stops and goes on. Knows objects and tensors; knows nothing of trainers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dovetail.train.loop import is_due
from dovetail.vocabulary import ProgramError

_NONE = "NoneType"


class AttributeWatch:
    """Looks at steps 1, 2, 4, 8 and so on. An attribute that was None may be filled once, as a cache is.

    >>> class Counting:
    ...     count = 0
    >>> thing, watch = Counting(), AttributeWatch()
    >>> thing.count = 1
    >>> with watch.watching([thing]):
    ...     thing.count += 1
    Traceback (most recent call last):
    ...
    dovetail.vocabulary.errors.ProgramError: a training step must leave attributes ...; it changed self.count. ...
    """

    __slots__ = ("_besides", "_steps")

    def __init__(self, besides: Sequence[str] = ()) -> None:
        self._besides, self._steps = frozenset(besides), 0

    @contextlib.contextmanager
    def watching(self, things: Sequence[Any]) -> Iterator[None]:
        """Within, a step is taken. Raises `ProgramError` afterwards where it has changed attributes of these."""
        self._steps += 1
        before = self._marks(things) if is_due(self._steps) else {}
        yield
        for (number, name), mark in self._marks(things).items() if before else ():
            if before.get((number, name), mark) not in (mark, _NONE):
                whose = "" if not number else f" of {type(things[number]).__name__}"
                raise ProgramError(
                    f"a training step must leave attributes as they are, for checkpoints do not have them; it changed "
                    f"self.{name}{whose}. Log it, keep it in a buffer of the model (register_buffer), or compute it "
                    f"where it is evaluated."
                )

    def _marks(self, things: Sequence[Any]) -> dict[tuple[int, str], Any]:
        """Something for each plain attribute that is another when the attribute has changed."""
        return {
            (number, name): _mark(value)
            for number, each in enumerate(things)
            for name, value in vars(each).items()
            if not name.startswith("_") and name not in self._besides
        }


def _mark(value: Any) -> Any:
    if value is None:
        return _NONE
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, list | dict | set | tuple):
        return id(value), len(value)
    return id(value)
