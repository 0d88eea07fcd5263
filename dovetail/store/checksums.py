"""Whether a store's file is as it was written: SQLite keeps no checksums of what it stores, so every row has its own.

A copy of the file as it was when it was last found whole lies beside it. What happened since that copy is known to
the checkpoints, which hold where each task stands; metrics since then that no checkpoint carries are gone.
"""

import contextlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.store.atomic_write import write_atomically

FILE, COPY, ASIDE = "store.sqlite", "store.sqlite.last", "damaged-store.sqlite"
_LOGS = ("-wal", "-shm")

COLUMNS = {
    "tasks": "identity, workload, name, record",
    "events": "kind, task, attempt, at_seconds, data",
    "points": "task, name, step, value, at_seconds",
    "profiles": "family, technique, kind, count, record",
    "plans": "workload, at_seconds, record",
    "hardware": "name, record",
}


def checksum(*values: Any) -> int:
    """A checksum of a row's values as SQLite gives them back; one flipped bit never gives the same.

    >>> checksum("a", 1, 0.5) != checksum("a", 1, 0.25)
    True
    """
    return zlib.crc32(repr(values).encode())


def matches(seal: int | None, values: Sequence[Any]) -> bool:
    """Whether a row is what its checksum was made of. Rows of older versions have none, or one of a zero whose sign
    SQLite did not keep.

    >>> matches(checksum("a", 0.0), ["a", 0.0]), matches(checksum("a", -0.0), ["a", 0.0]), matches(1, ["a", 0.0])
    (True, True, False)
    """
    if seal is None or checksum(*values) == seal:
        return True
    signed = [-0.0 if isinstance(value, float) and value == 0.0 else value for value in values]
    return checksum(*signed) == seal


def damage(connection: sqlite3.Connection) -> str:
    """What is wrong with a database; empty where nothing is."""
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            return str(found)
        for table, columns in COLUMNS.items():
            for number, row in enumerate(connection.execute(f"SELECT checksum, {columns} FROM {table}"), 1):
                if not matches(row[0], row[1:]):
                    return f"row {number} of its table {table} does not match its checksum"
    except (sqlite3.DatabaseError, UnicodeDecodeError, OverflowError) as error:
        return str(error)
    return ""


def keep_copy(connection: sqlite3.Connection, home: Path) -> None:
    """Make the copy that a damaged store falls back to. Where there is no room for one, the older one stays."""
    beside = home / f".{COPY}.part"
    try:
        with open(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)) as file:
            with contextlib.closing(sqlite3.connect(beside)) as target:
                # It is whole when it has its name, and not before: no journal is needed on the way.
                target.execute("PRAGMA journal_mode=OFF")
                target.execute("PRAGMA synchronous=OFF")
                connection.backup(target)
            os.fsync(file.fileno())
        os.replace(beside, home / COPY)
    except (OSError, sqlite3.Error):
        beside.unlink(missing_ok=True)


def fall_back(home: Path) -> bool:
    """Set a damaged file aside and put the copy in its place; whether there is one that is whole."""
    copy = home / COPY
    if not copy.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)) as connection:
        if damage(connection):
            return False
    content, damaged = copy.read_bytes(), home / FILE
    if damaged.exists():
        # Never without a file: whoever comes after a kill here must find a damaged one, not begin an empty one. Its log
        # goes before the copy comes, or it would be taken for the copy's.
        (home / ASIDE).unlink(missing_ok=True)
        try:
            os.link(damaged, home / ASIDE)
        except OSError:  # no links there
            shutil.copyfile(damaged, home / ASIDE)
    for end in _LOGS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(home / f"{FILE}{end}", home / f"{ASIDE}{end}")
    write_atomically(damaged, content)
    return True
