"""The fence: which attempt of a task may commit. A stale attempt that wakes up late finds it raised."""

import hashlib

from dovetail.store.atomic_write import write_atomically
from dovetail.store.remote_folder import Folder, RemoteFolder
from dovetail.vocabulary import CheckpointError


def raise_fence(directory: Folder, attempt: int) -> None:
    """From now on only attempts numbered `attempt` or higher may commit in `directory`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     raise_fence(Path(folder), 2)
    ...     check_fence(Path(folder), 2)
    2
    """
    text = str(attempt)
    content = f"{text} {_digest(text)}".encode()
    if isinstance(directory, RemoteFolder):
        directory.write("attempt", content)
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(directory / "attempt", content)


def check_fence(directory: Folder, attempt: int) -> int:
    """The attempt that may commit, 0 where none was named. Raises `CheckpointError` if `attempt` was given up.

    >>> from pathlib import Path
    >>> check_fence(Path("nowhere"), 1)
    0
    """
    path = directory / "attempt"
    try:
        content = (
            directory.read("attempt") if isinstance(directory, RemoteFolder) else (directory / "attempt").read_bytes()
        )
        text, _, digest = content.decode(errors="replace").partition(" ")
    except FileNotFoundError:
        return 0
    if digest != _digest(text):
        raise CheckpointError(
            f"{path} must match its checksum; its bytes were altered, so it cannot say which attempt may save. Nothing "
            f"was written. The next attempt makes it anew: run again."
        )
    current = int(text)
    if attempt < current:
        raise CheckpointError(
            f"a task must be saved by its newest attempt, {current}; this is attempt {attempt}, which was given up. "
            f"Nothing was written."
        )
    return current


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
