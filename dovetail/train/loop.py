"""What every technique that trains one task in one process shares: the feed, the random numbers, evaluation, and the
loss of a microbatch. How gradients come about and what is done with them is each technique's own.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.feeds import Cursor
from dovetail.train.base import SessionMember, StepReport, TrainingSession
from dovetail.train.data_waits import DataWaits
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.schedulers import observe_metrics, step_schedulers
from dovetail.train.undeclared import UndeclaredState
from dovetail.vocabulary import ProgramError, TechniqueRefused, TrainingError

MODEL_ACCEPTS = "the model must accept every batch"
OPTIMIZER_STEPS = "the optimizer must step with the gradients that there are"
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LoopSession(TrainingSession):
    """A training loop of one member that can be stopped after any step and go on anywhere.

    The model is where the technique wants it when this is made.
    """

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int) -> None:
        torch.set_num_threads(threads)
        self._device, self._training = device, member.training
        model = member.training.model
        if not model.training:  # a model fresh from a hub is in evaluation mode
            model.train()
        # Parts that the program put into evaluation mode (frozen norms) stay there.
        self._modes = {module: module.training for module in model.modules()}
        self._random = KeyedRandomness(model, seed=member.seed, device=device)
        self._cursor = Cursor(member.training.batches, before_draw=self._random.before_batch)
        self._scaler = torch.amp.GradScaler(device.type) if member.training.precision == "fp16" else None
        self._data_waits = DataWaits(device)
        self._step = self._watched_steps = 0
        self._undeclared: UndeclaredState | None = None
        self._demand = MODEL_ACCEPTS  # what a step that raises has not kept, by what it was about

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one optimizer step."""
        if not live:
            return []
        batches = self._place_batches(self._take_batches())
        self._random.begin(self._step, 0)
        if self._undeclared is None:
            self._undeclared = UndeclaredState(self._training)
        self._demand = MODEL_ACCEPTS
        try:
            report = self._take_step(batches)
        except (torch.OutOfMemoryError, MemoryError, ProgramError, TechniqueRefused):
            raise
        except (Exception, SystemExit) as error:  # what a step exits from is its task, not the worker of many
            raise self.failure(error, batches[-1]) from error
        self._step += 1
        self._watched_steps += 1
        if is_due(self._watched_steps):
            self._undeclared.check(self._watched_steps)
        return [report]

    def failure(self, error: BaseException, batch: Any) -> TrainingError:
        """What is said of a step of this batch that raised."""
        return TrainingError(
            f"{self._demand}; step {self._step + 1} (epoch {self._cursor.epoch}, batch {self._cursor.index}) raised "
            f"{type(error).__name__}: {error}. The batch was {describe(batch)}."
        )

    def waited_seconds(self, member: int = 0) -> float:
        """For how long its steps have waited for their batches, while the device had nothing to compute."""
        return self._data_waits.seconds()

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics, in evaluation mode, without gradients."""
        training = self._training
        if training.evaluate is None:
            return {}
        training.model.eval()
        try:
            with self._random.evaluation(self._step), torch.no_grad(), self._computing():
                metrics = self._run_evaluation(training.evaluate)
        finally:
            for module, mode in self._modes.items():
                module.training = mode
        if not isinstance(metrics, Mapping):
            raise ProgramError(f"evaluate must give a dict of metrics, got {type(metrics).__name__}.")
        return {str(name): to_number(value, name=name, of="evaluate") for name, value in metrics.items()}

    def observe(self, metrics: Mapping[str, float], member: int = 0) -> None:
        """Step the schedulers that step with a metric."""
        observe_metrics(self._training, metrics)

    def _step_schedulers(self) -> None:
        """Called by each technique when the optimizer has taken its step, before it counts."""
        self._demand = "the schedule must have a step for each of the optimizer's"
        step_schedulers(self._training, step=self._step + 1)
        self._demand = MODEL_ACCEPTS

    def _run_evaluation(self, evaluate: Callable[[nn.Module], Any]) -> Any:
        """Call the user's evaluation; gives its metrics."""
        return evaluate(self._training.model)

    def _take_batches(self) -> list[Any]:
        """The microbatches of the next step, as they are read."""
        waited = self._cursor.waited_seconds
        self._data_waits.begin_wait()
        batches = self._cursor.take(self._training.accumulate)
        self._data_waits.end_wait(self._cursor.waited_seconds - waited)
        return batches

    def _place_batches(self, batches: list[Any]) -> list[Any]:
        """Move the microbatches of a step to the device."""
        return [to_device(batch, self._device) for batch in batches]

    @abc.abstractmethod
    def _take_step(self, batches: list[Any]) -> StepReport:
        """One step with these microbatches, on the device already; random numbers are at the first one."""

    def _backward(self, batches: list[Any]) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
        """Each microbatch's loss and metrics, once its gradients are there."""
        loss_of = self._training.loss
        assert loss_of is not None
        for number, batch in enumerate(batches):
            if number:
                self._random.begin(self._step, number)
            with self._computing():
                found = loss_of(self._training.model, batch)
            loss, metrics = split_loss(found)
            self._scale_loss(loss / len(batches) if len(batches) > 1 else loss).backward()
            yield loss.detach(), metrics

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        """The context that forward runs in: autocast, or none."""
        dtype = AUTOCAST.get(self._training.precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext()

    def _scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss as its gradients are to be computed: with fp16 so large that small ones are not lost."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def _clip_and_step(self, parameters: Sequence[nn.Parameter]) -> None:
        """Clip these gradients, and let the optimizer take its step; with fp16, unless gradients have overflowed."""
        optimizer, clip_norm = self._training.optimizer, self._training.clip_norm
        assert isinstance(optimizer, torch.optim.Optimizer)
        self._demand = OPTIMIZER_STEPS
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
            optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers step after one left out, too
        self._demand = MODEL_ACCEPTS

    def _report(self, losses: list[torch.Tensor], metrics: Mapping[str, Any]) -> StepReport:
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        return StepReport(step=self._step + 1, loss=mean, metrics=metrics)


def split_loss(found: Any) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """What a loss function gave, as the loss and the metrics. Raises `ProgramError` where it is no loss; where no
    gradients are computed, it need depend on nothing.

    >>> loss, metrics = split_loss((torch.ones((), requires_grad=True), {"hits": 3}))
    >>> loss.item(), metrics
    (1.0, {'hits': 3})
    """
    pair = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    loss, metrics = pair
    is_number = isinstance(loss, torch.Tensor) and loss.numel() == 1
    if is_number and (loss.requires_grad or not torch.is_grad_enabled()) and isinstance(metrics, Mapping):
        return loss, metrics
    is_constant = isinstance(loss, torch.Tensor) and not loss.requires_grad
    raise ProgramError(
        f"Training.loss must give one number to minimise, as a tensor that depends on parameters that are trained, or "
        f"that and a dict of metrics; it gave {describe(found)}{', which depends on none' if is_constant else ''}."
    )


def to_number(value: Any, *, name: Any, of: str) -> float:
    """A metric's value. Raises `ProgramError` where it is no number.

    >>> to_number(torch.tensor([0.5]), name="accuracy", of="evaluate")
    0.5
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        shape = f" of shape {list(value.shape)}" if hasattr(value, "shape") else ""
        raise ProgramError(
            f"{of} must give numbers as metrics; its {name!r} is a {type(value).__name__}{shape}. Give one number, "
            f"such as its mean, or leave it out."
        ) from error


def metric_tensor(value: Any, *, name: str, device: torch.device | None = None) -> torch.Tensor:
    """A metric beside the loss, on a device. Raises `ProgramError` where it is no number.

    >>> metric_tensor(3, name="hits")
    tensor(3., dtype=torch.float64)
    """
    try:
        return torch.as_tensor(value, dtype=torch.float64, device=device).detach()
    except (TypeError, ValueError, RuntimeError):
        to_number(value, name=name, of="the loss")
        raise


def is_due(step: int) -> bool:
    """Whether a session's n-th step, from 1 on, is one to look closely at: the first may not show what is wrong, as
    with padding that comes later, or weights that begin at zero.

    >>> [step for step in range(1, 20) if is_due(step)]
    [1, 2, 4, 8, 16]
    """
    return step & (step - 1) == 0


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it on `device`; containers keep their type.

    >>> to_device({"x": [torch.ones(1)]}, torch.device("cpu"))
    {'x': [tensor([1.])]}
    """
    if device.type == "cpu":
        return batch  # batches are made on the CPU: there is nothing to move
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def describe(batch: Any) -> str:
    """The shape of a batch in words.

    >>> describe((torch.ones(2, 3), "label"))
    '(float32[2, 3], str)'
    """
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ", ".join(describe(value) for value in batch[:8]) + ")"
    return type(batch).__name__


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in a nested value, in its order.

    >>> [len(tensor) for tensor in tensors_in({"a": [torch.ones(1), 2], "b": (torch.ones(3),)})]
    [1, 3]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
