"""Who may write: one controller a store. The kernel drops the lock when its process ends, however it ends."""

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from dovetail.vocabulary import StoreBusy

TRIES = 50


class ControllerLock:
    """Held by the one controller of a store; others are refused, told which process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home, ControllerLock(Path(home)):
    ...     holder(Path(home))["process"] == os.getpid()
    True
    """

    def __init__(self, home: Path, *, note: dict[str, Any] | None = None) -> None:
        self._path = home / "controller.lock"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not self._take(home):
            os.close(self._file)
            other = holder(home) or {}
            raise StoreBusy(
                f"a store must have one controller at a time; {home} is held by process {other.get('process', '?')}. "
                f"Wait for it, stop it with 'dovetail stop', or use another store (--store)."
            )
        text = json.dumps({"process": os.getpid(), **(note or {})}).encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text, 0)

    def _take(self, home: Path) -> bool:
        # Somebody who asks for the holder has the file locked for an instant, and is no holder.
        for _ in range(TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if holder(home) is not None:
                    return False
                time.sleep(0.01)
        return False

    def release(self) -> None:
        """Let the next controller in. May be called twice."""
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "ControllerLock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def holder(home: Path) -> dict[str, Any] | None:
    """What the controller that holds this store wrote of itself, or None where none runs."""
    path = home / "controller.lock"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                found: dict[str, Any] = json.load(file)
                return found
    except (OSError, ValueError):
        return None
