"""How a Lightning module is trained and evaluated: its training step as a loss, where Dovetail may take the step, or as
a whole step of Lightning's, hooks and callbacks in their places, for modules that step their optimizers themselves and
those whose hooks want to be in the step; its validation as an evaluation.

None of these has attributes that can be seen from outside (`__slots__`): they hold the trainer's view, which is no
state of the training's.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.adapters.attribute_watch import AttributeWatch
from dovetail.adapters.lightning_view import (
    OptimizerSteps,
    StepLog,
    TrainerView,
    attached,
    call_hooks,
    first_batches,
    lightning_modules,
)
from dovetail.train import Training
from dovetail.vocabulary import ProgramError

# Attributes of a module that change by themselves.
_BY_LIGHTNING = ("training", "log")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCall:
    """How a module's training step is called: whether with the batch's number, and after which hooks on the batch."""

    takes_number: bool
    batch_hooks: tuple[str, ...] = ()

    def __call__(self, module: Any, batch: Any, number: int) -> Any:
        for hook in self.batch_hooks:
            device = (module.device,) if hook == "transfer_batch_to_device" else ()
            batch = getattr(module, hook)(batch, *device, 0)
        return module.training_step(batch, number) if self.takes_number else module.training_step(batch)


class LightningLoss:
    """The loss of a batch, and what the training step logged. Equal where one member's can stand for another's."""

    __slots__ = ("_call", "_is_placed", "_view", "_watch")

    def __init__(self, view: TrainerView, call: StepCall, *, is_placed: bool) -> None:
        self._view, self._call, self._is_placed = view, call, is_placed
        self._watch = AttributeWatch(_BY_LIGHTNING)

    def __call__(self, model: nn.Module, batch: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
        batch, extras = batch if self._is_placed else (batch, {})
        view, logged = self._view, StepLog()
        view.batch_idx, view.current_epoch = extras.get("batch_idx", 0), extras.get("epoch", 0)
        view.global_step = extras.get("step", 0)
        with self._watch.watching(lightning_modules(model, view)), attached(model, view, log=logged.log):
            loss = loss_of(self._call(model, batch, view.batch_idx))
        logged.metrics.pop("loss", None)  # the step's own, which is of all its batches
        return loss * extras["weight"] if "weight" in extras else loss, logged.metrics

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LightningLoss):
            return NotImplemented
        mine, its = ((each._view, each._call, each._is_placed) for each in (self, other))
        return mine == its

    __hash__ = None  # type: ignore[assignment]


def loss_of(output: Any) -> torch.Tensor:
    """The loss in what a training step gave."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, torch.Tensor):
        raise ProgramError(
            f"training_step must return the loss, or a dict with it as 'loss'; it returned {type(output).__name__}. To "
            f"leave a batch out, leave it out of the data."
        )
    return loss


class LightningStep:
    """A step with one placed batch, or a list of them, as Lightning takes it."""

    __slots__ = ("_accumulate", "_call", "_callbacks", "_steps", "_view", "_watch")

    def __init__(
        self, view: TrainerView, call: StepCall, *, callbacks: Sequence[Any], accumulate: int, steps: OptimizerSteps
    ) -> None:
        self._view, self._call, self._callbacks, self._accumulate = view, call, callbacks, accumulate
        self._steps, self._watch = steps, AttributeWatch(_BY_LIGHTNING)

    def __call__(self, training: Training, batches: Any) -> Mapping[str, Any]:
        module: Any = training.model
        placed = [each for each in ([batches] if self._accumulate == 1 else batches) if each[1]["counts"]]
        logged, losses = StepLog(), []
        inside = lightning_modules(module, self._view)
        with self._watch.watching(inside), attached(module, self._view, log=logged.log):
            for number, (batch, extras) in enumerate(placed):
                self._stand_at(module, extras)
                if not extras["batch_idx"]:
                    self._read("on_train_epoch_start", module)
                self._read("on_train_batch_start", module, batch, extras["batch_idx"])
                output = self._optimize(module, batch, first=not number, last=number == len(placed) - 1)
                losses.append(_loss_in(output, logged.metrics) / self._accumulate)
                self._read("on_train_batch_end", module, _shown_output(output, losses[-1]), batch, extras["batch_idx"])
                if self._view.is_last_batch:
                    self._read("on_train_epoch_end", module)
        return {**logged.metrics, "loss": torch.stack(losses).sum()}

    def _stand_at(self, module: Any, extras: Mapping[str, Any]) -> None:
        view = self._view
        view.batch_idx, view.current_epoch = extras["batch_idx"], extras["epoch"]
        view.global_step = extras["step"] if module.automatic_optimization else self._steps.count

    def _optimize(self, module: Any, batch: Any, *, first: bool, last: bool) -> Any:
        """Lightning's `_AutomaticOptimization`, or `_ManualOptimization`, on one batch; gives the step's output."""
        view, outputs = self._view, []
        if not module.automatic_optimization:
            return self._call(module, batch, view.batch_idx)
        (optimizer,) = view.strategy._lightning_optimizers  # type: ignore[union-attr]

        def compute_gradients() -> torch.Tensor:
            outputs.append(self._call(module, batch, view.batch_idx))
            loss = loss_of(outputs[-1]) / self._accumulate
            if first:
                module.on_before_zero_grad(optimizer.optimizer)
                module.optimizer_zero_grad(view.current_epoch, view.batch_idx, optimizer.optimizer)
            view.strategy.backward(loss, optimizer)  # type: ignore[union-attr]
            return loss.detach()

        if last:
            module.optimizer_step(view.current_epoch, view.batch_idx, optimizer, compute_gradients)
        else:
            compute_gradients()
        return outputs[-1]

    def _read(self, hook: str, module: Any, *arguments: Any) -> None:
        """Call a hook; callbacks may look, and must leave everything as it is."""
        before = self._weights(module)
        for callback in self._callbacks:
            getattr(callback, hook)(self._view, module, *arguments)
            if self._weights(module) != before or self._view.should_stop:
                raise ProgramError(
                    f"the callback {type(callback).__name__} must only read; its {hook} changed weights, learning "
                    f"rates or trainer.should_stop. Change them in the LightningModule; when to end is the task's."
                )
        if getattr(module, hook)(*arguments) == -1:
            raise ProgramError(
                f"{type(module).__name__}.{hook} must not return -1, which leaves out the rest of an epoch. Use "
                f"Trainer(limit_train_batches=...)."
            )

    def _weights(self, module: Any) -> list[Any]:
        if not self._callbacks:
            return []
        rates = [group["lr"] for optimizer in self._view.optimizers for group in optimizer.param_groups]
        return [*rates, *(parameter._version for parameter in module.parameters())]


