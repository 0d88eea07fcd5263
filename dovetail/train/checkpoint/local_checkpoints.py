"""Checkpoints in a directory of a POSIX file system.

Each is made under a temporary name, synced, and renamed: it exists whole or not at all. Weights that are not trained
are written once: the checkpoints of a process that has saved the same ones before are links to one file.
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from dovetail.store import check_fence
from dovetail.train.checkpoint.content_hash import ContentHash, content_hash
from dovetail.train.checkpoint.format import (
    INDEX,
    Retention,
    Unreachable,
    Unreadable,
    assemble_state,
    check_piece,
    index_of,
    name_of,
    newest_first,
    parts_of,
    piece_of,
    read_index,
    separate_storage,
    too_many,
)
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError
from dovetail.vocabulary.units import show_bytes

PIECE_BYTES = 2 << 30
FROZEN_BYTES = 16 << 20  # less than this is written as fast as it is looked for
_SMALL_BYTES = 1 << 20

# What this process has written of weights that are not trained, by their names: what it was, where, and its entry.
_frozen_pieces: dict[tuple[str, ...], tuple[ContentHash, Path, dict[str, Any]]] = {}


def write(
    root: Path, state: TrainingState, *, task: str, attempt: int, retention: Retention | None = None
) -> tuple[Path, int]:
    """Save `state` under `root`; gives its path and size in bytes. Raises `CheckpointError`, leaving all as it was."""
    final = root / name_of(state.step, attempt)
    if final.exists():  # a retry of the same save: the bytes are the same
        return final, _size(final)
    temporary = root / f".writing-{os.getpid()}-{final.name}"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.mkdir(mode=0o700)
        pieces = _write_pieces(temporary, final, state)
        _write_index(temporary, index_of(state, pieces, task=task, attempt=attempt))
        check_fence(root, attempt)
        os.rename(temporary, final)
        _sync(root)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _explain(error, root, task, state) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    prune(root, retention or Retention())
    return final, _size(final)


def read(path: Path) -> TrainingState:
    """The state in the checkpoint at `path`, every byte of it checked. Raises `CheckpointError`, and what reading
    damaged files raises."""
    try:
        index = read_index((path / INDEX).read_bytes(), path)
        pieces = [_read_piece(path, piece) for piece in index["pieces"]]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} must hold a readable index.json and its pieces; found {error!r}.") from error
    except OSError as error:
        found = Unreadable if error.errno == errno.EIO else Unreachable
        raise found(f"{path} must be reached; found: {error}. Run again to go on.") from error
    return assemble_state(index, pieces, path)


def complete(root: Path) -> list[Path]:
    """The checkpoints under `root`, newest first: by step, then by attempt."""
    if not root.is_dir():
        return []
    return [root / name for name in newest_first([path.name for path in root.iterdir()])]


def exists(path: Path) -> bool:
    """Whether a checkpoint is there."""
    return path.is_dir()


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it is neither met nor counted again."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"damaged-{path.name}"))


def prune(root: Path, retention: Retention) -> None:
    """Remove checkpoints beyond `retention`, and what interrupted writers left."""
    names = os.listdir(root) if root.is_dir() else []
    found = [root / name for name in retention.ordinary(newest_first(names))]
    sizes = [_size(path) if retention.bytes is not None else 0 for path in found]
    for number in too_many(sizes, retention):
        remove(found[number])
    _sweep(root, names)


def sweep(root: Path) -> None:
    """Remove what interrupted writers left."""
    _sweep(root, os.listdir(root) if root.is_dir() else [])


def _sweep(root: Path, names: Sequence[str]) -> None:
    for name in names:
        process = name.split("-")[1] if name.startswith(".writing-") else ""
        if name.startswith(".removing-") or (process.isdecimal() and not _is_alive(int(process))):
            shutil.rmtree(root / name, ignore_errors=True)


def _write_pieces(directory: Path, final: Path, state: TrainingState) -> list[dict[str, Any]]:
    """Write a state's tensors into `directory`, which will be `final`; gives what the index says of each piece."""
    frozen = {name: tensor for name, tensor in state.tensors.items() if name in state.frozen}
    if sum(tensor.nbytes for tensor in frozen.values()) < FROZEN_BYTES:
        frozen = {}
    others = {name: tensor for name, tensor in state.tensors.items() if name not in frozen}
    frozen_parts = list(parts_of(frozen, PIECE_BYTES)) if frozen else []
    parts = [*frozen_parts, *parts_of(others, PIECE_BYTES)]
    prints = [content_hash(part) for part in frozen_parts]
    found = [_link_piece(directory, number, each) for number, each in enumerate(prints)]
    found += [None] * (len(parts) - len(found))
    _check_room(directory, [part for part, linked in zip(parts, found, strict=True) if linked is None])
    pieces = [linked or _write_piece(directory, number, parts[number]) for number, linked in enumerate(found)]
    for each, piece in zip(prints, pieces, strict=False):
        _frozen_pieces[_names_in(each)] = each, final / piece["file"], dict(piece)
    return pieces


