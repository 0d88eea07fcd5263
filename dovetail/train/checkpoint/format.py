"""What a checkpoint holds, wherever it lies: pieces, and an index of what is in them. Knows no files."""

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dovetail.store import Folder
from dovetail.train.state import TrainingState
from dovetail.vocabulary import CheckpointError

FORMAT = 1
INDEX = "index.json"
_NAME = re.compile(r"step-(\d{9})-attempt-(\d{4,})$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """How many checkpoints of a task to keep, and how many bytes of them; the newest is always kept, and beside these
    that of the step `best_step`.

    >>> Retention().count
    2
    """

    count: int = 2
    bytes: int | None = None
    best_step: int | None = None

    def ordinary(self, names: Sequence[str]) -> list[str]:
        """Those that count and bytes are for, of checkpoints newest first.

        >>> Retention(best_step=5).ordinary(["step-000000010-attempt-0001", "step-000000005-attempt-0001"])
        ['step-000000010-attempt-0001']
        """
        return [name for name in names if self.best_step is None or (numbers_of(name) or (0,))[0] != self.best_step]


class NewerFormat(CheckpointError):
    """A checkpoint that a newer Dovetail wrote. It is not damaged, so it is not passed over."""


class Unreachable(CheckpointError):
    """A checkpoint that could not be looked at. It is not known to be damaged, so it is not passed over."""


class Unreadable(Unreachable):
    """One that a disk, or a server behind it, fails to read: another one may do, but this is left as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """A checkpoint that was passed over, and why."""

    path: Folder
    reason: str


def name_of(step: int, attempt: int) -> str:
    """What the checkpoint of a step is called that an attempt saves.

    >>> name_of(500, 1)
    'step-000000500-attempt-0001'
    """
    return f"step-{step:09d}-attempt-{attempt:04d}"


def numbers_of(name: str) -> tuple[int, int] | None:
    """The step and the attempt of a checkpoint by its name, or None for what is none.

    >>> numbers_of("step-000000500-attempt-0001"), numbers_of("begin")
    ((500, 1), None)
    """
    match = _NAME.match(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def newest_first(names: Sequence[str]) -> list[str]:
    """The names that are of checkpoints, by step, then by attempt, the newest first.

    >>> newest_first(["step-000000005-attempt-0001", "begin", "step-000000010-attempt-0001"])[0]
    'step-000000010-attempt-0001'
    """
    return sorted(
        (name for name in names if numbers_of(name)), reverse=True, key=lambda name: numbers_of(name) or (0, 0)
    )


def too_many(sizes: Sequence[int], retention: Retention) -> list[int]:
    """Which of so many checkpoints, newest first, are beyond `retention`.

    >>> too_many([5, 5, 5], Retention(count=2)), too_many([9, 9], Retention(bytes=10))
    ([2], [1])
    """
    found, total = [], 0
    for number, size in enumerate(sizes):
        total += size
        over = number >= retention.count or (retention.bytes is not None and total > retention.bytes)
        if number > 0 and over:
            found.append(number)
    return found


def parts_of(tensors: Mapping[str, torch.Tensor], piece_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Tensors in pieces of about so many bytes."""
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if part and size + tensor.nbytes > piece_bytes:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def separate_storage(part: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor on the host with bytes of its own: two may share storage (a buffer that is a view), which safetensors
    refuses."""
    seen: set[int] = set()
    whole = {}
    for name, live in part.items():
        tensor = live.detach().cpu().contiguous()
        whole[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(tensor.untyped_storage().data_ptr())
    return whole


def piece_of(file: str, part: Mapping[str, torch.Tensor], *, size: int, digest: str) -> dict[str, Any]:
    """What the index says of a piece that was written."""
    entries = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in part.items()]
    return {"file": file, "bytes": size, "sha256": digest, "entries": entries}


def index_of(state: TrainingState, pieces: list[dict[str, Any]], *, task: str, attempt: int) -> bytes:
    """The index of a checkpoint with these pieces, with a checksum of its own."""
    tensors = {
        name: {
            "dtype": dtype,
            "shape": shape,
            "slices": [{"piece": number, "name": name, "start": [0] * len(shape), "shape": shape}],
        }
        for number, piece in enumerate(pieces)
        for name, dtype, shape in piece.pop("entries")
    }
    index = {
        "format": FORMAT,
        "task": task,
        "attempt": attempt,
        "step": state.step,
        "pieces": pieces,
        "tensors": tensors,
        "values": state.values,
    }
    body = json.dumps(index, separators=(",", ":"))
    return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "index": body}).encode()


def read_index(content: bytes, path: Folder) -> dict[str, Any]:
    """An index that matches its checksum. Raises `CheckpointError`."""
    try:
        outer = json.loads(content)
        body = outer["index"]
        if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
            raise CheckpointError(f"{path}/index.json must match its own checksum; it was altered or torn.")
        index: dict[str, Any] = json.loads(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} must hold a readable index.json; found {error!r}.") from error
    if index["format"] > FORMAT:
        raise NewerFormat(
            f"{path} must be of checkpoint format {FORMAT} or older, it is {index['format']}. Upgrade Dovetail."
        )
    if any("/" in piece["file"] for piece in index["pieces"]):
        raise CheckpointError(f"the pieces of {path} must lie in it; its index names others.")
    return index


def check_piece(file: Folder | str, piece: Mapping[str, Any], *, size: int, digest: str) -> None:
    """Raise `CheckpointError` where a piece is not what the index says."""
    if size != piece["bytes"]:
        raise CheckpointError(f"{file} must have {piece['bytes']} bytes; it has {size}. It is truncated.")
    if digest != piece["sha256"]:
        raise CheckpointError(f"{file} must match its checksum; its bytes were altered.")


def assemble_state(index: Mapping[str, Any], loaded: list[dict[str, torch.Tensor]], path: Folder) -> TrainingState:
    """The state that an index describes, from its pieces. Raises `CheckpointError` where they do not fit each other."""
    numbers = numbers_of(path.name)
    if numbers is not None and index["step"] != numbers[0]:
        raise CheckpointError(f"{path} must be of the step in its name; its index says step {index['step']}.")
    tensors = {name: _assemble(name, entry, loaded, path) for name, entry in index["tensors"].items()}
    return TrainingState(step=index["step"], tensors=tensors, values=index["values"])


def _assemble(name: str, entry: Mapping[str, Any], loaded: list[dict[str, torch.Tensor]], path: Folder) -> torch.Tensor:
    shape, slices, dtype = list(entry["shape"]), entry["slices"], getattr(torch, entry["dtype"])
    parts: list[torch.Tensor] = [loaded[part["piece"]][part["name"]] for part in slices]
    boxes = [list(zip(part["start"], part["shape"], strict=True)) for part in slices]
    wrong = _misfit(shape, dtype, parts, boxes)
    if wrong:
        raise CheckpointError(f"the slices of {name!r} in {path} must cover it once; {wrong}.")
    if len(parts) == 1:
        return parts[0]
    whole = torch.empty(shape, dtype=dtype)
    for part, box in zip(parts, boxes, strict=True):
        whole[tuple(slice(start, start + size) for start, size in box)] = part
    return whole


def _misfit(shape: list[int], dtype: torch.dtype, parts: list[torch.Tensor], boxes: list[list[tuple[int, int]]]) -> str:
    """What is wrong with slices of a tensor, boxes of a start and a size along each dimension; empty where nothing is.
    Boxes inside it that do not overlap and are as many numbers as it has cover it."""
    for part, box in zip(parts, boxes, strict=True):
        if list(part.shape) != [size for _, size in box] or part.dtype != dtype:
            return f"one is said to be {[size for _, size in box]} of {dtype} and is {list(part.shape)} of {part.dtype}"
        if len(box) != len(shape) or any(a < 0 or a + n > whole for (a, n), whole in zip(box, shape, strict=True)):
            return f"one of {box} reaches beyond {shape}"
    if (filled := sum(part.numel() for part in parts)) != math.prod(shape):
        return f"{filled} of {math.prod(shape)} numbers are there"
    full = [box for part, box in zip(parts, boxes, strict=True) if part.numel()]
    if any(_overlap(one, other) for one, other in itertools.combinations(full, 2)):
        return "two of them overlap"
    return ""


def _overlap(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    return all(a < b + m and b < a + n for (a, n), (b, m) in zip(one, other, strict=True))
