"""Where the checkpoints of a store are: beside it, or where its first run was told to put them.

That is settled once and noted in the store, so that whoever goes on, exports or clones finds them without being told.
"""

import secrets
from pathlib import Path

from dovetail.store.atomic_write import write_atomically
from dovetail.store.remote_folder import Folder, RemoteFolder, folder_of
from dovetail.vocabulary import StoreError

_NOTE = "checkpoints-at"


def checkpoints_of(home: Path) -> Folder:
    """The folder of a store's checkpoints, one folder a task.

    >>> checkpoints_of(Path("/data/sweep"))
    PosixPath('/data/sweep/checkpoints')
    """
    try:
        return folder_of((home / _NOTE).read_text())
    except FileNotFoundError:
        return home / "checkpoints"


def settle_checkpoints(home: Path, wanted: str | None) -> Folder:
    """Have a store's checkpoints where `wanted` says (None: where they are), if that can be reached and written. Raises
    `StoreError`, before anything is trained."""
    now = checkpoints_of(home)
    if wanted is not None:
        asked = folder_of(wanted)
        asked = asked.resolve() if isinstance(asked, Path) else asked
        begun = (home / _NOTE).exists() or any(now.iterdir() if isinstance(now, Path) and now.is_dir() else ())
        if begun and str(asked).rstrip("/") != str(now).rstrip("/"):
            raise StoreError(
                f"the checkpoints of a store must stay in one place; those of {home} are at {now}, not at {asked}. "
                f"Leave out --checkpoints to go on there, or use another store (--store)."
            )
        _check_writable(asked)
        write_atomically(home / _NOTE, str(asked).encode())
        return asked
    if isinstance(now, RemoteFolder):
        _check_writable(now)
    return now


def _check_writable(folder: Folder) -> None:
    mark, content = f".writable-{secrets.token_hex(8)}", secrets.token_bytes(16)
    try:
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(folder / mark, content)
            found = (folder / mark).read_bytes()
            (folder / mark).unlink()
        else:
            folder.write(mark, content)
            found = folder.read(mark)
            folder.remove(mark)
    except OSError as error:
        raise StoreError(f"checkpoints at {folder} must be writable; found: {error}.") from error
    if found != content:
        raise StoreError(f"checkpoints at {folder} must be read as they were written; {mark} was not.")