def _link_piece(directory: Path, number: int, content: ContentHash) -> dict[str, Any] | None:
    """Have a piece that was written before with this very content, if it is still there and can be linked."""
    before, path, piece = _frozen_pieces.get(_names_in(content), ((), Path(), {}))
    if before != content:
        return None
    file = directory / _piece_name(number)
    try:
        os.link(path, file)
    except OSError:  # removed by now, or this file system has no links
        return None
    return {**piece, "file": file.name}


def _names_in(content: ContentHash) -> tuple[str, ...]:
    return tuple(name for name, *_ in content)


def _check_room(directory: Path, parts: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raise at once what writing would raise at its end: filling a disk with a large state takes minutes."""
    needed = sum(tensor.nbytes for part in parts for tensor in part.values())
    if needed > shutil.disk_usage(directory).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_piece(directory: Path, number: int, part: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    path = directory / _piece_name(number)
    whole = separate_storage(part)
    safetensors.torch.save_file(whole, path)
    size = path.stat().st_size
    return piece_of(path.name, whole, size=size, digest=_sync_and_digest(path, size))


def _sync_and_digest(path: Path, size: int) -> str:
    """Sync a file; gives its digest. A disk takes as long to write a large one as a core to add it up; a small one is
    added up before a thread is there to do so."""
    if size < _SMALL_BYTES:
        _sync(path)
        return _digest(path)
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_digest, path)
        _sync(path)
    return digest.result()


def _piece_name(number: int) -> str:
    return f"piece-{number:05d}.safetensors"


def _write_index(directory: Path, index: bytes) -> None:
    with open(os.open(directory / INDEX, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(index)
        file.flush()
        os.fsync(file.fileno())
    _sync(directory)


def _read_piece(path: Path, piece: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    file = path / piece["file"]
    if not file.is_file():
        raise CheckpointError(f"{file} must exist; it is missing.")
    size = file.stat().st_size
    check_piece(file, piece, size=size, digest=_digest(file) if size == piece["bytes"] else "")
    tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(file)
    return tensors


def _explain(error: Exception, root: Path, task: str, state: TrainingState) -> CheckpointError:
    needed = sum(tensor.nbytes for tensor in state.tensors.values())
    text = str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # Libraries below turn ENOSPC into errors of their own; the number survives only in their text.
    if full or any(word in text for word in ("os error 28", "os error 27", "No space left", "unexpected pos")):
        with contextlib.suppress(OSError):
            text = f"{show_bytes(shutil.disk_usage(root).free)} are free; {text}"
        return CheckpointError(
            f"the disk must have room to save task {task!r} at step {state.step}: about {show_bytes(needed)} at "
            f"{root}; {text}. Free some space, or put the store on a larger disk. Earlier checkpoints are untouched."
        )
    if isinstance(error, PermissionError):
        return CheckpointError(f"{root} must be writable to save task {task!r}; permission was denied ({text}).")
    return CheckpointError(f"task {task!r} could not be saved at step {state.step} under {root}: {text}.")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a checkpoint."""
    # Renamed first, so that a kill half-way leaves no checkpoint that looks whole.
    doomed = path.with_name(f".removing-{path.name}")
    with contextlib.suppress(OSError):
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
