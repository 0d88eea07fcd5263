"""The technique `resident`: one task whole on one device, or on n threads of a CPU. Plain PyTorch."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.feed import Cursor
from dovetail.train.base import Session, SessionMember, StepReport, Technique
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.state import TrainingState, capture, restore
from dovetail.vocabulary import ProgramError, TechniqueRefused, TrainingError


class Resident(Technique):
    """One task, whole on its device."""

    name = "resident"
    exactness = (
        "bit-equal to a plain PyTorch loop at a given thread count on CPU, and on CUDA under deterministic algorithms"
    )

    def refuse(self, members: Sequence[SessionMember]) -> str | None:
        """Resident refuses nothing but gangs."""
        return None if len(members) == 1 else f"resident trains one task at a time, got {len(members)}"

    def open(self, members: Sequence[SessionMember], *, device: torch.device, threads: int) -> "ResidentSession":
        """A session with this one member at step 0."""
        if reason := self.refuse(members):
            raise TechniqueRefused(reason)
        return ResidentSession(members[0], device=device, threads=threads)


RESIDENT = Resident()


class ResidentSession(Session):
    """A plain training loop that can be stopped after any step and go on anywhere."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int) -> None:
        training = member.training
        torch.set_num_threads(threads)
        self._device, self._seed, self._training = device, member.seed, training
        training.model.to(device)
        if not training.model.training:  # a model fresh from a hub is in evaluation mode
            training.model.train()
        # Parts that the program put into evaluation mode (frozen norms) stay there.
        self._modes = {module: module.training for module in training.model.modules()}
        self._random = KeyedRandomness(training.model, seed=member.seed, device=device)
        self._cursor = Cursor(training.batches, before_draw=self._random.before_batch)
        self._parameters = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
        self._step = 0

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """One optimizer step."""
        if not live:
            return []
        batches = [to_device(batch, self._device) for batch in self._cursor.take(self._training.accumulate)]
        self._random.begin(self._step, 0)
        try:
            report = self._custom_step(batches) if self._training.step else self._plain_step(batches)
        except (torch.OutOfMemoryError, MemoryError, ProgramError):
            raise
        except Exception as error:
            raise TrainingError(
                f"the model must accept every batch; step {self._step + 1} (epoch {self._cursor.epoch}, batch "
                f"{self._cursor.index}) raised {type(error).__name__}: {error}. The batch was {describe(batches[-1])}."
            ) from error
        self._step += 1
        return [report]

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics, in evaluation mode, without gradients."""
        training = self._training
        if training.evaluate is None:
            return {}
        training.model.eval()
        try:
            with self._random.evaluation(self._step), torch.no_grad(), self._autocast():
                metrics = training.evaluate(training.model)
        finally:
            for module, mode in self._modes.items():
                module.training = mode
        if not isinstance(metrics, Mapping):
            raise ProgramError(f"evaluate must give a dict of metrics, got {type(metrics).__name__}.")
        return {str(name): float(value) for name, value in metrics.items()}

    def state(self, member: int = 0) -> TrainingState:
        """The live tensors under their canonical names."""
        return capture(self._training, step=self._step, feed=self._cursor.state(), random=self._random.state())

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`."""
        feed, random = restore(self._training, state)
        self._cursor.restore(feed)
        self._random.restore(random)
        self._step = state.step

    def close(self) -> None:
        """Remove hooks and drop the model."""
        self._random.close()

    def _plain_step(self, batches: list[Any]) -> StepReport:
        training, optimizer = self._training, self._training.optimizer
        assert training.loss is not None
        assert isinstance(optimizer, torch.optim.Optimizer)
        losses: list[torch.Tensor] = []
        metrics: Mapping[str, Any] = {}
        for number, batch in enumerate(batches):
            if number:
                self._random.begin(self._step, number)
            with self._autocast():
                found = training.loss(training.model, batch)
            loss, metrics = found if isinstance(found, tuple) else (found, {})
            (loss / len(batches) if len(batches) > 1 else loss).backward()
            losses.append(loss.detach())
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, training.clip_norm)
        optimizer.step()
        if training.schedule is not None:
            training.schedule.step()
        optimizer.zero_grad(set_to_none=True)
        mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        return StepReport(step=self._step + 1, loss=mean, metrics=metrics)

    def _custom_step(self, batches: list[Any]) -> StepReport:
        training = self._training
        assert training.step is not None
        with self._autocast():
            metrics = dict(training.step(training, batches[0] if len(batches) == 1 else batches))
        if "loss" not in metrics:
            raise ProgramError(f"a step function must give a metric named 'loss', got {sorted(metrics)}.")
        if training.schedule is not None:
            training.schedule.step()
        loss = torch.as_tensor(metrics.pop("loss")).detach()
        return StepReport(step=self._step + 1, loss=loss, metrics=metrics)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._training.precision == "bf16":
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()


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
