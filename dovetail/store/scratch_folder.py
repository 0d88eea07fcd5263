"""What a controller and its workers need only while they run lies in the store's own folder `make_scratch`.

So whatever a killed one leaves there is found by the next controller of the store and removed, and goes with the store
where there is none: nothing gathers in the machine's temporary folder.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

UNLOCKED = ("control-", "code-")
"""How the names of folders begin that are made before the lock is asked for."""


def make_scratch(home: Path, *, prefix: str) -> Path:
    """A new folder that only this user can enter, for the time being; whoever makes it removes it.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     made = make_scratch(Path(home), prefix="meeting-")
    ...     oct(made.stat().st_mode & 0o777), made.name.startswith("meeting-"), made.parent.name
    ('0o700', True, 'scratch')
    """
    folder = home / "scratch"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))


def clear_scratch(home: Path, *, keep: Path | None = None, ends: bool = False) -> None:
    """Remove what others left there, all but `keep`. For the controller that holds the store's lock: whoever else is
    there is refused. One that `ends` leaves what the next one makes before it asks for the lock.

    >>> with tempfile.TemporaryDirectory() as home:
    ...     left = make_scratch(Path(home), prefix="")
    ...     clear_scratch(Path(home))
    ...     left.exists()
    False
    """
    folder = home / "scratch"
    for each in folder.iterdir() if folder.is_dir() else ():
        if keep is not None and each.name == keep.name:  # paths may be relative, or go by links
            continue
        if ends and each.name.startswith(UNLOCKED):
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                each.unlink()
