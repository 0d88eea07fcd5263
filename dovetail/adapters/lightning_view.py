"""What a Lightning module sees of its trainer while Dovetail trains it.

A module reads flags of its trainer, its optimizers, the epoch; it logs, and steps optimizers itself where it wants to.
`TrainerView` answers all of that and hands what it does not know to the `Trainer` that was given, which never runs. It
is attached for the length of a call only, so that copies of a module, and comparisons of two, meet no trainer.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.vocabulary import ProgramError

# What of a trainer may enter a step's arithmetic: tasks whose trainers differ here are not one program.
_FLAGS = (
    *("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm"),
    *("precision", "limit_train_batches", "limit_val_batches", "check_val_every_n_epoch", "log_every_n_steps"),
)


class OptimizerSteps:
    """How many steps the optimizers of a module have taken that steps them itself: what Lightning calls its global step
    there. Declared as state, for no step of Dovetail's tells it."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        """The number of steps taken."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Count on from the number of steps in this state."""
        self.count = state["count"]


class TrainerView:
    """A trainer as a module finds it. Equal views give equal answers."""

    __slots__ = (
        "__weakref__",
        "_given",
        "_logger_connector",
        "_results",
        "batch_idx",
        "current_epoch",
        "datamodule",
        "global_step",
        "logger",
        "lr_scheduler_configs",
        "num_training_batches",
        "optimizers",
        "paths",
        "sanity_checking",
        "should_stop",
        "strategy",
        "training",
        "validating",
    )

    def __init__(self, given: Any, *, logger: Any) -> None:
        self._given, self.logger, self.datamodule = given, logger, None
        self.paths: tuple[str, ...] | None = None
        """Where Lightning modules are in the model, once that is set up."""
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        self.strategy: ViewedStrategy | None = None
        self.current_epoch = self.global_step = self.batch_idx = 0
        self.training, self.validating, self.sanity_checking, self.should_stop = True, False, False, False
        self.num_training_batches: float = math.inf
        self._results: Any = None
        self._logger_connector = _LoggerConnector()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def __eq__(self, other: object) -> bool:
        """Two trainers whose flags are the same; neither optimizers nor data enter a step through them."""
        if not isinstance(other, TrainerView):
            return NotImplemented
        return all(getattr(self, name, None) == getattr(other, name, None) for name in _FLAGS)

    __hash__ = None  # type: ignore[assignment]

    @property
    def loggers(self) -> list[Any]:
        """A list of the one logger, which keeps nothing."""
        return [self.logger]

    @property
    def max_epochs(self) -> int:
        """As Lightning has it when it runs: a thousand where nothing was said."""
        given: int | None = self._given.max_epochs
        return given if given is not None else (1000 if self._given.max_steps == -1 else -1)

    @property
    def estimated_stepping_batches(self) -> float:
        """How many steps the Trainer's own limits come to; schedules are made for so many."""
        limit: int = self._given.max_steps
        accumulate: int = self._given.accumulate_grad_batches
        if self.max_epochs == -1 or math.isinf(self.num_training_batches):
            return limit if limit != -1 else math.inf
        steps = math.ceil(self.num_training_batches / accumulate) * max(self.max_epochs, 1)
        return steps if limit == -1 else min(steps, limit)

    @property
    def is_last_batch(self) -> bool:
        """Whether this batch is its epoch's last."""
        return self.batch_idx + 1 >= self.num_training_batches

    @property
    def world_size(self) -> int:
        """One: how many devices a task has is Dovetail's business, and changes nothing of what it learns."""
        return 1

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that prints."""
        return True

    @property
    def progress_bar_callback(self) -> None:
        """There is none: Dovetail shows progress."""
        return None


class _LoggerConnector:
    """What `LightningModule.log` asks while it evaluates."""

    _current_fx: str | None = None

    def should_reset_tensors(self, fx: str) -> bool:
        """Never: what is logged is of one evaluation."""
        return False


class ViewedStrategy:
    """Backward and optimizer steps as modules ask for them, on whatever device Dovetail has put the module."""

    def __init__(self, module: Any, *, clip: Callable[[Any], None], steps: OptimizerSteps) -> None:
        self.lightning_module, self._clip, self._steps = module, clip, steps
        self._lightning_optimizers: list[Any] = []

    @property
    def root_device(self) -> torch.device:
        """The device that the module is on."""
        device: torch.device = next(self.lightning_module.parameters()).device
        return device

    def backward(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Let the module compute gradients, its own hooks around it."""
        self.lightning_module.on_before_backward(loss)
        self.lightning_module.backward(loss, *args, **kwargs)
        self.lightning_module.on_after_backward()

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Let an optimizer step; `closure` computes gradients first, where Lightning takes the step."""

        def compute() -> Any:
            found = closure()
            self.lightning_module.on_before_optimizer_step(optimizer)
            self._clip(optimizer)
            return found

        found = optimizer.step(closure=compute, **kwargs)
        self._steps.count += 1
        return found

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """The tensor itself: there is one process, with nothing to reduce over."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Return at once: there is one process, with nobody to wait for."""

    def all_gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Of one process, what it has."""
        return tensor


def lightning_modules(module: nn.Module, view: TrainerView) -> list[Any]:
    """The Lightning modules of a model: itself, and those inside it, not looked for anew at each step."""
    if view.paths is not None:
        return [module.get_submodule(path) for path in view.paths]
    return [each for each in module.modules() if is_lightning(each)]


def is_lightning(module: nn.Module) -> bool:
    """Whether a module has a trainer, as those of both packages do."""
    return "_trainer" in vars(module)


@contextlib.contextmanager
def attached(module: nn.Module, view: TrainerView, *, log: Callable[..., None] | None = None) -> Iterator[None]:
    """Within, the module's trainer is the view, and what it logs goes to `log`, or to the view's results."""
    names = [vars(each) for each in lightning_modules(module, view)]
    for each in names:
        each["_trainer"] = view
        if log is not None:
            each["log"] = log
    try:
        yield
    finally:
        for each in names:
            each["_trainer"] = None
            each.pop("log", None)


class StepLog:
    """Takes down what a training step logs."""

    __slots__ = ("metrics",)

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Instead of `LightningModule.log`, which keeps sums over an epoch: here a value belongs to its step."""
        if hasattr(value, "compute") and hasattr(value, "reset"):  # of torchmetrics: the value of this batch
            found = getattr(value, "_forward_cache", None)
            found = value.compute() if found is None else found
            value.reset()
            value = found
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise ProgramError(
                    f"self.log({name!r}, ...) must be given one number; it was given {tuple(value.shape)}. "
                    f"Log its mean, or another number."
                )
            value = value.detach().reshape(())
        self.metrics[name] = value


