"""The one checkpoint format: a directory of safetensors pieces and a JSON index, written last.

```
<task>/step-000000500-attempt-0001/piece-00000.safetensors   tensors, or slices of them
                                   index.json                 what is where, checksums, everything else
<task>/attempt                                                the attempt that may commit
<task>/begin/                                                 the checkpoint whose weights the task begins with, if any
```
A checkpoint is made under a temporary name, synced, and renamed: it exists whole or not at all. Each tensor
is a list of slices, so any number of ranks can write their parts and any technique can read the whole.
Knows files; knows nothing of models.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from dovetail.store import check_fence
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError
from dovetail.vocabulary.units import show_bytes

FORMAT = 1
PIECE_BYTES = 2 << 30
_NAME = re.compile(r"step-(\d{9})-attempt-(\d{4,})$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """How many checkpoints of a task to keep, and how many bytes of them; the newest is always kept.

    >>> Retention().count
    2
    """

    count: int = 2
    bytes: int | None = None


class NewerFormat(CheckpointError):
    """A checkpoint that a newer Dovetail wrote. It is not damaged, so it is not passed over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


def write(
    root: Path, state: TrainingState, *, task: str, attempt: int, retention: Retention | None = None
) -> tuple[Path, int]:
    """Save `state` under `root`; gives its path and size in bytes. Raises `CheckpointError`, leaving all as it was."""
    final = root / f"step-{state.step:09d}-attempt-{attempt:04d}"
    if final.exists():  # a retry of the same save: the bytes are the same
        return final, _size(final)
    temporary = root / f".writing-{os.getpid()}-{final.name}"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.mkdir(mode=0o700)
        pieces = [_write_piece(temporary, n, part) for n, part in enumerate(_parts(state.tensors))]
        _write_index(temporary, _index(state, pieces, task=task, attempt=attempt))
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
    """The state in the checkpoint at `path`, every byte of it checked. Raises `CheckpointError`."""
    try:
        return _read(path)
    except (OSError, KeyError, TypeError, IndexError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} must be a whole checkpoint; reading it gave {error!r}.") from error


def _read(path: Path) -> TrainingState:
    index = _read_index(path)
    loaded = [_read_piece(path, piece) for piece in index["pieces"]]
    tensors = {name: _assemble(name, entry, loaded, path) for name, entry in index["tensors"].items()}
    return TrainingState(step=index["step"], tensors=tensors, values=index["values"])


def read_begin(root: Path, *, digest: str) -> TrainingState:
    """The state whose weights a task begins with, kept under `root` since it was cloned; `digest` is what the task says
    of it (`Task.begins_with`). Raises `CheckpointError`."""
    path = root / "begin"
    state = read(path)
    found = json.loads((path / "index.json").read_text())["sha256"]
    if not digest or not found.startswith(digest):
        raise CheckpointError(f"{path} must be the checkpoint {digest} that the task begins with; it is {found[:16]}.")
    return state


def complete(root: Path) -> list[Path]:
    """The checkpoints under `root`, newest first: by step, then by attempt."""
    if not root.is_dir():
        return []
    found = [(match.groups(), path) for path in root.iterdir() if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found, reverse=True, key=lambda pair: [int(n) for n in pair[0]])]


def recover(
    root: Path, *, at_most: int | None = None, set_aside: bool = True
) -> tuple[TrainingState | None, list[Damage]]:
    """The newest sound state under `root`, of step `at_most` at most, and what was passed over on the way.

    Damaged checkpoints are set aside under another name, so that they are neither met nor counted again; whoever
    only reads leaves them. Raises `CheckpointError` for one that only a newer Dovetail can read.
    """
    damages: list[Damage] = []
    if set_aside:
        _sweep(root)
    for path in complete(root):
        if at_most is not None and step_of(path) > at_most:
            continue
        try:
            return read(path), damages
        except NewerFormat:
            raise  # it is sound, and whoever can read it must find it
        except CheckpointError as error:
            damages.append(Damage(path=path, reason=str(error)))
            if set_aside:
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(f"damaged-{path.name}"))
    return None, damages


