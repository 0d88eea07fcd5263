"""Follows one store for all pages that show it: what changed since they last heard, in order and each with a number.

A page that was away for a moment is told what it missed; one that was away for longer than is kept begins anew. A store
that vanishes, is damaged or comes from a newer version is said to be so, and read again once it is well. Everything
here happens on one thread, which SQLite asks for.
"""

import dataclasses
import gzip
import os
import secrets
import time
from collections import deque
from pathlib import Path
from typing import Any

from dovetail.metrics.progress import STATUSES
from dovetail.store import Store, holder
from dovetail.vocabulary import DovetailError, TaskId
from dovetail.web import snapshot
from dovetail.web.plain_data import dump
from dovetail.web.reading import StoreReading

# So many changes are kept for pages that were away, of so many characters in all.
MOST_CHANGES, MOST_CHARACTERS = 512, 8 << 20
# Looking at points of tasks that have ended is put off for so long at most each time, so that others get their answer.
SLICE_SECONDS, SLICE_TASKS = 0.1, 20
# A long store is shown as far as it was read in this time, and read on at once; so many of its events at a time.
READ_SECONDS, ROWS = 0.4, 4_000
# What is said of the whole takes longer with more tasks: it is worked out for at most this part of the time.
SUMMARY_SHARE = 0.02
REOPEN_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageChange:
    """What changed, as pages are sent it, and its number."""

    number: int
    text: str


