"""The latest rows that were asked and answered, kept so that those in which a drift was seen can be trained on."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy

Rows = Mapping[str, numpy.ndarray]

# Of large inputs fewer rows are kept than are compared.
_MOST_BYTES = 256 << 20


class LatestRows:
    """Tensors by name, of at least `least_rows` rows where these fit into so many bytes.

    >>> latest = LatestRows(4)
    >>> for start in (0, 3, 6):
    ...     latest.add({"x": numpy.arange(start, start + 3)})
    >>> latest.window(3, before=1)["x"].tolist(), latest.window(99)["x"].tolist()
    ([5, 6, 7], [3, 4, 5, 6, 7, 8])
    """

    def __init__(self, least_rows: int, *, most_bytes: int = _MOST_BYTES) -> None:
        self._least_rows, self._most_bytes = least_rows, most_bytes
        self._parts = deque[Rows]()
        self._rows = self._bytes = 0

    def add(self, rows: Rows) -> None:
        """Keep these, and let go of the oldest that are not needed."""
        self._parts.append(rows)
        self._count(rows, 1)
        while len(self._parts) > 1 and (
            self._rows - _length(self._parts[0]) >= self._least_rows or self._bytes > self._most_bytes
        ):
            self._count(self._parts.popleft(), -1)

    def _count(self, rows: Rows, sign: int) -> None:
        self._rows += sign * _length(rows)
        self._bytes += sign * sum(each.nbytes for each in rows.values())

    def window(self, rows: int, *, before: int = 0) -> dict[str, numpy.ndarray]:
        """So many rows, or those of them that are kept, with `before` newer ones after them."""
        end = self._rows - before
        kept = slice(max(end - rows, 0), max(end, 0))
        return {name: _joined([part[name] for part in self._parts])[kept] for name in self._parts[-1]}


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _joined(parts: Sequence[numpy.ndarray]) -> numpy.ndarray:
    """One after another. What is shorter than others, such as text of fewer tokens, is filled up with zeros."""
    lengths = numpy.max([part.shape[1:] for part in parts], axis=0)
    found = numpy.zeros((sum(map(len, parts)), *map(int, lengths)), dtype=parts[0].dtype)
    start = 0
    for part in parts:
        found[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
    return found
