"""The trained model out of a checkpoint."""

import warnings
from pathlib import Path

import safetensors.torch
from torch import nn

from dovetail.train import checkpoint
from dovetail.train.build import build
from dovetail.train.state import TrainingState, unpack
from dovetail.vocabulary import CheckpointError, Task


def load_model(task: Task, directory: Path, *, home: Path | None = None) -> nn.Module:
    """The model that the task's program builds, with its trained weights, in evaluation mode."""
    state = _newest(task, directory)
    model = build(task, home=home).model
    model.load_state_dict(unpack(state.values["model"], state.tensors))
    return model.eval()


def export(task: Task, directory: Path, path: Path, *, home: Path | None = None) -> Path:
    """Write the model to `path`: through its own `save_pretrained` where it has one, else one safetensors file."""
    model = load_model(task, directory, home=home)
    save_pretrained = getattr(model, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(path)
        return path
    if path.suffix != ".safetensors":
        path = path / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    # save_model stores tied tensors once and remembers their other names.
    safetensors.torch.save_model(model, str(path), metadata={"task": task.name})
    return path


def _newest(task: Task, directory: Path) -> TrainingState:
    state, damages = checkpoint.recover(directory, set_aside=False)
    if state is None:
        why = f"; {len(damages)} damaged ones were passed over" if damages else ""
        raise CheckpointError(
            f"task {task.name!r} must have a checkpoint to export; there is none in {directory}{why}."
        )
    for damage in damages:
        warnings.warn(f"{damage.reason} The model is that of step {state.step}.", stacklevel=3)
    return state
