"""One task of a stack: its feed, its random numbers, its evaluation and its state, as when it is alone."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from dovetail.feeds import Cursor
from dovetail.feeds.loaders import draws_at_first
from dovetail.train.base import SessionMember, StepReport, Training
from dovetail.train.loop import MODEL_ACCEPTS, LoopSession, split_loss
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.schedulers import schedulers_of
from dovetail.train.state import TrainingState, capture, restore
from dovetail.train.weights import HalfWeights
from dovetail.vocabulary import ProgramError, TechniqueRefused


class FusedMember(LoopSession):
    """What a member has for itself. Its steps are taken by the stack."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int) -> None:
        member.training.model.to(device)
        super().__init__(member, device=device, threads=threads)
        if draws_at_first(member.training.batches):
            self._cursor = Cursor(member.training.batches, before_draw=self._before_epoch)
        if schedulers_of(member.training):
            # Else a scheduler's first step would warn that the optimizer's own was never called.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]

    @property
    def training(self) -> Training:
        """The training that the program built."""
        return self._training

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The member's optimizer; a fused member has exactly one."""
        assert isinstance(self._training.optimizer, torch.optim.Optimizer)
        return self._training.optimizer

    @property
    def random(self) -> KeyedRandomness:
        """The member's random numbers, keyed as when it trains alone."""
        return self._random

    def take(self) -> list[Any]:
        """Take the batches of its next step."""
        self._demand = MODEL_ACCEPTS
        return self._cursor.take(self._training.accumulate)

    def begin(self, microbatch: int) -> None:
        """Let random numbers from here on be those of this microbatch of its next step."""
        self._random.begin(self._step, microbatch)

    def count_step(self, loss: torch.Tensor, metrics: dict[str, Any]) -> StepReport:
        """Count a step that the stack has taken; gives its report."""
        self._step_schedulers()
        self._step += 1
        return StepReport(step=self._step, loss=loss, metrics=metrics)

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """Evaluate the member as when it is alone, and give its metrics."""
        with self._as_computed():
            return super().evaluate()

    def state(self, member: int = 0) -> TrainingState:
        """Everything that decides how the member goes on; the stack has put its optimizer's state there."""
        return capture(self._training, step=self._step, feed=self._cursor.state(), random=self._random.state())

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`; the stack takes over its tensors afterwards."""
        feed, random = restore(self._training, state)
        self._cursor.restore(feed)
        self._random.restore(random)
        self._step = state.step

    def close(self) -> None:
        """Leave the model as it was."""
        self._random.close()

    def try_alone(self, batch: Any) -> None:
        """Raise what is said where this member by itself raises for its batch, or gives no loss."""
        loss_of = self._training.loss
        assert loss_of is not None
        try:
            with self._as_computed(), self._computing():
                split_loss(loss_of(self._training.model, batch))
        except (torch.OutOfMemoryError, MemoryError, ProgramError):
            raise
        except (Exception, SystemExit) as error:
            raise self.failure(error, batch) from error

    def _before_epoch(self, epoch: int, index: int) -> None:
        # Later batches draw nothing, and members that take turns with Python's and NumPy's generators pay 0.1 ms each.
        if index <= 0:
            self._random.before_batch(epoch, index)

    @contextlib.contextmanager
    def _as_computed(self) -> Iterator[None]:
        """Within, the model holds what it computes with."""
        if self._training.precision != "bf16-pure":
            yield
            return
        with contextlib.closing(HalfWeights(self._training.model)):
            yield

    def _take_step(self, batches: list[Any]) -> StepReport:
        raise TechniqueRefused("a member of a stack takes its steps with the others")
