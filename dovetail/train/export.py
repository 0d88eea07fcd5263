"""The trained model out of a checkpoint."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
from torch import nn

from dovetail.store import Folder, check_private, folder_beside, replace
from dovetail.train import checkpoint
from dovetail.train.build import build
from dovetail.train.state import TrainingState, restore_model
from dovetail.vocabulary import CheckpointError, Task
from dovetail.vocabulary.redact import Redactor


def load_model(task: Task, directory: Folder, *, home: Path | None = None, last: bool = False) -> nn.Module:
    """The model that the task's program builds, with its trained weights, in evaluation mode: those of the best
    checkpoint where `Training.keep_best` has one kept, else, or with `last`, those of the last. The store at `home`,
    which says what that program is, must be this user's own: the program is run."""
    if home is not None:
        check_private(home)
    state = _newest(task, directory)
    if not last:
        state = _read_best(state, directory)
    model = build(task, home=home).model
    restore_model(model, state.values["model"], state.tensors)
    return model.eval()


def export(task: Task, directory: Folder, path: Path, *, home: Path | None = None, last: bool = False) -> Path:
    """Write the model to `path`: through its own `save_pretrained` where it has one, else one safetensors file."""
    model = load_model(task, directory, home=home, last=last)
    save_pretrained: Callable[[Path], None] | None = getattr(model, "save_pretrained", None)
    if save_pretrained is None and path.suffix != ".safetensors":
        path = path / "model.safetensors"
    name = Redactor([task.parameters])(task.name)  # models are published
    # Made beside and moved into place, so that what is at `path` is never half a model.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(path) as folder:
            if save_pretrained is not None:
                save_pretrained(folder)
                _place(folder, path)
            else:
                # save_model stores tied tensors once and remembers their other names.
                safetensors.torch.save_model(model, str(folder / "content"), metadata={"task": name})
                replace(folder / "content", path)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"the model of task {name!r} must be written to {path}; found: {error}. Nothing there was changed."
        ) from error
    return path


def _place(made: Path, path: Path) -> None:
    """Give a folder its name: at once where nothing has it, else file by file."""
    if not os.path.lexists(path):
        os.rename(made, path)
        return
    if path.is_symlink() or not path.is_dir():
        raise OSError(f"{path} must be a folder, or not there yet. Name another")
    for file in sorted(made.iterdir()):
        replace(file, path / file.name)


def _read_best(newest: TrainingState, directory: Folder) -> TrainingState:
    """The state that `newest` says is the best one, itself where it does not; with a warning where it is damaged."""
    best = newest.values.get("progress", {}).get("best", {})
    if not best or best["value"] is None or best["step"] == newest.step:
        return newest
    reason = "it is not there"
    for path in checkpoint.complete(directory):
        if checkpoint.step_of(path) == best["step"]:
            try:
                return checkpoint.read(path)
            except CheckpointError as error:
                reason = str(error)
    warnings.warn(
        f"the best checkpoint, of step {best['step']} with {best['metric']} {best['value']:g}, cannot be read: "
        f"{reason}. The model is that of step {newest.step}.",
        stacklevel=4,
    )
    return newest


def _newest(task: Task, directory: Folder) -> TrainingState:
    state, damages = checkpoint.recover(directory, set_aside=False)
    if state is None:
        why = f"; {len(damages)} damaged ones were passed over" if damages else ""
        raise CheckpointError(
            f"task {task.name!r} must have a checkpoint to export; there is none in {directory}{why}."
        )
    for damage in damages:
        warnings.warn(f"{damage.reason} The model is that of step {state.step}.", stacklevel=3)
    return state
