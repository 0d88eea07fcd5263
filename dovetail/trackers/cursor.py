"""What a tracker has been sent of a store: a small SQLite file beside it, one for each tracker.

One process at a time holds it, so that nothing is sent by two; the kernel lets go of it when that process ends,
however it ends. What is noted was sent; what was sent and not noted is found out by asking the tracker.
"""

import contextlib
import dataclasses
import hashlib
import json
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from dovetail.vocabulary import DovetailError, FrozenDict, StoreBusy

FOLDER = "trackers"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentRun:
    """What was sent of one run: by metric the last step, a digest of what else it was told, whether its model went
    along, and what the tracker itself wants to know of it again."""

    state: str = ""
    steps: Mapping[str, int] = FrozenDict()
    told: str = ""
    model: str = ""


class TrackerCursor:
    """The cursor of one tracker, held until closed. Raises `StoreBusy` where another process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     cursor = TrackerCursor(Path(home), "tensorboard", "/runs")
    ...     cursor.note("a", SentRun(steps={"loss": 9}))
    ...     cursor.close()
    ...     TrackerCursor(Path(home), "tensorboard", "/runs").runs["a"].steps["loss"]
    9
    """

    def __init__(self, home: Path, kind: str, place: str) -> None:
        path = cursor_path(home, kind, place)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
            # Held from here on, until the connection is closed.
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("BEGIN EXCLUSIVE")
            self._connection.execute("CREATE TABLE IF NOT EXISTS runs (key TEXT PRIMARY KEY, record TEXT NOT NULL)")
            self._connection.execute("CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL)")
            new = ("store", secrets.token_hex(6))
            self._connection.execute("INSERT OR IGNORE INTO notes VALUES (?, ?)", new)
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreBusy(
                    f"a tracker must be sent to by one process at a time; another one sends to {kind} from {home}. "
                    f"Wait for it to end."
                ) from None
            raise _unusable(home, error) from error
        except (sqlite3.Error, OSError) as error:
            raise _unusable(home, error) from error
        self.runs = _read_runs(self._connection)
        """What was sent, by the run's key."""
        self.store = _read_note(self._connection, "store")
        """A name that no other store's runs have."""

    def note(self, key: str, sent: SentRun) -> None:
        """Note what was sent of a run; on disk when this returns."""
        record = json.dumps({**dataclasses.asdict(sent), "steps": dict(sent.steps)})
        self._connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (key, record))
        self.runs[key] = sent

    def note_trouble(self, text: str) -> None:
        """Note why nothing can be sent for now, or, with an empty text, that it can again."""
        self._connection.execute("INSERT OR REPLACE INTO notes VALUES ('trouble', ?)", (text,))

    def close(self) -> None:
        """Let others hold it. May be called twice."""
        self._connection.close()


def cursor_path(home: Path, kind: str, place: str) -> Path:
    """Where the cursor of a tracker is kept. A place may have a password in it, so it is not part of the name."""
    return home / FOLDER / f"{kind}-{hashlib.sha256(place.encode()).hexdigest()[:12]}.sqlite"


def read_cursor(home: Path, kind: str, place: str) -> tuple[str, dict[str, SentRun], str]:
    """What a cursor that nobody holds says: the name of its store's runs, what was sent, and what the trouble is."""
    path = cursor_path(home, kind, place)
    if not path.exists():
        return "", {}, ""
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return _read_note(connection, "store"), _read_runs(connection), _read_note(connection, "trouble")
    except sqlite3.Error as error:
        raise _unusable(home, error) from error


def _read_runs(connection: sqlite3.Connection) -> dict[str, SentRun]:
    return {key: SentRun(**json.loads(record)) for key, record in connection.execute("SELECT key, record FROM runs")}


def _read_note(connection: sqlite3.Connection, name: str) -> str:
    found = connection.execute("SELECT text FROM notes WHERE name = ?", (name,)).fetchone()
    return str(found[0]) if found else ""


def _unusable(home: Path, error: Exception) -> DovetailError:
    return DovetailError(
        f"what a tracker was sent must be noted in {home / FOLDER}, which must be writable; found: {error}. Check its "
        f"permissions and its disk."
    )
