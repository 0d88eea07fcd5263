"""Which callbacks of a `transformers.Trainer` a training keeps: those that only read are called after steps; what is
Dovetail's own business (showing, reporting) is left to it; those that change training are refused by name.
"""

from collections.abc import Callable
from typing import Any

from dovetail.train import Training
from dovetail.vocabulary import ProgramError

_CALLED = ("on_step_end", "on_epoch_end", "on_train_begin")
_INSTEAD = {
    "on_step_begin": "read in on_step_end",
    "on_substep_end": "read in on_step_end",
    "on_pre_optimizer_step": "put what it does into compute_loss or the optimizer",
    "on_optimizer_step": "read in on_step_end",
    "on_epoch_begin": "read in on_epoch_end",
    "on_log": "use dt.run(..., on_metric=...)",
    "on_evaluate": "use dt.run(..., on_evaluate=...)",
    "on_save": "checkpoints are Dovetail's; `dovetail export` gives a model",
    "on_train_end": "use dt.run(..., on_end=...)",
}


def keep_callbacks(trainer: Any, transformers: Any) -> list[Callable[[Training, int], None]]:
    """A training's callbacks for those of a trainer. Raises `ProgramError` where one changes training."""
    kept = []
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, transformers.EarlyStoppingCallback):
            arguments = trainer.args
            metric, goal = arguments.metric_for_best_model, "max" if arguments.greater_is_better else "min"
            raise ProgramError(
                f"the callback {type(callback).__name__} ends training, which is the task's business. Leave it out, "
                f"and ask for it with the task: dt.grid(..., metric='eval_{str(metric).removeprefix('eval_')}', "
                f"patience={callback.early_stopping_patience}, goal={goal!r})."
            )
        # Those of the package show progress, or report to trackers, as Dovetail does.
        if type(callback).__module__.partition(".")[0] != "transformers":
            kept.append(_check_callback(callback, transformers.TrainerCallback))
    return [ReadingCallback(each, trainer, transformers.TrainerControl) for each in kept]


def _check_callback(callback: Any, base: type) -> Any:
    for hook, advice in _INSTEAD.items():
        if getattr(type(callback), hook, None) is not getattr(base, hook, None):
            raise ProgramError(
                f"the callback {type(callback).__name__} has {hook}, which is not called; {advice}. Called are "
                f"{', '.join(_CALLED)}."
            )
    return callback


class ReadingCallback:
    """Calls one callback after steps and epochs, and refuses it where it wants to change something."""

    __slots__ = ("_callback", "_control", "_trainer")

    def __init__(self, callback: Any, trainer: Any, control: Any) -> None:
        self._callback, self._trainer, self._control = callback, trainer, control

    def __call__(self, training: Training, step: int) -> None:
        if step == 1:
            self._call("on_train_begin", training, 0)
        self._call("on_step_end", training, step)
        per_epoch = training.steps_per_epoch()
        if per_epoch and step % per_epoch == 0:
            self._call("on_epoch_end", training, step)

    def _call(self, hook: str, training: Training, step: int) -> None:
        trainer, control = self._trainer, self._control()
        trainer.state.global_step, trainer.state.epoch = step, step / (training.steps_per_epoch() or 1)
        before = self._weights(training)
        getattr(self._callback, hook)(
            trainer.args,
            trainer.state,
            control,
            model=training.model,
            optimizer=training.optimizer,
            lr_scheduler=training.schedule,
            processing_class=trainer.processing_class,
        )
        if any(vars(control).values()) or self._weights(training) != before:
            raise ProgramError(
                f"the callback {type(self._callback).__name__} must only read; its {hook} changed the control, weights "
                f"or learning rates. How long to train, when to evaluate and to save are the task's."
            )

    def _weights(self, training: Training) -> list[Any]:
        rates = [group["lr"] for each in training.optimizers().values() for group in each.param_groups]
        return [*rates, *(parameter._version for parameter in training.model.parameters())]
