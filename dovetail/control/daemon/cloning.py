"""What a warm clone begins with: the last checkpoint of another task, kept for it under its own name.

The clone has the other's weights (parameters and buffers of its model) and nothing else: it begins at step 0 with an
optimizer, a schedule, a data position and random numbers of its own, since the parameters in which it differs, a
learning rate, a seed, show exactly there. Files are linked, not copied, so that the other task may go on and drop them.
"""

import json
import os
import shutil
from pathlib import Path

from dovetail.store import Folder, RemoteFolder, Store, checkpoints_of
from dovetail.vocabulary import CheckpointError, TaskId
from dovetail.vocabulary.events import CheckpointSaved

INDEX = "index.json"


def last_saved(store: Store, task: TaskId) -> tuple[Folder, int] | None:
    """The newest checkpoint of a task that is on record and still there, and its step."""
    if store.home is None:
        return None
    saved = [event for _, event in store.events(task=task) if isinstance(event, CheckpointSaved)]
    for event in reversed(saved):
        path = checkpoints_of(store.home) / task / event.path.rpartition("/")[2]
        if path.has(INDEX) if isinstance(path, RemoteFolder) else (path / INDEX).is_file():
            return path, event.step
    return None


def digest_of(checkpoint: Folder) -> str:
    """What names a checkpoint by its content, as `Task.begins_with` has it: the digest of its index, which holds the
    digests of all the rest."""
    try:
        content = checkpoint.read(INDEX) if isinstance(checkpoint, RemoteFolder) else (checkpoint / INDEX).read_bytes()
        found: str = json.loads(content)["sha256"][:16]
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint} must hold a readable index.json; found {error!r}.") from error


def keep(checkpoint: Folder, directory: Folder) -> None:
    """Keep a checkpoint as what the task of `directory` begins with, whatever becomes of the original."""
    try:
        if isinstance(checkpoint, RemoteFolder):
            assert isinstance(directory, RemoteFolder)
            _copy(checkpoint, directory / "begin")
        else:
            assert isinstance(directory, Path)
            _keep(checkpoint, directory)
    except (OSError, shutil.Error) as error:
        raise CheckpointError(
            f"{checkpoint} must be there to be kept under {directory}; found: {error}. It may just have been replaced "
            f"by a newer one: try again."
        ) from error


def _copy(checkpoint: RemoteFolder, kept: RemoteFolder) -> None:
    from dovetail.train.checkpoint import files_of  # loads torch, which a daemon that clones nothing does without

    for name in files_of(checkpoint):  # the index last: it makes the checkpoint exist
        kept.write(name, checkpoint.read(name))


def _keep(checkpoint: Path, directory: Path) -> None:
    making, kept = directory / f".making-{os.getpid()}", directory / "begin"
    shutil.rmtree(making, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, making, copy_function=_link)
        shutil.rmtree(kept, ignore_errors=True)
        making.rename(kept)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except PermissionError:  # file systems without links
        shutil.copy2(source, target)
