"""Whose a store is. A store names the code that its controller runs, so whoever can write it can run code as the user
who opens it: a controller, and whoever builds a model from it, takes only a store that belongs to this user and that
nobody else can write. Root is no exception: it would run a user's code as root.

Reading is another matter: rows and checkpoints are data and run nothing, so anybody's may be read that can be.
"""

import contextlib
import os
import pwd
import shlex
import stat
import tempfile
from pathlib import Path

from dovetail.vocabulary import StoreError

DATABASE = "store.sqlite"
# What decides which code is run, or is written to or removed by its name. Checkpoints and logs may be links of the
# user's, to a larger disk.
_NAMES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}.last", "acknowledged", "checkpoints-at")
NAMES = (*_NAMES, "controller.lock", "programs", "scratch")


def make_private(home: Path) -> None:
    """Make the store's folder where there is none, so that only this user can enter it; then `check_private`."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(home)


def check_private(home: Path) -> None:
    """Raise `StoreError` unless the store at `home` belongs to this user and nobody else can write it.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     check_private(Path(home))
    """
    _check(home, home.stat(), home)
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _check(home / name, (home / name).lstat(), home)


def _check(path: Path, found: os.stat_result, home: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(
            f"{path} must be the store's own, because it is written and removed; it is a link to {os.readlink(path)}. "
            f"Remove the link; to have it on another disk, put the whole store there (--store)."
        )
    if not _is_own(found.st_uid, home):
        raise StoreError(
            f"a store must belong to the user who opens it, because its tasks are code that runs with that user's "
            f"rights; {path} belongs to {_name(found.st_uid)}, and this is {_name(os.geteuid())}. Use another store "
            f"(--store), or, if you trust all that is in it: chown -R {os.geteuid()} {shlex.quote(str(home))}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(
            f"a store must be writable by its user alone, because its tasks are code that runs with that user's "
            f"rights; {path} has mode {stat.S_IMODE(found.st_mode):o}. If nobody else has changed it, run: "
            f"chmod -R go-w {shlex.quote(str(home))}. Where the disk keeps no modes, use a store on one that does "
            f"(--store); checkpoints may stay here (--checkpoints)."
        )


def _is_own(user: int, home: Path) -> bool:
    """Whether what belongs to `user` there is this user's. Network disks and containers may show other numbers: then
    what counts is the one that they show of what this user makes there."""
    if user == os.geteuid():
        return True
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=home) as file:
        return os.fstat(file.fileno()).st_uid == user
    return False


def _name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return f"user {user}"
