"""Folders on a machine's own disk that nobody but this user can enter: for code that is to be imported from there, and
for sockets of services.

Ray makes its own folders writable for everybody. So whatever of a run lies on a node lies below a folder of this user's
that was looked at before: no neighbour can put a file there, nor another folder in its place.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from dovetail.vocabulary import DovetailError

# How the names of folders begin that are not locked yet, and how old one must be to belong to nobody any more.
_UNLOCKED, _YOUNG_SECONDS = ".new-", 60.0


class PrivateFolder:
    """A new folder of this process, at `path`; what dead processes have left beside it is removed first.

    >>> made = PrivateFolder("example-")
    >>> oct(made.path.stat().st_mode & 0o777), oct(made.path.parent.stat().st_mode & 0o777)
    ('0o700', '0o700')
    >>> made.close()
    >>> made.path.exists()
    False
    """

    def __init__(self, prefix: str, *, root: Path | None = None) -> None:
        parent = ensure_private((root or Path(tempfile.gettempdir())) / f"dovetail-{os.geteuid()}")
        _remove_abandoned(parent)
        made = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=parent))
        # For as long as this process lives, however it ends.
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(parent / made.name.replace(_UNLOCKED, prefix, 1))

    def close(self) -> None:
        """Remove the folder with all that is in it, and what processes that ended meanwhile have left beside it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        _remove_abandoned(self.path.parent)


def ensure_private(path: Path) -> Path:
    """Make a folder that nobody else can enter, or refuse the one that is there: it must be this user's own, closed to
    others, and in a folder where others cannot rename it."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found, around = path.lstat(), path.parent.stat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise DovetailError(
            f"{path} must be a folder of this user that nobody else can enter; found {stat.filemode(found.st_mode)} of "
            f"user {found.st_uid}. Remove it, or set TMPDIR to a folder of your own."
        )
    if around.st_mode & 0o022 and not around.st_mode & stat.S_ISVTX:
        raise DovetailError(
            f"{path.parent} must be a folder in which others cannot rename what is yours; found "
            f"{stat.filemode(around.st_mode)}. Set TMPDIR to a folder of your own."
        )
    return path


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders whose processes are gone: nobody holds their lock."""
    for each in parent.iterdir():
        with contextlib.suppress(OSError):
            folder = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_young = time.time() - os.fstat(folder).st_mtime < _YOUNG_SECONDS
                if not (each.name.startswith(_UNLOCKED) and is_young):
                    shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(folder)