def step_of(path: Path) -> int:
    """The step after which the checkpoint at `path` was taken."""
    match = _NAME.match(path.name)
    assert match, path
    return int(match.group(1))


def prune(root: Path, retention: Retention) -> None:
    """Remove checkpoints beyond `retention`, and what interrupted writers left."""
    total = 0
    for number, path in enumerate(complete(root)):
        total += _size(path)
        over = number >= retention.count or (retention.bytes is not None and total > retention.bytes)
        if number > 0 and over:
            _remove(path)
    _sweep(root)


def _sweep(root: Path) -> None:
    """Remove what interrupted writers left."""
    for path in root.glob(".writing-*"):
        if not _is_alive(int(path.name.split("-")[1])):
            shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(".removing-*"):
        shutil.rmtree(path, ignore_errors=True)


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if part and size + tensor.nbytes > PIECE_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    yield part


def _write_piece(directory: Path, number: int, part: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    path = directory / f"piece-{number:05d}.safetensors"
    # Two entries may share storage (a buffer that is a view); safetensors wants each to own its bytes.
    seen: set[int] = set()
    whole = {}
    for name, tensor in part.items():
        whole[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(tensor.untyped_storage().data_ptr())
    safetensors.torch.save_file(whole, path)
    _sync(path)
    entries = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in whole.items()]
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": _digest(path), "entries": entries}


def _index(state: TrainingState, pieces: list[dict[str, Any]], *, task: str, attempt: int) -> dict[str, Any]:
    tensors = {
        name: {
            "dtype": dtype,
            "shape": shape,
            "slices": [{"piece": number, "name": name, "start": [0] * len(shape), "shape": shape}],
        }
        for number, piece in enumerate(pieces)
        for name, dtype, shape in piece.pop("entries")
    }
    return {
        "format": FORMAT,
        "task": task,
        "attempt": attempt,
        "step": state.step,
        "pieces": pieces,
        "tensors": tensors,
        "values": state.values,
    }


def _write_index(directory: Path, index: dict[str, Any]) -> None:
    body = json.dumps(index, separators=(",", ":"))
    with open(directory / "index.json", "w") as file:
        json.dump({"sha256": hashlib.sha256(body.encode()).hexdigest(), "index": body}, file)
        file.flush()
        os.fsync(file.fileno())
    _sync(directory)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        outer = json.loads((path / "index.json").read_text())
        body = outer["index"]
        if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
            raise CheckpointError(f"{path}/index.json must match its own checksum; it was altered or torn.")
        index: dict[str, Any] = json.loads(body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} must hold a readable index.json; found {error!r}.") from error
    if index["format"] > FORMAT:
        raise NewerFormat(
            f"{path} must be of checkpoint format {FORMAT} or older, it is {index['format']}. Upgrade Dovetail."
        )
    return index


def _read_piece(path: Path, piece: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    file = path / piece["file"]
    if not file.is_file():
        raise CheckpointError(f"{file} must exist; it is missing.")
    if file.stat().st_size != piece["bytes"]:
        raise CheckpointError(
            f"{file} must have {piece['bytes']} bytes; it has {file.stat().st_size}. It is truncated."
        )
    if _digest(file) != piece["sha256"]:
        raise CheckpointError(f"{file} must match its checksum; its bytes were altered.")
    tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(file)
    return tensors


def _assemble(name: str, entry: Mapping[str, Any], loaded: list[dict[str, torch.Tensor]], path: Path) -> torch.Tensor:
    slices = entry["slices"]
    if len(slices) == 1 and slices[0]["shape"] == entry["shape"]:
        only: torch.Tensor = loaded[slices[0]["piece"]][slices[0]["name"]]
        return only
    whole = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
    filled = 0
    for part in slices:
        region = tuple(slice(a, a + n) for a, n in zip(part["start"], part["shape"], strict=True))
        whole[region] = loaded[part["piece"]][part["name"]]
        filled += loaded[part["piece"]][part["name"]].numel()
    if filled != whole.numel():
        raise CheckpointError(f"slices of {name!r} in {path} must cover it; {filled} of {whole.numel()} are there.")
    return whole


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


def _remove(path: Path) -> None:
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
