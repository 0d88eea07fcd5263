"""Checkpoints on a path that fsspec reaches, where there is no rename.

The pieces are written first and the index last: a folder without an index is no checkpoint, and one whose index is torn
does not match its own checksum. Removing goes the other way: the index first. After its index a checkpoint's name is
noted (`saved_names`), and only then is it acknowledged: it is found again while listings do not show it yet. Nothing is
removed because a listing lacks something.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence

import safetensors.torch
import torch

from dovetail.store import RemoteFolder, check_fence, raise_fence
from dovetail.train.checkpoint.format import (
    INDEX,
    Retention,
    Unreachable,
    assemble_state,
    check_piece,
    index_of,
    name_of,
    newest_first,
    numbers_of,
    parts_of,
    piece_of,
    read_index,
    separate_storage,
    too_many,
)
from dovetail.train.checkpoint.saved_names import note_names, noted_names
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError
from dovetail.vocabulary.units import show_bytes

# A piece is whole in the host's memory for as long as it is written or read.
PIECE_BYTES = 256 << 20
_DAMAGED = "damaged-index.json"


def write(
    root: RemoteFolder, state: TrainingState, *, task: str, attempt: int, retention: Retention | None = None
) -> tuple[RemoteFolder, int]:
    """Save `state` under `root`; gives its path and size in bytes. Raises `CheckpointError`, leaving all as it was."""
    final, written = root / name_of(state.step, attempt), list[str]()
    try:
        if final.has(INDEX):  # a retry of the same save: the bytes are the same
            size = _size(final)
        else:
            size = _write_pieces(final, state, written, task=task, attempt=attempt, root=root)
        beyond = _acknowledge(final, root, attempt, retention or Retention())
    except OSError as error:
        _abandon(final, written)
        raise CheckpointError(
            f"task {task!r} must be saved at step {state.step}, about "
            f"{show_bytes(sum(tensor.nbytes for tensor in state.tensors.values()))} at {root}; found: {error}. Earlier "
            f"checkpoints are untouched."
        ) from error
    except BaseException:
        _abandon(final, written)
        raise
    with contextlib.suppress(OSError):  # what is too many now will be so after the next save
        for path in beyond:
            remove(path)
    return final, size


def _write_pieces(
    final: RemoteFolder, state: TrainingState, written: list[str], *, task: str, attempt: int, root: RemoteFolder
) -> int:
    """Write a checkpoint's files, the index last, each name into `written` before its file; gives their bytes."""
    pieces = []
    for number, part in enumerate(parts_of(state.tensors, PIECE_BYTES)):
        whole, file = separate_storage(part), f"piece-{number:05d}.safetensors"
        content = safetensors.torch.save(whole)
        written.append(file)
        final.write(file, content)
        digest = hashlib.sha256(content).hexdigest()
        pieces.append(piece_of(file, whole, size=len(content), digest=digest))
    size: int = sum(piece["bytes"] for piece in pieces)
    index = index_of(state, pieces, task=task, attempt=attempt)
    if check_fence(root, attempt) < attempt:  # it could not be raised when the attempt began; names are found by it
        raise_fence(root, attempt)
    written.append(INDEX)
    final.write(INDEX, index)
    return size + len(index)


def _acknowledge(final: RemoteFolder, root: RemoteFolder, attempt: int, retention: Retention) -> list[RemoteFolder]:
    """Note the checkpoint's name with those of the others to keep; gives those beyond `retention`."""
    names = [final.name, *noted_names(root, attempt)]
    found, beyond = [root / name for name in newest_first(names)], list[RemoteFolder]()
    with contextlib.suppress(OSError, CheckpointError):  # a save that cannot tidy up is a save
        found = _find_checkpoints(root, names)
        beyond = _select_surplus(found, retention)
    note_names(root, attempt, [path.name for path in found if path not in beyond])
    return beyond


def _abandon(final: RemoteFolder, written: list[str]) -> None:
    """Remove what a failed save wrote, the index first, by name; not with patience, which the save has used up."""
    at_once = dataclasses.replace(final, retry_seconds=0.0)
    with contextlib.suppress(OSError):
        for name in reversed(written):
            with contextlib.suppress(FileNotFoundError):
                at_once.remove(name)
        if written:
            at_once.remove()  # where folders are more than a part of names


