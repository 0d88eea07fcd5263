"""What a controller and its workers need only while they run lies in the store's own folder `scratch`.

So whatever a killed one leaves there is found by the next controller of the store and removed, and goes with the store
where there is none: nothing gathers in the machine's temporary folder. What is removed is what Dovetail made: in a
folder of the store's own, never through a link, by its name and its owner.
"""

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from pathlib import Path

from dovetail.vocabulary import StoreError

UNLOCKED = ("control-", "code-")
"""How the names of folders begin that are made before the lock is asked for."""
MADE = (*UNLOCKED, "mark-", "meeting-", "shards-", tempfile.gettempprefix())
"""How the names begin of all that Dovetail makes there; workers use Python's own temporary names."""


def make_scratch(home: Path, *, prefix: str) -> Path:
    """A new folder that only this user can enter, for the time being; whoever makes it removes it.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     made = make_scratch(Path(home), prefix="meeting-")
    ...     oct(made.stat().st_mode & 0o777), made.name.startswith("meeting-"), made.parent.name
    ('0o700', True, 'scratch')
    """
    assert prefix in MADE, prefix
    home.mkdir(parents=True, exist_ok=True, mode=0o700)  # `parents` alone would make it readable to others
    folder = home / "scratch"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _owner_of(folder)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))


def clear_scratch(home: Path, *, keep: Path | None = None, ends: bool = False) -> None:
    """Remove what others left there, all but `keep`. For the controller that holds the store's lock: whoever else is
    there is refused. One that `ends` leaves what the next one makes before it asks for the lock. Raises `StoreError`
    where the folder is a link.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     left = make_scratch(Path(home), prefix="meeting-")
    ...     clear_scratch(Path(home))
    ...     left.exists()
    False
    """
    folder = home / "scratch"
    if (owner := _owner_of(folder)) is None:
        return
    for each in folder.iterdir():
        if keep is not None and each.name == keep.name:  # paths may be relative, or go by links
            continue
        if ends and each.name.startswith(UNLOCKED):
            continue
        with contextlib.suppress(OSError):
            if each.name.startswith(MADE) and each.lstat().st_uid == owner:
                _remove(each)


def _remove(path: Path) -> None:
    if stat.S_ISDIR(path.lstat().st_mode):
        shutil.rmtree(path, ignore_errors=True)  # it follows no links
    else:
        path.unlink()


def _owner_of(folder: Path) -> int | None:
    """Whose folder it is, None where it is not there. Raises `StoreError` for what is no folder of the store's own."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        kind = f"a link to {os.readlink(folder)}" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise StoreError(
            f"{folder} must be a folder of the store's own, because what is left in it is removed; it is {kind}. Run: "
            f"rm {shlex.quote(str(folder))}. To have it on another disk, put the whole store there (--store)."
        )
    return found.st_uid