def clip_as(trainer: Any, module: Any) -> Callable[[Any], None]:
    """Clipping as the trainer's flags and the module's own hook say; a module that steps itself clips itself."""

    def clip(optimizer: Any) -> None:
        if module.automatic_optimization:
            module.configure_gradient_clipping(
                optimizer,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )

    return clip


def first_batches(loader: Any, limit: float) -> Iterator[Any]:
    """An evaluation's batches, as many as a trainer's limit allows: a number of them, or a part of all."""
    if isinstance(limit, float):
        limit = math.inf if limit == 1.0 else int(len(loader) * limit)
    return iter(loader) if math.isinf(limit) else itertools.islice(loader, int(limit))


def limit_of(loader: Any, limit: float) -> int | None:
    """How many batches of an epoch a trainer's limit leaves; None where it leaves all."""
    if limit == 1.0 and isinstance(limit, float):
        return None
    return int(limit) if isinstance(limit, int) else int(len(loader) * limit)


def call_hooks(hook: str, callbacks: Sequence[Any], view: TrainerView, module: Any, *arguments: Any) -> None:
    """Call a hook of callbacks, then of the module, as Lightning does."""
    for each in callbacks:
        getattr(each, hook)(view, module, *arguments)
    getattr(module, hook)(*arguments)
