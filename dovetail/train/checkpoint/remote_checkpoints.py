"""Checkpoints on a path that fsspec reaches, where there is no rename.

The pieces are written first and the index last: a folder without an index is no checkpoint, and one whose index is torn
does not match its own checksum. Removing goes the other way: the index first.
"""

import contextlib
import hashlib

import safetensors.torch
import torch

from dovetail.store import RemoteFolder, check_fence
from dovetail.train.checkpoint.format import (
    INDEX,
    Retention,
    Unreachable,
    apart,
    assembled,
    check_piece,
    index_of,
    name_of,
    newest_first,
    numbers_of,
    parts_of,
    piece_of,
    read_index,
    too_many,
)
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
    final, pieces = root / name_of(state.step, attempt), []
    try:
        if INDEX in (names := final.names()):  # a retry of the same save: the bytes are the same
            return final, sum(final.size(name) for name in names)
        for number, part in enumerate(parts_of(state.tensors, PIECE_BYTES)):
            whole, file = apart(part), f"piece-{number:05d}.safetensors"
            content = safetensors.torch.save(whole)
            final.write(file, content)
            digest = hashlib.sha256(content).hexdigest()
            pieces.append(piece_of(file, whole, size=len(content), digest=digest))
        size = sum(piece["bytes"] for piece in pieces)
        index = index_of(state, pieces, task=task, attempt=attempt)
        check_fence(root, attempt)
        final.write(INDEX, index)
    except OSError as error:
        with contextlib.suppress(OSError):
            final.remove()
        raise CheckpointError(
            f"task {task!r} must be saved at step {state.step}, about "
            f"{show_bytes(sum(tensor.nbytes for tensor in state.tensors.values()))} at {root}; found: {error}. Earlier "
            f"checkpoints are untouched."
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            final.remove()
        raise
    with contextlib.suppress(OSError, Unreachable):  # what is too many now will be so after the next save
        prune(root, retention or Retention())
    return final, size + len(index)


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
    return assembled(index, loaded, path)


def complete(root: RemoteFolder) -> list[RemoteFolder]:
    """The checkpoints under `root`, newest first: by step, then by attempt."""
    try:
        return [root / name for name in newest_first(root.names()) if INDEX in (root / name).names()]
    except OSError as error:
        raise Unreachable(f"{root} must be reached to see which checkpoints there are; found: {error}.") from error


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
    found = [root / name for name in retention.ordinary([path.name for path in complete(root)])]
    for number in too_many([sum(path.size(name) for name in path.names()) for path in found], retention):
        remove(found[number])


def remove(path: RemoteFolder) -> None:
    """Remove a checkpoint. Without its index it is none, whatever is left of it for a moment."""
    path.remove(INDEX)
    path.remove()


def sweep(root: RemoteFolder) -> None:
    """Remove what interrupted writers left. For an attempt that begins: those before it may save no more."""
    with contextlib.suppress(OSError):
        for name in root.names():
            if numbers_of(name) and not {INDEX, _DAMAGED} & set((root / name).names()):
                (root / name).remove()
