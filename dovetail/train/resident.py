"""The technique `resident`: one task whole on one device, or on n threads of a CPU. Plain PyTorch."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError as RecomputationError

from dovetail.train.base import NO_KNOBS, Knobs, Members, SessionMember, StepReport, Technique, TrainingSession
from dovetail.train.compiled_programs import refuse_compiled_draws
from dovetail.train.fp8_products import ScaledProducts, fast_forms, wants_fp8
from dovetail.train.loop import MODEL_ACCEPTS, LoopSession, to_number
from dovetail.train.recompute import ChangedInPlace, Recomputed
from dovetail.train.state import TrainingState, capture, restore
from dovetail.train.weights import HalfWeights
from dovetail.vocabulary import ProgramError, TechniqueRefused


class Resident(Technique):
    """One task, whole on its device.

    With the knob `microbatches` the rows of each batch go through the model in so many parts (`train/microbatches.py`);
    with `recompute` activations are computed again in backward (`train/recompute.py`); with `approximate` steps are of
    another mathematics, such as products in 8 bits (`train/fp8_products.py`).
    """

    name = "resident"
    exactness = (
        "bit-equal to a plain PyTorch loop at a given thread count on CPU, and on CUDA under deterministic algorithms; "
        "with microbatches equal to that up to the order of sums in the mean over a batch's rows, dropout included"
    )

    def refuse(self, members: Members) -> str | None:
        """Resident refuses nothing but gangs."""
        return None if len(members) == 1 else f"resident trains one task at a time, got {len(members)}"

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session with this one member at step 0."""
        self.check(members)
        recompute = knobs.get("recompute", False)
        if recompute and members[0].training.step is not None:
            raise TechniqueRefused("activations are computed again where Dovetail takes the step; this training does.")
        training = members[0].training
        if recompute and (
            reason := refuse_compiled_draws(training.model, training.loss, name="activations that are computed again")
        ):
            raise TechniqueRefused(reason)
        fp8 = wants_fp8(knobs, device)
        if (microbatches := knobs.get("microbatches", 1)) > 1:
            from dovetail.train.microbatches import MicrobatchedSession  # it is a session of this module's kind

            return MicrobatchedSession(
                members[0], device=device, threads=threads, microbatches=microbatches, recompute=recompute, fp8=fp8
            )
        return ResidentSession(members[0], device=device, threads=threads, recompute=recompute, fp8=fp8)


RESIDENT = Resident()


class ResidentSession(LoopSession):
    """A plain training loop of one task on one device."""

    def __init__(
        self, member: SessionMember, *, device: torch.device, threads: int, recompute: bool = False, fp8: bool = False
    ) -> None:
        model = member.training.model.to(device)
        super().__init__(member, device=device, threads=threads)
        self._parameters = list(model.parameters())  # one that is frozen now may train later
        self._half = HalfWeights(model) if member.training.precision == "bf16-pure" else None
        self._scaled_products = ScaledProducts(model, fast_forms(device)) if fp8 else None
        self._recomputed = Recomputed(model) if recompute else None
        for each in member.training.state.values():
            if isinstance(each, nn.Module):
                each.to(device)

    def state(self, member: int = 0) -> TrainingState:
        """The live tensors under their canonical names."""
        feed, random = self._cursor.state(), self._random.state()
        if self._half is None:
            return capture(self._training, step=self._step, feed=feed, random=random, scaler=self._scaler)
        with self._half.stand_ins.masters():
            return capture(self._training, step=self._step, feed=feed, random=random)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`, whichever technique wrote it."""
        if self._half is None:
            feed, random = restore(self._training, state, scaler=self._scaler)
        else:
            with self._half.stand_ins.masters():
                feed, random = restore(self._training, state)
            self._half.refresh()
        self._cursor.restore(feed)
        self._random.restore(random)
        self._step = state.step

    def close(self) -> None:
        """Remove hooks and drop the model."""
        if self._recomputed is not None:
            self._recomputed.close()
        if self._scaled_products is not None:
            self._scaled_products.close()
        self._random.close()
        if self._half is not None:
            self._half.close()

    def _take_step(self, batches: list[Any]) -> StepReport:
        return self._recomputed_step(batches) if self._recomputed is not None else self._whole_step(batches)

    def _whole_step(self, batches: list[Any]) -> StepReport:
        return self._custom_step(batches) if self._training.step else self._plain_step(batches)

    def _recomputed_step(self, batches: list[Any]) -> StepReport:
        assert self._recomputed is not None
        try:
            report = self._plain_step(batches)
        except (RuntimeError, ChangedInPlace) as error:
            # The same training with everything kept came this far: what is wrong is to compute it again.
            own = isinstance(error, RecomputationError | ChangedInPlace)
            if own or "modified by an inplace operation" in str(error):
                raise TechniqueRefused(f"a block must do the same when computed again; torch says: {error}") from error
            raise
        self._recomputed.checking = False
        return report

    def _plain_step(self, batches: list[Any]) -> StepReport:
        losses, metrics = self._compute_gradients(batches)
        self._clip_and_step(self._parameters)
        if self._half is not None:
            self._half.refresh()
        self._step_schedulers()
        self._call_back()
        for parameter in self._parameters:  # those that no optimizer has count to the norm of one step, not of all
            parameter.grad = None
        return self._report(losses, metrics)

    def _compute_gradients(self, batches: list[Any]) -> tuple[list[torch.Tensor], Mapping[str, Any]]:
        """The loss of each microbatch and the metrics of the last; parameters have the gradients of all."""
        losses: list[torch.Tensor] = []
        metrics: Mapping[str, Any] = {}
        for loss, metrics in self._backward(batches):  # noqa: B007
            losses.append(loss)
            if self._half is not None:
                self._half.collect()
        return losses, metrics

    def _custom_step(self, batches: list[Any]) -> StepReport:
        training = self._training
        assert training.step is not None
        with self._computing():
            metrics = dict(training.step(training, batches[0] if len(batches) == 1 else batches))
        if "loss" not in metrics:
            raise ProgramError(f"a step function must give a metric named 'loss', got {sorted(metrics)}.")
        self._step_schedulers()
        self._call_back()
        loss = metrics.pop("loss")
        if not isinstance(loss, torch.Tensor):
            loss = torch.tensor(to_number(loss, name="loss", of="a step function"))
        return StepReport(step=self._step + 1, loss=loss.detach(), metrics=metrics)

    def _call_back(self) -> None:
        """Call the program's callbacks, with the weights that the optimizer keeps in their places."""
        if self._training.callbacks:
            self._demand = "callbacks must accept the training and the step's number"
            masters = self._half.stand_ins.masters() if self._half is not None else contextlib.nullcontext()
            with masters, torch.no_grad():
                for callback in self._training.callbacks:
                    callback(self._training, self._step + 1)
            self._demand = MODEL_ACCEPTS
