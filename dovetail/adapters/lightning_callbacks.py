"""Which callbacks and hooks of Lightning a training keeps, and how: those that only read are called; what is Dovetail's
own business (saving, showing) is left to it; those that change training are refused by name, with what to do instead.
"""

import dataclasses
import warnings
from typing import Any

from dovetail.vocabulary import ProgramError

# What Dovetail does itself, or only concerns Lightning's own loop.
_LEFT_TO_DOVETAIL = (
    *("ProgressBar", "ModelSummary", "LearningRateMonitor", "DeviceStatsMonitor", "ThroughputMonitor"),
    *("OnExceptionCheckpoint", "BasePredictionWriter", "SpikeDetection", "Checkpoint"),
)
_INSTEAD = {
    "StochasticWeightAveraging": "average in a callback of dt.Training: see 'Callbacks and state of your own' in "
    "docs/training.md",
    "WeightAveraging": "average in a callback of dt.Training: see 'Callbacks and state of your own' in "
    "docs/training.md",
    "GradientAccumulationScheduler": "give Trainer(accumulate_grad_batches=...) one number",
    "BaseFinetuning": "freeze parameters in the module, and train further from a checkpoint with others",
    "ModelPruning": "prune the trained model that result[task].model() gives",
    "BatchSizeFinder": "sweep the batch size: dt.grid(program, batch_size=[...])",
    "LearningRateFinder": "sweep it: dt.grid(program, learning_rate=[...])",
    "Timer": "leave it out and give the task a limit: dt.grid(..., steps=...) or epochs=...",
}
_CHANGING_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
_READING_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
)
_UNCALLED_HOOKS = ("on_train_end", "on_fit_end", "on_exception")
# Hooks of a module that make its step Lightning's own: taken whole, by one device.
_STEP_HOOKS = (
    *_CHANGING_HOOKS,
    *_READING_HOOKS,
    *("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptCallbacks:
    """The callbacks to call, whether any of them wants to be called at steps, and the metric whose best checkpoint a
    `ModelCheckpoint` asked for, with its goal."""

    called: tuple[Any, ...]
    at_steps: bool
    keep_best: str | None
    goal: str | None


def keep_callbacks(callbacks: Any, *, package: Any) -> KeptCallbacks:
    """Raise `ProgramError` where a callback changes training, naming it. `package` is Lightning's `callbacks`."""
    called, best = [], {}
    for callback in callbacks:
        if isinstance(callback, package.ModelCheckpoint):
            if callback.monitor is not None:
                best[callback.monitor] = callback.mode
            continue
        _refuse(callback, package)
        if not isinstance(callback, _classes(package, _LEFT_TO_DOVETAIL)):
            _check_hooks(callback, package.Callback)
            called.append(callback)
    if len(best) > 1:
        raise ProgramError(
            f"a training keeps the best checkpoint by one metric; the ModelCheckpoint callbacks monitor "
            f"{sorted(best)}. Give the Trainer one of them."
        )
    monitor, goal = next(iter(best.items())) if best else (None, None)
    at_steps = any(overrides(each, hook, package.Callback) for each in called for hook in _READING_HOOKS)
    return KeptCallbacks(called=tuple(called), at_steps=at_steps, keep_best=monitor, goal=goal)


def overrides(thing: Any, hook: str, base: type) -> bool:
    """Whether an object has a hook of its own in the place of its framework's."""
    return hook in vars(thing) or getattr(type(thing), hook, None) is not getattr(base, hook, None)


def steps_itself(module: Any, base: type) -> bool:
    """Whether a module of automatic optimization has hooks in its step."""
    return any(overrides(module, hook, base) for hook in _STEP_HOOKS)


def refuse_hooks(module: Any, base: type) -> None:
    """Raise `ProgramError` for hooks of a module that a training cannot keep."""
    instead = {
        "lr_scheduler_step": "give schedulers that step by themselves, or set self.automatic_optimization = False",
        "on_save_checkpoint": "keep what it saves in buffers (self.register_buffer), which every checkpoint has",
        "on_load_checkpoint": "keep what it loads in buffers (self.register_buffer), which every checkpoint has",
    }
    for hook, advice in instead.items():
        if overrides(module, hook, base):
            raise ProgramError(f"{type(module).__name__}.{hook} cannot be kept; {advice}.")
    _warn_uncalled(module, base)


def _refuse(callback: Any, package: Any) -> None:
    name = type(callback).__name__
    if isinstance(callback, package.EarlyStopping):
        limit = f", goal={callback.mode!r}"
        raise ProgramError(
            f"the callback {name} ends training, which is the task's business. Leave it out, and ask for it with the "
            f"task: dt.grid(..., metric={callback.monitor!r}, patience={callback.patience}{limit})."
        )
    for kind, advice in _INSTEAD.items():
        if isinstance(callback, _classes(package, (kind,))):
            raise ProgramError(f"the callback {name} changes training, so it cannot be kept; {advice}.")


def _check_hooks(callback: Any, base: type) -> None:
    for hook in _CHANGING_HOOKS:
        if overrides(callback, hook, base):
            raise ProgramError(
                f"the callback {type(callback).__name__} has {hook}, from where it can change training, so it cannot "
                f"be kept. Put it into the LightningModule's own {hook}, or read in on_train_batch_end."
            )
    _warn_uncalled(callback, base)


def _warn_uncalled(thing: Any, base: type) -> None:
    for hook in _UNCALLED_HOOKS:
        if overrides(thing, hook, base):
            warnings.warn(
                f"{type(thing).__name__}.{hook} is not called: a task that has ended may be given more steps. What is "
                f"to happen at its end goes into dt.run(..., on_end=...).",
                stacklevel=2,
            )


def _classes(package: Any, names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(getattr(package, name) for name in names if hasattr(package, name))
