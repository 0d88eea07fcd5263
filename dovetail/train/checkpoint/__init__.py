"""The one checkpoint format: a directory of safetensors pieces and a JSON index, written last.

```
<task>/step-000000500-attempt-0001/piece-00000.safetensors   tensors, or slices of them
                                   index.json                 what is where, checksums, everything else
<task>/attempt                                                the attempt that may commit
<task>/saved-attempt-0001.json                                the names of its checkpoints (in a remote folder)
<task>/begin/                                                 the checkpoint whose weights the task begins with, if any
```
Each tensor is a list of slices, so any number of ranks can write their parts and any technique can read the whole.
In a local folder a checkpoint comes to be by a rename, in a remote one by its index, which is written last. Knows
files; knows nothing of models.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import safetensors

from dovetail.store import Folder, RemoteFolder
from dovetail.train.checkpoint import local_checkpoints, remote_checkpoints
from dovetail.train.checkpoint.format import INDEX, Damage, NewerFormat, Retention, Unreachable, Unreadable, numbers_of
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError

__all__ = [
    "Damage",
    "NewerFormat",
    "Retention",
    "complete",
    "discard",
    "fetch",
    "files_of",
    "prune",
    "read",
    "read_begin",
    "recover",
    "step_of",
    "write",
]


def write(
    root: Folder, state: TrainingState, *, task: str, attempt: int, retention: Retention | None = None
) -> tuple[Folder, int]:
    """Save `state` under `root`; gives its path and size in bytes. Raises `CheckpointError`, leaving all as it was."""
    folder, size = _storage(root).write(root, state, task=task, attempt=attempt, retention=retention)
    return folder, size


def read(path: Folder) -> TrainingState:
    """The state in the checkpoint at `path`, every byte of it checked. Raises `CheckpointError`."""
    try:
        state: TrainingState = _storage(path).read(path)
        return state
    except (OSError, KeyError, TypeError, IndexError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} must be a whole checkpoint; reading it gave {error!r}.") from error


def read_begin(root: Folder, *, digest: str) -> TrainingState:
    """The state whose weights a task begins with, kept under `root` since it was cloned; `digest` is what the task says
    of it (`Task.begins_with`). Raises `CheckpointError`."""
    path = root / "begin"
    state = read(path)
    content = path.read(INDEX) if isinstance(path, RemoteFolder) else (path / INDEX).read_bytes()
    found = json.loads(content)["sha256"]
    if not digest or not found.startswith(digest):
        raise CheckpointError(f"{path} must be the checkpoint {digest} that the task begins with; it is {found[:16]}.")
    return state


def complete(root: Folder) -> list[Folder]:
    """The checkpoints under `root`, newest first: by step, then by attempt."""
    return list(_storage(root).complete(root))


def recover(
    root: Folder,
    *,
    at_most: int | None = None,
    set_aside: bool = True,
    known: Mapping[str, TrainingState] | None = None,
) -> tuple[TrainingState | None, list[Damage]]:
    """The newest sound state under `root`, of step `at_most` at most, and what was passed over on the way.

    Damaged checkpoints are set aside under another name, so that they are neither met nor counted again; whoever
    only reads leaves them. Raises `CheckpointError` for one that only a newer Dovetail can read, and where it cannot be
    told what there is. States that are `known`, by their paths, are not read again.
    """
    damages, unreadable = list[Damage](), None
    if set_aside:
        _storage(root).sweep(root)
    for path in complete(root):
        if at_most is not None and step_of(path) > at_most:
            continue
        try:
            return (known or {}).get(str(path)) or read(path), damages
        except Unreadable as error:
            damages.append(Damage(path=path, reason=str(error)))
            unreadable = error
        except (NewerFormat, Unreachable):
            raise  # it is sound, or may be, and whoever can read it must find it
        except CheckpointError as error:
            damages.append(Damage(path=path, reason=str(error)))
            if set_aside:
                _storage(path).set_aside(path)
    if unreadable is not None:  # to begin anew would be to forget it
        raise unreadable
    return None, damages


def fetch(root: Folder) -> dict[str, TrainingState]:
    """The newest state under `root` by its path, for `recover` to know; nothing where there is none that is sound.
    Changes nothing."""
    with contextlib.suppress(CheckpointError):
        for path in complete(root)[:1]:
            return {str(path): read(path)}
    return {}


def discard(root: Folder, *, up_to_attempt: int) -> None:
    """Remove the checkpoints that attempts up to this one have saved: their task is trained anew. Raises
    `CheckpointError` where one cannot be removed, for training would go on from it."""
    if not up_to_attempt:
        return
    discarded = [path for path in complete(root) if (numbers_of(path.name) or (0, 0))[1] <= up_to_attempt]
    for path in discarded:
        _storage(root).remove(path)
    if left := [path for path in discarded if _storage(root).exists(path)]:
        raise CheckpointError(f"{left[0]} must be removed, because its task is trained anew; it cannot be.")


def step_of(path: Folder) -> int:
    """The step after which the checkpoint at `path` was taken."""
    numbers = numbers_of(path.name)
    assert numbers, path
    return numbers[0]


def prune(root: Folder, retention: Retention) -> None:
    """Remove checkpoints beyond `retention`, and what interrupted writers left."""
    _storage(root).prune(root, retention)


def files_of(path: RemoteFolder) -> list[str]:
    """The names of the files of a remote checkpoint, its index last."""
    return remote_checkpoints.files_of(path)


def _storage(folder: Folder) -> Any:
    """The module that keeps checkpoints in such a folder."""
    return remote_checkpoints if isinstance(folder, RemoteFolder) else local_checkpoints
