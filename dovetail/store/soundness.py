"""Whether a store's file is as it was written: SQLite keeps no checksums of what it stores, so every row has its own.

A copy of the file as it was when it was last found whole lies beside it. What happened since that copy is known to
the checkpoints, which hold where each task stands; metrics since then that no checkpoint carries are gone.
"""

import contextlib
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Any

from dovetail.store.whole import write_whole

FILE, COPY, ASIDE = "store.sqlite", "store.sqlite.last", "damaged-store.sqlite"
_BESIDE = ("", "-wal", "-shm")

COLUMNS = {
    "tasks": "identity, workload, name, record",
    "events": "kind, task, attempt, at_seconds, data",
    "points": "task, name, step, value, at_seconds",
    "profiles": "family, technique, kind, count, record",
    "plans": "workload, at_seconds, record",
    "hardware": "name, record",
}


def checksum(*values: Any) -> int:
    """Of a row's values as SQLite gives them back; one flipped bit never gives the same.

    >>> checksum("a", 1, 0.5) != checksum("a", 1, 0.25)
    True
    """
    return zlib.crc32(repr(values).encode())


def damage(connection: sqlite3.Connection) -> str:
    """What is wrong with a database; empty where nothing is. Rows of older versions have no checksum."""
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            return str(found)
        for table, columns in COLUMNS.items():
            for number, row in enumerate(connection.execute(f"SELECT checksum, {columns} FROM {table}"), 1):
                if row[0] is not None and checksum(*row[1:]) != row[0]:
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
    content = copy.read_bytes()
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.replace(home / f"{FILE}{end}", home / f"{ASIDE}{end}")
    write_whole(home / FILE, content)
    return True
