"""The store: SQLite in WAL mode. Knows records; knows nothing of what they lead to.

`synchronous=FULL` syncs the log at every commit, so that a power cut loses no event that was acknowledged;
NORMAL would lose the last ones. Writes come in batches, one transaction each.
"""

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dovetail.store.schema import MIGRATIONS
from dovetail.vocabulary import Event, Plan, Profile, StoreError, Task, dumps, loads
from dovetail.vocabulary.records import plain

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric of a task at a step. Steps that are repeated after a loss replace their points.

    >>> Point(task="a", name="loss", step=10, value=0.5, at_seconds=0.0).value
    0.5
    """

    task: str
    name: str
    step: int
    value: float
    at_seconds: float


class Store:
    """A directory with the database and, beside it, checkpoints, logs and programs.

    One process at a time opens it with `write=True` (hold a `ControllerLock`); any number may read
    meanwhile. With `home=None` it lives in memory, for simulations. Use it from one thread.

    >>> with Store(None, write=True) as store:
    ...     store.add(events=[Event(kind="warned", at_seconds=1.0, data={"message": "hello"})])
    ...     [event.data["message"] for _, event in store.events()]
    ['hello']
    """

    def __init__(self, home: Path | None, *, write: bool = False) -> None:
        self.home = home
        try:
            self._connection = self._connect(home, write)
            self._migrate(write)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"the store at {home} must be a directory that this user can "
                f"{'write' if write else 'read'}; found: {error}. Check its permissions and its disk, or use --store."
            ) from error

    @staticmethod
    def _connect(home: Path | None, write: bool) -> sqlite3.Connection:
        if home is None:
            return sqlite3.connect(":memory:", isolation_level=None)
        path = home / "store.sqlite"
        if write:
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        elif not path.exists():
            raise StoreError(f"there must be a store at {home}; found none. Run something first, or use --store.")
        connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        if write:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        else:
            connection.execute("PRAGMA query_only=ON")
        return connection

    def _migrate(self, write: bool) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the store at {self.home} must be of version {len(MIGRATIONS)} or older; it is of version {version}, "
                f"written by a newer Dovetail. Upgrade Dovetail, or use another store (--store)."
            )
        if version < len(MIGRATIONS) and not write:
            raise StoreError(
                f"the store at {self.home} must be of version {len(MIGRATIONS)}; it is of version {version}. "
                f"'dovetail run' brings it up to date."
            )
        for number in range(version, len(MIGRATIONS)):
            self._connection.executescript(f"BEGIN; {MIGRATIONS[number]}; PRAGMA user_version={number + 1}; COMMIT;")

    def add(
        self,
        *,
        events: Iterable[Event] = (),
        points: Iterable[Point] = (),
        tasks: Iterable[tuple[str, Task]] = (),
        profiles: Iterable[Profile] = (),
        hardware: Iterable[tuple[str, Any]] = (),
    ) -> None:
        """Write all of this in one transaction; when it returns, it is on disk. `tasks` are (workload, task)."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO events (kind, task, attempt, at_seconds, data) VALUES (?, ?, ?, ?, ?)",
                [(e.kind, e.task, e.attempt, e.at_seconds, dumps(e.data)) for e in events],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)",
                [(p.task, p.name, p.step, p.value, p.at_seconds) for p in points],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?)",
                [(task.identity, workload, task.name, dumps(task)) for workload, task in tasks],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?)",
                [(p.family, p.technique, p.kind, p.count, dumps(p)) for p in profiles],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO hardware VALUES (?, ?)", [(name, dumps(record)) for name, record in hardware]
            )

    def add_plan(self, plan: Plan, *, workload: str, at_seconds: float) -> int:
        """Keep a plan; gives its number."""
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO plans (workload, at_seconds, record) VALUES (?, ?, ?)", (workload, at_seconds, dumps(plan))
            )
        return int(cursor.lastrowid or 0)

    def events(self, *, task: str | None = None, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events in order, with their numbers: of one task or of all, those after a number."""
        query = "SELECT number, kind, task, attempt, at_seconds, data FROM events WHERE number > ?"
        rows = self._rows(
            query + (" AND task = ?" if task is not None else ""), (after, *([] if task is None else [task]))
        )
        for number, kind, name, attempt, at, data in rows:
            yield (
                number,
                Event(kind=kind, task=name, attempt=attempt, at_seconds=at, data=plain(json.loads(data))),
            )

    def points(self, task: str, *, name: str | None = None) -> list[Point]:
        """A task's metrics, by name and step."""
        query = "SELECT name, step, value, at_seconds FROM points WHERE task = ?" + (
            " AND name = ?" if name is not None else ""
        )
        rows = self._rows(query + " ORDER BY name, step", (task, *([] if name is None else [name])))
        # SQLite keeps NaN as NULL.
        return [
            Point(task=task, name=n, step=s, value=float("nan") if v is None else v, at_seconds=at)
            for n, s, v, at in rows
        ]

    def tasks(self, *, workload: str | None = None) -> list[tuple[str, Task]]:
        """(workload, task) in the order in which they came."""
        query = "SELECT workload, record FROM tasks" + (" WHERE workload = ?" if workload is not None else "")
        rows = self._rows(query + " ORDER BY rowid", (workload,) if workload is not None else ())
        return [(name, loads(Task, record)) for name, record in rows]

    def profiles(self) -> list[Profile]:
        """Everything measured of models."""
        return [loads(Profile, record) for (record,) in self._rows("SELECT record FROM profiles", ())]

    def plans(self, *, workload: str | None = None) -> list[tuple[int, float, Plan]]:
        """(number, when, plan), oldest first."""
        query = "SELECT number, at_seconds, record FROM plans" + (" WHERE workload = ?" if workload is not None else "")
        rows = self._rows(query + " ORDER BY number", (workload,) if workload is not None else ())
        return [(number, at, loads(Plan, record)) for number, at, record in rows]

    def hardware(self, name: str, cls: type[T]) -> T | None:
        """What was measured of the machine under this name, if anything."""
        rows = self._rows("SELECT record FROM hardware WHERE name = ?", (name,))
        return loads(cls, rows[0][0]) if rows else None

    def close(self) -> None:
        """Close the database. May be called twice."""
        self._connection.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _rows(self, query: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, arguments).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the store at {self.home} must be readable; found: {error}.") from error

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection, self.home)


class _Transaction:
    def __init__(self, connection: sqlite3.Connection, home: Path | None) -> None:
        self._connection = connection
        self._home = home

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as problem:
            raise self._refused(problem) from problem
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._connection.execute("ROLLBACK" if error else "COMMIT")
        except sqlite3.Error as problem:
            error = error or problem
        if isinstance(error, sqlite3.Error):
            # A transaction that could not be committed is still open, and would refuse the next one.
            if self._connection.in_transaction:
                self._connection.rollback()
            raise self._refused(error) from error

    def _refused(self, problem: sqlite3.Error) -> StoreError:
        return StoreError(
            f"the store at {self._home} must accept writes; found: {problem}. Free some disk space or check "
            f"its permissions, then run again: what was acknowledged before is safe."
        )
