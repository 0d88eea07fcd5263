"""The fence: which attempt of a task may commit. A stale attempt that wakes up late finds it raised."""

import os
from pathlib import Path

from dovetail.vocabulary import CheckpointError


def raise_fence(directory: Path, attempt: int) -> None:
    """From now on only attempts numbered `attempt` or higher may commit in `directory`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     raise_fence(Path(folder), 2)
    ...     check_fence(Path(folder), 2)
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = directory / f".attempt-{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(str(attempt))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, directory / "attempt")


def check_fence(directory: Path, attempt: int) -> None:
    """Raise `CheckpointError` if `attempt` was given up.

    >>> check_fence(Path("nowhere"), 1)
    """
    try:
        current = int((directory / "attempt").read_text())
    except FileNotFoundError:
        return
    if attempt < current:
        raise CheckpointError(
            f"a task must be saved by its newest attempt, {current}; this is attempt {attempt}, which was given up. "
            f"Nothing was written."
        )
