"""State of a stream in one file: arrays as safetensors, the rest as JSON in its head. Nothing in it runs code when
read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from dovetail.vocabulary import DovetailError

_ARRAY = "array:"


def write_state(path: Path, state: Any, *, what: str) -> Path:
    """Write a tree of dicts, lists, arrays and plain values, and what it is of; a reader sees the file before or after,
    never half."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_pack(state, arrays))
    unfinished = path.with_name(f".{path.name}.unfinished")
    solid = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    unfinished.write_bytes(safetensors.numpy.save(solid, metadata={"state": text, "what": what}))
    unfinished.replace(path)
    return path


def read_state(path: Path, *, what: str) -> Any:
    """What was written."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            head = file.metadata() or {}
            if head["what"] != what:
                raise ValueError(f"it is {head['what']}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return _unpack(json.loads(head["state"]), arrays)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise DovetailError(f"{path} must be {what} that was saved; it cannot be read ({error}).") from error


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name := f"{_ARRAY}{len(arrays)}"] = value
        return {_ARRAY: name}
    if isinstance(value, dict):
        return {key: _pack(each, arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(each, arrays) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _unpack(value: Any, arrays: Any) -> Any:
    if isinstance(value, dict):
        return arrays[value[_ARRAY]] if _ARRAY in value else {key: _unpack(each, arrays) for key, each in value.items()}
    return [_unpack(each, arrays) for each in value] if isinstance(value, list) else value
