"""Models as a server has them: arrays in, arrays out; and what a program's batches say that a model takes."""

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn

from dovetail.serve.cascades.labelled import ask
from dovetail.serve.cascades.model_cascade import ModelCascade
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

# Under these names a batch has what the model is to say, not what it is told.
_LABELS = ("labels", "label", "targets", "target")


@dataclasses.dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, or a cascade of them, with what it takes.

    >>> served = ServedModel(nn.Linear(3, 2), Schema.of(numpy.zeros((1, 3), dtype="float32")))
    >>> served.answer([numpy.ones((5, 3), dtype="float32")]).shape
    (5, 2)
    """

    model: nn.Module | ModelCascade
    schema: Schema
    device: str = "cpu"

    def answer(self, arrays: Sequence[numpy.ndarray]) -> numpy.ndarray:
        """The model's scores for each row of these inputs."""
        inputs = self.schema.to_inputs([torch.from_numpy(array) for array in arrays])
        if isinstance(self.model, ModelCascade):
            found = self.model.scores(inputs)
        else:
            found = ask(self.model, inputs, torch.device(self.device))
        answers: numpy.ndarray = found.float().cpu().numpy() if found.is_floating_point() else found.cpu().numpy()
        if len(answers) != len(arrays[0]):
            raise DovetailError(f"a model must answer each row; of {len(arrays[0])} rows it answered {len(answers)}.")
        return answers

    @property
    def stages(self) -> numpy.ndarray | None:
        """Of a cascade, the number of the stage that answered each row of the last call."""
        return self.model.reached.numpy() if isinstance(self.model, ModelCascade) else None


def inputs_of(batch: Any, *, count: int = 1) -> Any:
    """What a model is told of a batch: by name all but the labels; of a tuple the first, which may be several, or the
    first `count`; else all of it."""
    if isinstance(batch, Mapping):
        found = {name: _rows(value) for name, value in batch.items() if name not in _LABELS}
        if not found:
            raise DovetailError(f"a batch must have inputs beside labels to be served; it has {sorted(batch)}.")
        return found
    if not isinstance(batch, tuple | list):
        return _rows(batch)
    if isinstance(batch[0], Mapping):
        return inputs_of(batch[0])
    parts = batch[0] if isinstance(batch[0], tuple | list) else batch[:count]
    return tuple(_rows(each) for each in parts) if len(parts) > 1 else _rows(parts[0])


def required_count(model: nn.Module) -> int:
    """How many inputs a model's `forward` must be given, one at least; one where it does not say, as traced ones."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters.values()
    except (TypeError, ValueError):
        return 1
    return max(1, sum(each.kind in by_place and each.default is inspect.Parameter.empty for each in found))


def _rows(value: Any) -> numpy.ndarray:
    try:
        found: numpy.ndarray = torch.as_tensor(value).detach().numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DovetailError(
            f"a model is served where its batches hold arrays of numbers, of types that NumPy has; found: {error}"
        ) from error
    return found


def best_device() -> str:
    """An accelerator where there is one."""
    return "cuda" if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES", "0") else "cpu"
