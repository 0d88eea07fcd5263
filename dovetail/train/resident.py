"""The technique `resident`: one task whole on one device, or on n threads of a CPU. Plain PyTorch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.base import SessionMember, StepReport, Technique
from dovetail.train.loop import LoopSession
from dovetail.train.state import TrainingState, capture, restore
from dovetail.train.weights import HalfWeights
from dovetail.vocabulary import FrozenDict, ProgramError, TechniqueRefused


class Resident(Technique):
    """One task, whole on its device.

    With the knob `microbatches` the rows of each batch go through the model in so many parts (`train/microbatches.py`).
    """

    name = "resident"
    exactness = (
        "bit-equal to a plain PyTorch loop at a given thread count on CPU, and on CUDA under deterministic algorithms; "
        "with microbatches equal to that up to the order of sums in the mean over a batch's rows, dropout included"
    )

    def refuse(self, members: Sequence[SessionMember]) -> str | None:
        """Resident refuses nothing but gangs."""
        return None if len(members) == 1 else f"resident trains one task at a time, got {len(members)}"

    def open(
        self,
        members: Sequence[SessionMember],
        *,
        device: torch.device,
        threads: int,
        knobs: Mapping[str, Any] = FrozenDict(),
    ) -> "ResidentSession":
        """A session with this one member at step 0."""
        if reason := self.refuse(members):
            raise TechniqueRefused(reason)
        if (microbatches := knobs.get("microbatches", 1)) > 1:
            from dovetail.train.microbatches import MicrobatchedSession  # it is a session of this module's kind

            return MicrobatchedSession(members[0], device=device, threads=threads, microbatches=microbatches)
        return ResidentSession(members[0], device=device, threads=threads)


RESIDENT = Resident()


class ResidentSession(LoopSession):
    """A plain training loop."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int) -> None:
        model = member.training.model.to(device)
        super().__init__(member, device=device, threads=threads)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._half = HalfWeights(model) if member.training.precision == "bf16-pure" else None

    def state(self, member: int = 0) -> TrainingState:
        """The live tensors under their canonical names."""
        feed, random = self._cursor.state(), self._random.state()
        if self._half is None:
            return capture(self._training, step=self._step, feed=feed, random=random)
        with self._half.stand_ins.masters():
            return capture(self._training, step=self._step, feed=feed, random=random)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`."""
        if self._half is None:
            feed, random = restore(self._training, state)
        else:
            with self._half.stand_ins.masters():
                feed, random = restore(self._training, state)
            self._half.refresh()
        self._cursor.restore(feed)
        self._random.restore(random)
        self._step = state.step

    def close(self) -> None:
        """Remove hooks and drop the model."""
        self._random.close()
        if self._half is not None:
            self._half.close()

    def _take_step(self, batches: list[Any]) -> StepReport:
        return self._custom_step(batches) if self._training.step else self._plain_step(batches)

    def _plain_step(self, batches: list[Any]) -> StepReport:
        training, optimizer = self._training, self._training.optimizer
        assert isinstance(optimizer, torch.optim.Optimizer)
        losses: list[torch.Tensor] = []
        metrics: Mapping[str, Any] = {}
        for loss, metrics in self._backward(batches):  # noqa: B007
            losses.append(loss)
            if self._half is not None:
                self._half.collect()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, training.clip_norm)
        optimizer.step()
        if self._half is not None:
            self._half.refresh()
        if training.schedule is not None:
            training.schedule.step()
        for parameter in self._parameters:  # those that no optimizer has count to the norm of one step, not of all
            parameter.grad = None
        return self._report(losses, metrics)

    def _custom_step(self, batches: list[Any]) -> StepReport:
        training = self._training
        assert training.step is not None
        with self._computing():
            metrics = dict(training.step(training, batches[0] if len(batches) == 1 else batches))
        if "loss" not in metrics:
            raise ProgramError(f"a step function must give a metric named 'loss', got {sorted(metrics)}.")
        if training.schedule is not None:
            training.schedule.step()
        loss = torch.as_tensor(metrics.pop("loss")).detach()
        return StepReport(step=self._step + 1, loss=loss, metrics=metrics)
