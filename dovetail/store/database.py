"""The store: SQLite in WAL mode. Knows records; knows nothing of what they lead to.

`synchronous=FULL` syncs the log at every commit, so that a power cut loses no event that was acknowledged;
NORMAL would lose the last ones. Writes come in batches, one transaction each. What must be there is counted beside it
(`acknowledged`), because SQLite does not miss a log that is gone.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from dovetail.store import checksums
from dovetail.store.acknowledged import Acknowledged, describe_missing, read_count
from dovetail.store.ownership import make_private
from dovetail.store.schema import MIGRATIONS, READABLE
from dovetail.vocabulary import (
    DovetailError,
    Event,
    Plan,
    Profile,
    StoreError,
    StoreRefused,
    Task,
    TaskId,
    dumps,
    loads,
    read_event,
    unreadable_task,
)
from dovetail.vocabulary.events import TaskFailed, Warned
from dovetail.vocabulary.units import show_bytes

T = TypeVar("T")

# How long to wait for another process that has the file locked: a backup, a user's own sqlite3.
LOCKED_SECONDS = 30.0
# The metrics of a task one after another, each found by the index; and what the points of one come to.
_NEXT_METRIC = "SELECT min(name) FROM points WHERE task = ? AND name > ?"
_FINITE = "CASE WHEN abs(value) < 1e999 THEN value END"
_SPREAD = (
    f"SELECT count(*), max(step), min({_FINITE}), max({_FINITE}) FROM points WHERE task = ? AND name = ? AND step > ?"
)
_LAST_VALUE = "SELECT value FROM points WHERE task = ? AND name = ? ORDER BY step DESC LIMIT 1"
# So many of a workload's plans, and its first, are kept whole.
LAST_PLANS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of one metric of a task at a step. Steps that are repeated after a loss replace their points."""

    task: str
    name: str
    step: int
    value: float
    at_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """What the points of one metric of a task come to: how many, up to which step, the least and the greatest finite
    value, if any is, and the last one."""

    name: str
    count: int
    last_step: int
    low: float | None
    high: float | None
    last: float