def read(path: RemoteFolder) -> TrainingState:
    """The state in the checkpoint at `path`, every byte of it checked. Raises `CheckpointError`, and what reading
    damaged files raises."""
    index = read_index(_read(path, INDEX), path)
    loaded: list[dict[str, torch.Tensor]] = []
    for piece in index["pieces"]:
        content = _read(path, piece["file"])
        digest = hashlib.sha256(content).hexdigest()
        check_piece(f"{path}/{piece['file']}", piece, size=len(content), digest=digest)
        loaded.append(safetensors.torch.load(content))
    return assemble_state(index, loaded, path)


def complete(root: RemoteFolder) -> list[RemoteFolder]:
    """The checkpoints under `root`, newest first: by step, then by attempt."""
    try:
        return _find_checkpoints(root, noted_names(root))
    except OSError as error:
        raise Unreachable(f"{root} must be reached to see which checkpoints there are; found: {error}.") from error


def _find_checkpoints(root: RemoteFolder, noted: Sequence[str]) -> list[RemoteFolder]:
    """Checkpoints that are listed with their index; and those that are noted, or listed without one, and have an index
    when it is asked for by its name."""
    listed = _list_files(root)
    names = newest_first(list({*(name for name, _ in listed), *noted}))
    return [root / name for name in names if (name, INDEX) in listed or exists(root / name)]


def _list_files(root: RemoteFolder) -> set[tuple[str, str]]:
    """The folders of checkpoints that a listing shows, each with a file that it shows in them."""
    parts = (path.split("/") for path in root.files())
    return {(part[0], part[1]) for part in parts if len(part) == 2 and numbers_of(part[0])}


def exists(path: RemoteFolder) -> bool:
    """Whether a checkpoint is there."""
    return path.has(INDEX)


def files_of(path: RemoteFolder) -> list[str]:
    """The names of a checkpoint's files, its index last; as the index has them, not as they are listed."""
    return [*(piece["file"] for piece in read_index(_read(path, INDEX), path)["pieces"]), INDEX]


def _size(path: RemoteFolder) -> int:
    content = _read(path, INDEX)
    pieces: int = sum(piece["bytes"] for piece in read_index(content, path)["pieces"])
    return pieces + len(content)


def _read(path: RemoteFolder, name: str) -> bytes:
    try:
        return path.read(name)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}/{name} must exist; it is missing.") from error
    except OSError as error:
        raise Unreachable(f"{path}/{name} must be reached; found: {error}. Run again to go on.") from error


def set_aside(path: RemoteFolder) -> None:
    """Mark a checkpoint as damaged: it counts no more, but all of it is still there."""
    with contextlib.suppress(OSError):
        path.write(_DAMAGED, path.read(INDEX))
        path.remove(INDEX)


def prune(root: RemoteFolder, retention: Retention) -> None:
    """Remove checkpoints beyond `retention`."""
    for path in _select_surplus(complete(root), retention):
        remove(path)


def _select_surplus(found: Sequence[RemoteFolder], retention: Retention) -> list[RemoteFolder]:
    names = set(retention.ordinary([path.name for path in found]))
    ordinary = [path for path in found if path.name in names]
    sizes = [_size(path) if retention.bytes is not None else 0 for path in ordinary]
    return [ordinary[number] for number in too_many(sizes, retention)]


def remove(path: RemoteFolder) -> None:
    """Remove a checkpoint. Without its index it is none, whatever is left of it for a moment."""
    path.remove(INDEX)
    with contextlib.suppress(FileNotFoundError):  # nothing else of it is listed
        path.remove()


def sweep(root: RemoteFolder) -> None:
    """Remove what interrupted writers left. For an attempt that begins: those before it may save no more."""
    with contextlib.suppress(OSError):
        listed = _list_files(root)
        for name in filter(numbers_of, root.names()):  # folders without a file, too, where there are folders
            if not any((name, file) in listed or (root / name).has(file) for file in (INDEX, _DAMAGED)):
                (root / name).remove()
