"""Whether a store's file is as it was written: SQLite keeps no checksums of what it stores, so every row has its own.

A copy of the file as it was when it was last found whole lies beside it. What happened since that copy is known to
the checkpoints, which hold where each task stands; metrics since then that no checkpoint carries are gone.
"""

import contextlib
import functools
import os
import shutil
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.store.atomic_write import NEW_FILE, folder_beside, replace, write_atomically
from dovetail.store.schema import MIGRATIONS

FILE, COPY, ASIDE = "store.sqlite", "store.sqlite.last", "damaged-store.sqlite"
_LOGS = ("-wal", "-shm")
SEALED_VERSION = 4
"""The first version of the store in which every row has a checksum."""
# What SQLite says of a place, not of a file: not permitted, locked, no memory, no room, a disk that fails.
_NOT_THE_FILE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}

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
    """Whether a row is what its checksum was made of. Some of older versions have one of a zero whose sign SQLite did
    not keep.

    >>> matches(checksum("a", 0.0), ["a", 0.0]), matches(checksum("a", -0.0), ["a", 0.0]), matches(1, ["a", 0.0])
    (True, True, False)
    """
    if checksum(*values) == seal:
        return True
    signed = [-0.0 if isinstance(value, float) and value == 0.0 else value for value in values]
    return checksum(*signed) == seal


def is_damage(error: BaseException) -> bool:
    """Whether an error of SQLite is one of the file's content: a flipped bit in the schema is a syntax error to it, and
    one in a text cannot be decoded.

    >>> is_damage(sqlite3.DatabaseError("malformed")), is_damage(OSError("no room"))
    (True, False)
    """
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.ProgrammingError):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _NOT_THE_FILE
    return isinstance(error, UnicodeDecodeError | OverflowError)


def damage(connection: sqlite3.Connection) -> str:
    """What is wrong with a database; empty where nothing is. Raises what `is_damage` finds to be no damage."""
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            return str(found)
        check_structure(connection)
        sealed = is_sealed(connection)
        for table, columns in COLUMNS.items():
            for number, row in enumerate(connection.execute(f"SELECT checksum, {columns} FROM {table}"), 1):
                if (sealed or row[0] is not None) and not matches(row[0], row[1:]):
                    return f"row {number} of its table {table} does not match its checksum"
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        if not is_damage(error):
            raise
        return str(error)
    return ""


def is_sealed(connection: sqlite3.Connection) -> bool:
    """Whether every row of a database must have a checksum."""
    return _version(connection) >= SEALED_VERSION


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_structure(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` unless all tables have the columns that they were made with. With a flipped bit in
    a type, SQLite would find no rows, or keep what is written from now on as something else, without a word."""
    if _structure(connection) != _expected_structure(_version(connection)):
        raise sqlite3.DatabaseError("its tables are not as they were made")


def _structure(connection: sqlite3.Connection) -> list[Any]:
    return [connection.execute(f"PRAGMA table_info({table})").fetchall() for table in COLUMNS]


@functools.cache
def _expected_structure(version: int) -> list[Any]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("seal", -1, checksum)
        connection.executescript(";".join(MIGRATIONS[:version]))
        return _structure(connection)


def keep_copy(connection: sqlite3.Connection, home: Path) -> None:
    """Make the copy that a damaged store falls back to. Where there is no room for one, the older one stays."""
    with contextlib.suppress(OSError, sqlite3.Error), folder_beside(home / COPY) as folder:
        made = folder / "content"
        with open(os.open(made, NEW_FILE, 0o600), "rb") as file:
            with contextlib.closing(sqlite3.connect(made)) as target:
                # It is whole when it has its name, and not before: no journal is needed on the way.
                target.execute("PRAGMA journal_mode=OFF")
                target.execute("PRAGMA synchronous=OFF")
                connection.backup(target)
            os.fsync(file.fileno())
        replace(made, home / COPY)


def open_unchanging(path: Path) -> sqlite3.Connection:
    """A database that nobody writes, opened without a trace, whatever is in its name."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def fall_back(home: Path) -> bool:
    """Set a damaged file aside and put the copy in its place; whether there is one that is whole."""
    copy = home / COPY
    if not copy.exists():
        return False
    with contextlib.closing(open_unchanging(copy)) as connection:
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