class Store:
    """A directory with the database and, beside it, checkpoints, logs and programs.

    One process at a time opens it with `write=True` (hold a `ControllerLock`), and only where it is this user's own;
    any number may read meanwhile. With `home=None` it lives in memory, for simulations. Use it from one thread.

    >>> from dovetail.vocabulary.events import Warned
    >>> with Store(None, write=True) as store:
    ...     store.add(events=[Warned(at_seconds=1.0, message="hello")])
    ...     [event.message for _, event in store.events()]
    ['hello']
    """

    _connection: sqlite3.Connection

    def __init__(self, home: Path | None, *, write: bool = False) -> None:
        self.home = home
        self.fell_back = ""
        """What was found wrong with the file where an earlier copy took its place."""
        self.unreadable: dict[TaskId, str] = {}
        """The tasks whose records cannot be read, of those that were looked at, and why; each has a stand-in."""
        self.missing = ""
        """What was acknowledged and is not in the file any more; told until something is added."""
        self._writes = write and home is not None
        self._count: Acknowledged | None = None
        self._sealed = False
        try:
            self._open(write)
        except (sqlite3.Error, OSError, UnicodeDecodeError, OverflowError) as error:
            raise self._refusal_to_open(error, write) from error

    def _refusal_to_open(self, error: Exception, write: bool) -> StoreError:
        if checksums.is_damage(error):
            return self._damage_error(str(error), is_lost=write)  # who writes has looked for a copy
        room = f" ({show_bytes(free_bytes(self.home))} are free)" if self.home else ""
        return StoreError(
            f"the store at {self.home} must be a directory that this user can {'write' if write else 'read'}; "
            f"found: {error}. Check its permissions and its disk{room}, or use --store."
        )

    def _damage_error(self, found: str, *, is_lost: bool = False) -> StoreError:
        is_lost = is_lost or self.home is None or not (self.home / checksums.COPY).exists()
        cure = (
            "No whole copy of it is beside it: bring one from a backup, or use another store (--store)."
            if is_lost
            else "'dovetail run' falls back to the last copy that was whole."
        )
        return StoreError(f"the store at {self.home} must be as it was written; found: {found}. {cure}")

    def _open(self, write: bool) -> None:
        """Readers look at what they read; who writes looks at everything first, and falls back where it is damaged."""
        if not self._writes:
            self._read(write)
            return
        assert self.home is not None
        make_private(self.home)
        if wrong := self._damage():
            if not checksums.fall_back(self.home):
                raise sqlite3.DatabaseError(wrong)
            self.fell_back = wrong
            self._connect(write)
            self._migrate(write)
        self._count = Acknowledged(self.home, self._connection)
        self.missing = self._count.missing
        checksums.keep_copy(self._connection, self.home)

    def _read(self, write: bool) -> None:
        count = read_count(self.home) if self.home else None  # before the rest: it is written after that
        self._open_to_read(write)
        if self.home is not None:
            checksums.check_structure(self._connection)
        if missing := describe_missing(count, self._connection):
            raise StoreError(
                f"the store at {self.home} must hold all that was acknowledged; {missing}: its log was removed or "
                f"damaged. 'dovetail run' and 'dovetail daemon' say so and go on without; what is missing must be "
                f"submitted again."
            )

    def _open_to_read(self, write: bool) -> None:
        try:
            self._connect(write)
            self._migrate(write)
        except sqlite3.OperationalError:
            # Even to read, SQLite makes a file beside, unless it is told that nobody writes: on a disk that is mounted
            # for reading only, nobody does.
            if self.home is None or os.access(self.home, os.W_OK) or not (self.home / checksums.FILE).exists():
                raise
            self._connection.close()
            self._connection = checksums.open_unchanging(self.home / checksums.FILE)
            self._migrate(write)

    def _damage(self) -> str:
        assert self.home is not None
        if (self.home / checksums.COPY).exists() and not (self.home / checksums.FILE).exists():
            return f"{checksums.FILE} is missing"
        try:
            self._connect(True)
            self._migrate(True)
            wrong = checksums.damage(self._connection)
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            if not checksums.is_damage(error):  # locked, full, not permitted
                raise
            wrong = str(error)
        if wrong:
            self._connection.close()
        return wrong

    def _connect(self, write: bool) -> None:
        home = self.home
        if home is None:
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            self._connection.create_function("seal", -1, checksums.checksum)
            return
        path = home / checksums.FILE
        if write:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        elif not path.exists():
            raise StoreError(f"there must be a store at {home}; found none. Run something first, or use --store.")
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_SECONDS)
        self._connection.execute("PRAGMA trusted_schema=OFF")  # it may be anybody's that is read
        if write:
            self._connection.create_function("seal", -1, checksums.checksum)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
        else:
            self._connection.execute("PRAGMA query_only=ON")

    def _migrate(self, write: bool) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the store at {self.home} must be of version {len(MIGRATIONS)} or older; it is of version {version}, "
                f"written by a newer Dovetail. Upgrade Dovetail, or use another store (--store)."
            )
        if version == 0 and not write:
            raise StoreError(f"there must be a store at {self.home}; one is just being made. Try again in a moment.")
        if version < READABLE and not write:
            raise StoreError(
                f"the store at {self.home} must be of version {len(MIGRATIONS)}; it is of version {version}. "
                f"'dovetail run' brings it up to date."
            )
        if version < len(MIGRATIONS) and write:  # at once: nobody finds it half-way
            steps = "; ".join(MIGRATIONS[version:])
            self._connection.executescript(f"BEGIN; {steps}; PRAGMA user_version={len(MIGRATIONS)}; COMMIT;")
            # Into the file itself: one whose log is gone must be a store from which something is missing, not none.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._sealed = self.home is not None and checksums.is_sealed(self._connection)

    def add(
        self,
        *,
        events: Iterable[Event] = (),
        points: Iterable[Point] = (),
        tasks: Iterable[tuple[str, Task]] = (),
        profiles: Iterable[Profile] = (),
        hardware: Iterable[tuple[str, Any]] = (),
        without_points_of: Iterable[str] = (),
    ) -> None:
        """Write all of this in one transaction; when it returns, it is on disk. `tasks` are (workload, task). Points
        of the tasks in `without_points_of` are removed first."""
        events, tasks = list(events), list(tasks)
        with self._transaction() as connection:
            connection.executemany("DELETE FROM points WHERE task = ?", [(task,) for task in without_points_of])
            connection.executemany(
                _insert("events"),
                [self._seal(e.kind, e.task, e.attempt, float(e.at_seconds), dumps(e.data())) for e in events],
            )
            connection.executemany(
                _insert("points"),
                [self._seal(p.task, p.name, p.step, _number(p.value), float(p.at_seconds)) for p in points],
            )
            connection.executemany(
                _insert("tasks"),
                [self._seal(task.identity, workload, task.name, dumps(task)) for workload, task in tasks],
            )
            connection.executemany(
                _insert("profiles"),
                [self._seal(p.family, _how(p), p.kind, p.count, dumps(p)) for p in profiles],
            )
            connection.executemany(_insert("hardware"), [self._seal(name, dumps(record)) for name, record in hardware])
            if self._count is not None:
                self._count.note(task for _, task in tasks)
        if self._count is not None and (events or tasks):
            self._count.commit()

    def add_plan(self, plan: Plan, *, workload: str, at_seconds: float) -> int:
        """Keep a plan; gives its number. Of the first and the last ones all is kept, of those between them that and
        when they were made: there are as many as tasks, and each speaks of every task."""
        with self._transaction() as connection:
            cursor = connection.execute(_insert("plans"), self._seal(workload, float(at_seconds), dumps(plan)))
            between = connection.execute(
                "SELECT number, at_seconds FROM plans WHERE workload = ? ORDER BY number DESC LIMIT 1 OFFSET ?",
                (workload, LAST_PLANS),
            ).fetchone()
            first = connection.execute("SELECT min(number) FROM plans WHERE workload = ?", (workload,)).fetchone()
            if between is not None and between[:1] != first:
                number, at = between
                *_, record, checksum = self._seal(workload, at, dumps(Plan()))
                connection.execute(
                    "UPDATE plans SET record = ?, checksum = ? WHERE number = ?", (record, checksum, number)
                )
        return int(cursor.lastrowid or 0)

    def events(self, *, task: str | None = None, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events in order, with their numbers: of one task or of all, those after a number."""
        where = "WHERE number > ?" + (" AND task = ?" if task is not None else "")
        rows = self._read_checked("events", where, (after, *([] if task is None else [task])), number=True)
        for *row, number in rows:
            yield number, event_of_row(*row)

    def rows(self, table: str, *, after: int = 0, most: int = -1) -> list[tuple[Any, ...]]:
        """The rows of a table other than `points` as they are kept, in the order in which they came, each with its
        number first: those after a number, so many at most. For who follows a store of thousands of tasks, and of each
        row reads only what it needs; a row that is written again comes again, with a new number."""
        where = "WHERE rowid > ? ORDER BY rowid LIMIT ?"
        return [(row[-1], *row[:-1]) for row in self._read_checked(table, where, (after, most), number=True)]

    def last_number(self, table: str) -> int:
        """The number of a table's last row; 0 where it has none."""
        return int(self._connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()[0])

    def summarise_points(self, task: str, *, since: Mapping[str, int] = MappingProxyType({})) -> list[PointSummary]:
        """Of each metric of a task that has points after the step that `since` has for it, if any, what those come to,
        without reading them one by one: that takes a hundred times as long. Values that are not finite count as the
        last one only."""
        found, name = [], ""
        try:
            while (row := self._connection.execute(_NEXT_METRIC, (task, name)).fetchone())[0] is not None:
                name = row[0]
                after = since.get(name, -1)
                count, step, low, high = self._connection.execute(_SPREAD, (task, name, after)).fetchone()
                if count:
                    (last,) = self._connection.execute(_LAST_VALUE, (task, name)).fetchone()
                    summary = PointSummary(
                        name=name, count=count, last_step=step, low=low, high=high, last=_value(last)
                    )
                    found.append(summary)
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            raise StoreError(f"the store at {self.home} must be readable; found: {error}.") from error
        return found

    def metric_names(self, task: str) -> list[str]:
        """The names of a task's metrics, found without reading their points."""
        names, name = [], ""
        while (row := self._connection.execute(_NEXT_METRIC, (task, name)).fetchone())[0] is not None:
            name = row[0]
            names.append(name)
        return names

    @property
    def changes(self) -> int:
        """A number that is another one whenever somebody else has written to the store since it was last asked for."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def points(self, task: str, *, name: str | None = None, after: int = -1, most: int = -1) -> list[Point]:
        """The metrics of a task, by name and step: all, or the one of that name; after a step, so many at most."""
        where = "WHERE task = ? AND step > ?" + (" AND name = ?" if name is not None else "")
        arguments = (task, after, *([] if name is None else [name]), most)
        rows = self._read_checked("points", f"{where} ORDER BY name, step LIMIT ?", arguments)
        return [Point(task=task, name=n, step=s, value=_value(v), at_seconds=at) for _, n, s, v, at in rows]

    def tasks(self, *, workload: str | None = None, identity: TaskId | None = None) -> list[tuple[str, Task]]:
        """Pairs of a workload and a task in the order in which they came: of one workload, of one task, or all. A task
        that several workloads have is listed once, as it came last."""
        wanted = {"workload": workload, "identity": identity}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in given)}" if given else ""
        rows = self._read_checked("tasks", f"{where} ORDER BY rowid", tuple(given.values()))
        found = {identity: (workload, name, record) for identity, workload, name, record in rows}
        return [(each, self._read_task(TaskId(task), name, record)) for task, (each, name, record) in found.items()]

    def _read_task(self, identity: TaskId, name: str, record: str) -> Task:
        """A task on record; one that cannot be read has a stand-in, so that nobody else is in trouble for it."""
        try:
            return loads(Task, record)
        except DovetailError as error:
            self.unreadable[identity] = f"what is on record of it cannot be read: {error} Submit or describe it anew."
            return unreadable_task(identity, name)

    def described(self, workload: str | None) -> list[tuple[str, Task]]:
        """The tasks of a workload as `tasks` gives them; a workload that the store does not know is refused."""
        found = self.tasks(workload=workload)
        if workload is not None and not found:
            known = sorted({name for _, name, *_ in self._read_checked("tasks", "", ())})
            raise StoreError(f"workload must be one of those in the store, {known}, got {workload!r}.")
        return found

    def profiles(self) -> list[Profile]:
        """All profiles of models that were ever measured."""
        return [loads(Profile, row[-1]) for row in self._read_checked("profiles", "", ())]

    def plans(self, *, workload: str | None = None) -> list[tuple[int, float, Plan]]:
        """All plans with their numbers and when they were made, oldest first."""
        where, arguments = ("WHERE workload = ?", (workload,)) if workload is not None else ("", ())
        rows = self._read_checked("plans", f"{where} ORDER BY number", arguments, number=True)
        return [(number, at, loads(Plan, record)) for _, at, record, number in rows]

    def hardware(self, name: str, cls: type[T]) -> T | None:
        """What was measured of the machine under this name, if anything."""
        rows = self._read_checked("hardware", "WHERE name = ?", (name,))
        return loads(cls, rows[0][-1]) if rows else None

    def close(self) -> None:
        """Close the database. May be called twice."""
        if self._writes:
            assert self.home is not None
            with contextlib.suppress(sqlite3.Error):  # a copy that cannot be made now is made by the next
                if not checksums.damage(self._connection):  # what rots while it is open must not reach the copy
                    checksums.keep_copy(self._connection, self.home)
            self._writes = False
        if self._count is not None:
            self._count.close()
            self._count = None
        self._connection.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read_checked(
        self, table: str, where: str, arguments: tuple[Any, ...], *, number: bool = False
    ) -> list[tuple[Any, ...]]:
        """The rows of a table, each held against its checksum; with `number`, each with its number last."""
        columns = checksums.COLUMNS[table]
        query = f"SELECT checksum, {columns}{', rowid' if number else ''} FROM {table} {where}"
        try:
            found = self._connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            if checksums.is_damage(error):
                raise self._damage_error(str(error)) from error
            raise StoreError(f"the store at {self.home} must be readable; found: {error}.") from error
        for seal, *values in found:
            sealed = self._sealed or seal is not None
            if sealed and not checksums.matches(seal, values[:-1] if number else values):
                raise self._damage_error(f"a row of its table {table} does not match its checksum")
        return [row[1:] for row in found]

    def _seal(self, *values: Any) -> tuple[Any, ...]:
        """A row with its checksum. What is kept in memory needs none."""
        return (*values, checksums.checksum(*values) if self._writes else None)

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection, self.home)


def _insert(table: str) -> str:
    columns = checksums.COLUMNS[table]
    places = ", ".join("?" * (columns.count(",") + 2))
    return f"INSERT OR REPLACE INTO {table} ({columns}, checksum) VALUES ({places})"


def event_of_row(kind: str, task: str, attempt: int, at_seconds: float, data: str) -> Event:
    """The event of a row as `Store.rows` gives it."""
    try:
        return read_event(kind, task=task, attempt=attempt, at_seconds=at_seconds, data=json.loads(data))
    except (ValueError, RecursionError) as error:  # as it was written, and no event
        return _unreadable_event(kind, TaskId(task), attempt, at_seconds, error)


def _unreadable_event(kind: str, task: TaskId, attempt: int, at_seconds: float, error: Exception) -> Event:
    """What an event that cannot be read counts as: its task's failure, or a warning where it is of none."""
    reason = f"what is on record of it ({kind}) cannot be read: {error}"
    if task:
        return TaskFailed(task=task, attempt=attempt, at_seconds=at_seconds, reason=reason)
    return Warned(at_seconds=at_seconds, message=reason)


def _how(profile: Profile) -> str:
    """What a profile is kept under besides family, kind and count: a gang of four says nothing of a gang of eight."""
    return f"{profile.technique} {dumps(profile.knobs)}" if profile.knobs else profile.technique


def _value(kept: float | None) -> float:
    """A value as it was before it was written: SQLite keeps NaN as NULL."""
    return float("nan") if kept is None else kept


def _number(value: float) -> float | None:
    """As SQLite keeps it: NaN as NULL, and zero without its sign, which would not match its checksum."""
    return None if value != value else float(value) + 0.0


def free_bytes(home: Path) -> int:
    """How many bytes are free on the disk of a directory, which need not exist yet."""
    existing = next(each for each in (home, *home.absolute().parents) if each.exists())
    return shutil.disk_usage(existing).free


class _Transaction:
    def __init__(self, connection: sqlite3.Connection, home: Path | None) -> None:
        self._connection = connection
        self._home = home

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as problem:
            raise self._refusal(problem) from problem
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._connection.execute("ROLLBACK" if error else "COMMIT")
        except sqlite3.Error as problem:
            error = error or problem
        if isinstance(error, sqlite3.Error | OSError):
            # A transaction that could not be committed is still open, and would refuse the next one.
            if self._connection.in_transaction:
                self._connection.rollback()
            raise self._refusal(error) from error

    def _refusal(self, problem: sqlite3.Error | OSError) -> StoreError:
        room = f" ({show_bytes(free_bytes(self._home))} are free)" if self._home else ""
        # Full, locked, not readable just now: nothing is wrong with what is there.
        kind = StoreRefused if isinstance(problem, sqlite3.OperationalError | OSError) else StoreError
        return kind(
            f"the store at {self._home} must accept writes; found: {problem}. Free some disk space{room} or check "
            f"its permissions, then run again: what was acknowledged before is safe."
        )