class StoreFollower:
    """One store as pages see it. Whoever asks for something that needs the store gets `DovetailError` while it cannot
    be read."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.reading = StoreReading()
        self.trouble = "it has not been opened yet"
        self.generation = secrets.token_hex(4)
        self.changes: deque[PageChange] = deque()
        self.number = 0
        self._store: Store | None = None
        self._inode = 0
        self._version = -1
        self._reopen_at = 0.0
        self._summary_at = 0.0
        self._summary: dict[str, Any] = {}
        self._summary_due = True
        self._read_share = 0.0
        self._rows: dict[TaskId, str] = {}
        self._said: dict[str, Any] = {}
        self._packed: tuple[int, bytes] | None = None

    @property
    def store(self) -> Store:
        """The store, where it can be read."""
        if self._store is None:
            raise DovetailError(self.trouble)
        return self._store

    @property
    def now(self) -> float:
        """The time; where nothing runs, that of the last news, since when nothing has gone on."""
        return time.time() if self._controller() is not None else self.reading.as_of_seconds

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read than was read last time."""
        return self._store is not None and not (self.is_read and self.reading.is_summarised)

    @property
    def is_read(self) -> bool:
        """Whether all events that there were have been read; also where there is nothing to read."""
        return self._store is None or self._read_share >= 1.0

    def look(self) -> None:
        """Take in what is new, and keep it for pages."""
        changed: set[TaskId] = set()
        try:
            self._open()
            if self._store is not None:
                changed = self._read(self._store)
        except DovetailError as error:
            self._close(str(error))
        except Exception as error:  # whatever a damaged file leads to, pages are told of it and look on
            self._close(f"the store at {self.home} must be readable; found: {error!r}.")
        self._keep(changed)

    def snapshot(self) -> bytes:
        """Everything, compressed, with the number of the last change in it."""
        if self._packed is None or self._packed[0] != self.number:
            self._packed = self.number, gzip.compress(self._full_text().encode(), 3)
        return self._packed[1]

    def since(self, mark: str) -> list[PageChange] | None:
        """The changes after the one that a page has heard last; None where it must begin anew."""
        generation, _, number = mark.partition(".")
        if generation != self.generation or not number.isdecimal() or int(number) > self.number:
            return None
        first = self.changes[0].number if self.changes else self.number + 1
        if int(number) < first - 1:
            return None
        return [change for change in self.changes if change.number > int(number)]

    def news(self, mark: str) -> tuple[list[PageChange] | None, str, int]:
        """What `since` gives, with the generation and number that are the last now."""
        return self.since(mark), self.generation, self.number

    def close(self) -> None:
        """Close the store."""
        self._close("it is closed")

    def _full_text(self) -> str:
        rest = dump({**self._head(), **self._summary, "statuses": STATUSES})
        rows = ",".join(self._text(task) for task in self.reading.tasks)
        return f'{rest[:-1]},"tasks":[{rows}]}}'

    def _text(self, task: TaskId) -> str:
        found = self._rows.get(task)
        if found is None:
            found = self._rows[task] = dump(snapshot.row(self.reading, task))
        return found

    def _head(self) -> dict[str, Any]:
        return {"mark": f"{self.generation}.{self.number}", "store": str(self.home), **self._said}

    def _open(self) -> None:
        path = self.home / "store.sqlite"
        inode = os.stat(path).st_ino if path.exists() else 0
        if self._store is not None and inode != self._inode:
            self._close(f"the store at {self.home} is gone, or another one has taken its place")
        if self._store is None and time.monotonic() >= self._reopen_at:
            self._reopen_at = time.monotonic() + REOPEN_SECONDS
            self._store = Store(self.home)
            self._inode, self._version, self.trouble = inode, -1, ""
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.reading, self.generation = StoreReading(), secrets.token_hex(4)
        self.changes.clear()
        self.number, self._packed, self._summary_at, self._summary = 0, None, 0.0, {}
        self._read_share = 0.0
        self._rows.clear()

    def _close(self, trouble: str) -> None:
        self.trouble, self._packed = trouble, None
        if self._store is not None:
            store, self._store = self._store, None
            store.close()

    def _read(self, store: Store) -> set[TaskId]:
        changed: set[TaskId] = set()
        version = store.changes
        if version != self._version:
            changed |= self._read_events(store)
            changed |= self.reading.look_at_running(store)
            if self.is_read:
                self._version = version
        due = time.monotonic() + SLICE_SECONDS
        while self.is_read and not self.reading.is_summarised and time.monotonic() < due:
            changed |= self.reading.summarise(store, most=SLICE_TASKS)
        return changed

    def _read_events(self, store: Store) -> set[TaskId]:
        """Read events for a while; gives the tasks that may have changed."""
        changed: set[TaskId] = set()
        due, was_read = time.monotonic() + READ_SECONDS, self.is_read
        before = -1
        while (number := self.reading.event_number) != before:
            if before >= 0 and time.monotonic() > due and (last := store.last_number("events")) > number:
                self._read_share = number / last
                return changed
            before = number
            changed |= self.reading.read(store, most=ROWS)
        self._read_share = 1.0
        if not was_read:
            self._summary_at = 0.0  # what was said of the whole so far was of a part
        return changed

    def _keep(self, changed: set[TaskId]) -> None:
        """Make a change of what is new, if anything is."""
        for task in changed:
            self._rows.pop(task, None)
        share = None if self.is_read else round(self._read_share, 2)
        said = {"trouble": self.trouble, "controller": self._controller(), "reading": share}
        is_new = said != self._said or bool(changed)
        summary = self._sum_up(is_new)
        if not is_new and not summary:
            return
        self._said = said
        self.number += 1
        ordered = sorted(changed, key=lambda task: self.reading.tasks[task].place)
        rows = ",".join(self._text(task) for task in ordered)
        text = f'{dump({**self._head(), **summary})[:-1]},"tasks":[{rows}]}}'
        self.changes.append(PageChange(number=self.number, text=text))
        size = sum(len(change.text) for change in self.changes)
        while len(self.changes) > MOST_CHANGES or (size > MOST_CHARACTERS and len(self.changes) > 1):
            size -= len(self.changes.popleft().text)

    def _sum_up(self, is_new: bool) -> dict[str, Any]:
        """What is to be said of the whole that is other than before, where that is due."""
        self._summary_due = self._summary_due or is_new
        if not self._summary_due or time.monotonic() < self._summary_at:
            return {}
        began, before = time.monotonic(), self._summary
        self._summary = snapshot.summary(self.reading, now=self.now)
        self._summary_at = time.monotonic() + (time.monotonic() - began) / SUMMARY_SHARE
        self._summary_due = False
        return {name: value for name, value in self._summary.items() if name not in before or before[name] != value}

    def _controller(self) -> dict[str, Any] | None:
        """Who runs on the store. The lock of one that has died is free at once, however it died."""
        found = holder(self.home)
        if found is None:
            return None
        return {"process": found.get("process"), "listens": "socket" in found or "port" in found}
