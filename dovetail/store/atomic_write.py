"""Files that are there whole or not at all, and private: made in a folder of their own beside, synced, and renamed.

That folder has a random name and only this user can enter it, so nobody can put a link or a file of their own in the
way, and no two writers of one path meet. Whoever writes holds a lock on it; what a killed one left has none.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks finds the old one or the new one, and only this user can look.

    What a killed process left beside it is removed by the next. Raises OSError, leaving the old one as it was; also
    where what is there is no regular file.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "page", b"text")
    ...     [each.name for each in Path(folder).iterdir()]
    ['page']
    """
    check_replaceable(path)
    with folder_beside(path) as folder:
        # Nothing of its name is in this one: who looks for files by a part of their names must not find half a file.
        made = folder / "content"
        with open(os.open(made, NEW_FILE, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        replace(made, path)


def replace(made: Path, path: Path) -> None:
    """Give what was made in a `folder_beside` its name. Raises OSError where a link, a folder or a device has it."""
    check_replaceable(path)
    os.replace(made, path)


def check_replaceable(path: Path) -> None:
    """Raise OSError unless there is a regular file at `path`, or nothing yet.

    >>> check_replaceable(Path("/dev/null"))
    Traceback (most recent call last):
    OSError: /dev/null must be a regular file, or not there yet; it is a device. Name another file
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "device")
        raise OSError(f"{path} must be a regular file, or not there yet; it is a {kind}. Name another file")


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, on the same disk, that only this user can enter: to make what `path` is to be.

    It is removed afterwards, as are those that killed writers of the same path have left. Raises OSError.
    """
    prefix = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"
    _sweep(path.parent, prefix)
    folder, lock = _make(path.parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=parent))
        with contextlib.suppress(FileNotFoundError):  # another writer took it for a killed one's before it was locked
            lock = os.open(folder, _FOLDER)
            with contextlib.suppress(OSError):  # where a disk has no locks, nobody removes what others left either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the folders of killed writers: real ones, of this user, that nobody holds."""
    for left in parent.glob(f"{prefix}*.part"):
        with contextlib.suppress(OSError):
            held = os.open(left, _FOLDER)
            try:
                if os.fstat(held).st_uid == os.geteuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)
