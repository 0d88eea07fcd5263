"""What was acknowledged, counted in a small file beside the database.

SQLite takes a log (`-wal`) that is gone, cut or altered for one that was never written, without a word. So after each
commit this file says how many events and tasks there are, and which tasks came since the store was opened; whoever
opens the store compares. It is written after the commit, so it is never ahead of a database that is whole: a kill or a
power cut in between leaves it too low, never too high. It is synced for tasks alone, whose submission is acknowledged;
for events it is a write of a hundred bytes in place, which outlives any killed process.
"""

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dovetail.vocabulary import Task

FILE = "acknowledged"
_HEADER_BYTES = 100
# So many tasks are named; the others are counted.
_NAMED = 20


class RowCount(NamedTuple):
    """What a database must hold: the number of its last event, how many tasks, and which came since it was opened."""

    event: int
    tasks: int
    came: dict[str, str]


class Acknowledged:
    """The count beside the store at `home`, for the one that writes it.

    `missing` says what was acknowledged and is not in the database any more. The file says so until the next commit:
    who is killed before it was told is told again.
    """

    def __init__(self, home: Path, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.missing = describe_missing(read_count(home), connection)
        self._tasks = _count_tasks(connection)
        self._file = os.open(home / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._end = self._noted = max(os.fstat(self._file).st_size, _HEADER_BYTES)
        if not self.missing:
            self._end = self._noted = _HEADER_BYTES
            self.commit()
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, _HEADER_BYTES)

    def note(self, tasks: Iterable[Task]) -> None:
        """Write down which tasks are about to be committed, if any. Raises OSError, where they must not be."""
        lines = "".join(f"{json.dumps([task.identity, task.name])}\n" for task in tasks).encode()
        self._noted = self._end + len(lines)
        if lines:
            os.pwrite(self._file, lines, self._end)

    def commit(self) -> None:
        """Count what is in the database now; with new tasks it is on disk when this returns."""
        came, self._end = self._noted > self._end, self._noted
        if came:
            self._tasks = _count_tasks(self._connection)
        body = f"{_last_event(self._connection)} {self._tasks} {self._end}"
        line = f"{body} {zlib.crc32(body.encode()):08x}".ljust(_HEADER_BYTES - 1) + "\n"
        with contextlib.suppress(OSError):  # what was committed is safe all the same; it is only not counted
            os.pwrite(self._file, line.encode(), 0)
            if came:
                os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_count(home: Path) -> RowCount | None:
    """What the file beside a store says; None where there is none, as of older versions, or where it is damaged."""
    try:
        content = (home / FILE).read_bytes()
        body, _, checksum = content[:_HEADER_BYTES].decode().strip().rpartition(" ")
        if int(checksum, 16) != zlib.crc32(body.encode()):
            return None
        event, tasks, end = map(int, body.split())
        return RowCount(event, tasks, dict(map(json.loads, content[_HEADER_BYTES:end].splitlines())))
    except (OSError, ValueError, TypeError):
        return None


def describe_missing(count: RowCount | None, connection: sqlite3.Connection) -> str:
    """What was counted and is not in the database, in words; empty where nothing is missing."""
    if count is None:
        return ""
    event, tasks = _last_event(connection), _count_tasks(connection)
    if event >= count.event and tasks >= count.tasks:
        return ""
    known = {identity for (identity,) in connection.execute("SELECT identity FROM tasks")}
    names = [name for identity, name in count.came.items() if identity not in known]
    found = [f"{count.event - event} events after event {event}"] if event < count.event else []
    if lost := max(count.tasks - tasks, len(names)):
        shown = ", ".join(names[:_NAMED]) + (f" and {lost - _NAMED} more" if lost > _NAMED else "")
        found.append(f"{lost} tasks" + (f" ({shown})" if names else ""))
    return f"{' and '.join(found)} that were acknowledged are missing"


def _last_event(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(number) FROM events").fetchone()[0] or 0)


def _count_tasks(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])
