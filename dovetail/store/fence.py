"""The fence: which attempt of a task may commit. A stale attempt that wakes up late finds it raised."""

import hashlib
from pathlib import Path

from dovetail.store.whole import write_whole
from dovetail.vocabulary import CheckpointError


def raise_fence(directory: Path, attempt: int) -> None:
    """From now on only attempts numbered `attempt` or higher may commit in `directory`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     raise_fence(Path(folder), 2)
    ...     check_fence(Path(folder), 2)
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = str(attempt)
    write_whole(directory / "attempt", f"{text} {_digest(text)}".encode())


def check_fence(directory: Path, attempt: int) -> None:
    """Raise `CheckpointError` if `attempt` was given up.

    >>> check_fence(Path("nowhere"), 1)
    """
    path = directory / "attempt"
    try:
        text, _, digest = path.read_text(errors="replace").partition(" ")
    except FileNotFoundError:
        return
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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
