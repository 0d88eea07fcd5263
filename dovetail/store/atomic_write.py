"""Files that are there whole or not at all, and private: written beside, synced, and renamed."""

import contextlib
import hashlib
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks finds the old one or the new one, and only this user can look.

    What a killed process left beside it is overwritten by the next. Raises OSError, leaving the old one as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "page", b"text")
    ...     [each.name for each in Path(folder).iterdir()]
    ['page']
    """
    # Nothing of its name is in this one: who looks for files by a part of their names must not find half a file.
    beside = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:12]}.part")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
