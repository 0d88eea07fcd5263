"""Rows with labels for models that are trained: inputs as they are given to a model, a part of them, all of them."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.vocabulary import DovetailError


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledInputs:
    """Inputs (a tensor, several, or several by name, with a row for each example) and the class of each row."""

    inputs: Any
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: Any) -> "LabelledInputs":
        """The chosen rows, with their labels."""
        return LabelledInputs(rows_of(self.inputs, which), self.labels[which])


def gather(given: Any) -> LabelledInputs:
    """Rows with labels out of a pair of tensors or arrays, or of batches of such pairs (a `DataLoader`, a list)."""
    if isinstance(given, tuple) and len(given) == 2 and _is_rows(given[0]) and _is_rows(given[1]):
        batches: Iterable[Any] = [given]
    elif isinstance(given, Iterable):
        batches = given
    else:
        raise DovetailError(
            f"rows to calibrate with must be (inputs, labels) or batches of such pairs; got a {type(given).__name__}."
        )
    inputs, labels = [], []
    for batch in batches:
        if not (isinstance(batch, Sequence) and len(batch) == 2):
            raise DovetailError(
                f"a batch to calibrate with must be a pair of inputs and labels; got a {type(batch).__name__}."
            )
        inputs.append(_as_tensors(batch[0]))
        labels.append(torch.as_tensor(batch[1]).reshape(-1))
        if count_inputs(inputs[-1]) != len(labels[-1]):
            raise DovetailError(
                f"there must be a label for each row; got {count_inputs(inputs[-1])} rows and {len(labels[-1])} labels."
            )
    if not labels:
        raise DovetailError("there must be rows to calibrate with; there are none.")
    return LabelledInputs(_join(inputs), torch.cat(labels))


def rows_of(inputs: Any, which: Any) -> Any:
    """Some rows of inputs, in the same shape."""
    if isinstance(inputs, Mapping):
        return {name: value[which] for name, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(value[which] for value in inputs)
    return inputs[which]


def ask(model: nn.Module, inputs: Any, device: torch.device) -> torch.Tensor:
    """What a model answers, whether it gives that alone, first of several, or as `logits`."""
    with torch.inference_mode():
        if isinstance(inputs, Mapping):
            found = model(**{name: value.to(device) for name, value in inputs.items()})
        elif isinstance(inputs, tuple):
            found = model(*(value.to(device) for value in inputs))
        else:
            found = model(inputs.to(device))
    if hasattr(found, "logits"):
        found = found.logits
    elif isinstance(found, Mapping) and "logits" in found:
        found = found["logits"]
    elif isinstance(found, tuple):
        found = found[0]
    if not isinstance(found, torch.Tensor) or found.dim() == 0:
        raise DovetailError(
            f"a model must answer with a tensor that has a row for each row; got a {_type_name(found)}."
        )
    return found


def ask_scores(model: nn.Module, inputs: Any, device: torch.device) -> torch.Tensor:
    """The same, of a classifier: a score for each class of each row."""
    found = ask(model, inputs, device)
    if found.dim() != 2:
        raise DovetailError(
            f"a stage of a cascade must give a score for each class of each row; it gives {tuple(found.shape)}."
        )
    return found


def _type_name(found: Any) -> str:
    return "number" if isinstance(found, torch.Tensor) else type(found).__name__


def _is_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor | numpy.ndarray | Mapping) or (
        isinstance(value, tuple) and all(isinstance(each, torch.Tensor | numpy.ndarray) for each in value)
    )


def _as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: torch.as_tensor(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(torch.as_tensor(value) for value in inputs)
    return torch.as_tensor(inputs)


def count_inputs(inputs: Any) -> int:
    """How many rows there are."""
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)


def _join(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))
    return torch.cat(list(parts))