def _shown_output(output: Any, loss: torch.Tensor) -> dict[str, Any]:
    """A step's output as Lightning shows it to callbacks: the loss as it counts in its step, and what came along."""
    return {**(output if isinstance(output, Mapping) else {}), "loss": loss}


def _loss_in(output: Any, logged: Mapping[str, Any]) -> torch.Tensor:
    """The loss to show of a step that optimizes by itself, which need not return one."""
    found = output.get("loss") if isinstance(output, Mapping) else output
    if found is None:
        found = next((value for name, value in logged.items() if "loss" in name.lower()), None)
    if found is None:
        raise ProgramError(
            "a training step that optimizes by itself must tell a loss, for one is shown and watched; this one "
            "returned none and logged none. Return it, or self.log('loss', loss)."
        )
    return torch.as_tensor(found).detach()


class LightningEvaluation:
    """The metrics that a module logs in its validation, averaged by Lightning's own code."""

    __slots__ = ("_callbacks", "_limit", "_loaders", "_results", "_view")

    def __init__(
        self,
        view: TrainerView,
        loaders: Sequence[Any],
        *,
        limit: float,
        callbacks: Sequence[Any],
        results: Callable[[], Any],
    ) -> None:
        self._view, self._loaders, self._limit, self._callbacks = view, loaders, limit, callbacks
        self._results = results

    def __call__(self, model: nn.Module) -> dict[str, float]:
        view, module, results = self._view, model, self._results()
        found: dict[str, Any] = {}
        view._results, view.training, view.validating = results, False, True
        try:
            with attached(model, view):
                self._hook(module, "on_validation_start")
                self._hook(module, "on_validation_epoch_start")
                for number, loader in enumerate(self._loaders):
                    results.dataloader_idx = number if len(self._loaders) > 1 else None
                    self._validate(module, loader, number)
                    found |= results.metrics(on_step=False)["callback"]
                results.dataloader_idx = results.batch = None
                self._hook(module, "on_validation_epoch_end")
                found |= results.metrics(on_step=False)["callback"]
                self._hook(module, "on_validation_end")
        finally:
            results.reset()
            view._results, view.training, view.validating = None, True, False
        return {name: float(value) for name, value in found.items()}

    def _validate(self, module: Any, loader: Any, number: int) -> None:
        device = next(module.parameters()).device
        several = (number,) if len(self._loaders) > 1 else ()
        for index, batch in enumerate(first_batches(loader, self._limit)):
            batch = module.on_before_batch_transfer(batch, number)
            batch = module.transfer_batch_to_device(batch, device, number)
            batch = module.on_after_batch_transfer(batch, number)
            self._view._results.batch, self._view._results.batch_size = batch, None
            self._hook(module, "on_validation_batch_start", batch, index, number)
            module._current_fx_name = "validation_step"
            output = module.validation_step(*_arguments(module.validation_step, batch, index), *several)
            self._hook(module, "on_validation_batch_end", output, batch, index, number)

    def _hook(self, module: Any, hook: str, *arguments: Any) -> None:
        module._current_fx_name = hook
        call_hooks(hook, self._callbacks, self._view, module, *arguments)
        module._current_fx_name = None


def _arguments(step: Any, batch: Any, index: int) -> tuple[Any, ...]:
    """The batch, and its number where the step takes that."""
    code = getattr(step, "__func__", step).__code__
    return (batch, index) if code.co_argcount > 2 or code.co_flags & 0x04 else (batch,)
