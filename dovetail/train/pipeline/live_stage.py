"""One stage of a pipeline on one rank: the forward and backward of microbatches, several of which may be under way.

Knows a piece of the model and the program's loss; knows nothing of other ranks, of timetables or of optimizers.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dovetail.train.base import Training
from dovetail.train.cutting import Cut, capture_call, loss_given
from dovetail.train.pipeline.deferred_gradients import Deferred
from dovetail.train.pipeline.row_division import RowDivision
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.rows import Rows

Values = dict[str, torch.Tensor]
Slot = tuple[dict[str, Any], str]
Tied = Mapping[nn.Parameter, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """A part of a step: its number in the whole training, its step, the place of its batch in that, this rank's copy of
    it and which rows of the batch it is. `signature` tells microbatches of unlike shapes apart.
    """

    number: int
    step: int
    place: int
    batch: Any
    rows: Rows
    signature: str


@dataclasses.dataclass(slots=True)
class _Flight:
    """A microbatch between its forward and the end of its backward."""

    microbatch: Microbatch
    values: Values
    outputs: Values
    mark: Any
    objective: torch.Tensor | None = None


class LiveStage:
    """A piece of a model. `objective` is what of a loss is derived, as one device would divide it."""

    def __init__(
        self,
        number: int,
        cut: Cut,
        *,
        training: Training,
        random: KeyedRandomness,
        division: RowDivision,
        computing: Callable[[], contextlib.AbstractContextManager[Any]],
        divisor: int,
        recompute: bool,
        deferred: Deferred | None = None,
    ) -> None:
        self.number, self.piece = number, cut.pieces[number]
        self.is_first, self.is_last = number == 0, number == len(cut.pieces) - 1
        self._cut, self._training, self._random, self._computing = cut, training, random, computing
        self._division, self._divisor, self._deferred = division, divisor, deferred
        self._recompute = recompute and not self.is_last  # the last one's backward comes next anyway
        self.buffers = buffer_slots(training.model, self.piece)
        self._flights: dict[int, _Flight] = {}
        self.losses: dict[int, tuple[torch.Tensor, Mapping[str, Any]]] = {}
        """Of the last stage: what each microbatch gave, until somebody takes it."""

    def _begin(self, microbatch: Microbatch) -> None:
        self._random.begin(microbatch.step, microbatch.place)
        self._division.enter(microbatch.rows)

    def forward(self, microbatch: Microbatch, values: Values, wanted: Mapping[str, bool]) -> tuple[Values, Any]:
        """What goes to the next stage, and which of it wants gradients; of the last stage, nothing. `values` came from
        the stage before, `wanted` says for which of them it wants gradients."""
        self._begin(microbatch)
        flight = _Flight(microbatch, values, {}, self._random.mark())
        for name, value in values.items():
            value.requires_grad_(wanted.get(name, False))
        with torch.no_grad() if self._recompute else contextlib.nullcontext():
            self._compute(flight)
        self._flights[microbatch.number] = flight
        if self.is_last:
            return {}, {}
        outputs = flight.outputs
        if self._recompute:
            flight.outputs = {}
            return outputs, {name: self.piece.likes[name].requires_grad for name in outputs}
        return outputs, {name: value.requires_grad for name, value in outputs.items()}

    def backward(self, microbatch: int, gradients: Values, theirs: Tied) -> Values:
        """The gradients of what came from the stage before, for those of what went to the next. A value that nothing
        was derived from is not among them. `theirs` are what later stages found of parameters that they share."""
        flight = self._flights.pop(microbatch)
        if self._recompute:
            self._compute_again(flight)
        else:
            self._random.again(flight.mark)  # what the model itself computes again in backward draws as it did
            self._division.enter(flight.microbatch.rows)
        if flight.objective is not None:
            flight.objective.backward()
        else:
            # One more root, and not a term of a sum: so parts are added in the order of their uses in the whole model.
            derived = [*(flight.outputs[name] for name in gradients), *theirs]
            if derived:
                torch.autograd.backward(derived, [*gradients.values(), *theirs.values()])
        found = {name: value.grad for name, value in flight.values.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def inputs(self, microbatch: int, gradients: Values, theirs: Tied) -> Values:
        """The gradients as `backward` gives them, leaving those of weights for later."""
        assert self._deferred is not None
        with self._deferred.putting_off(microbatch):
            return self.backward(microbatch, gradients, theirs)

    def weights(self, microbatch: int) -> None:
        """Derive the gradients of weights that `inputs` left."""
        assert self._deferred is not None
        self._deferred.catch_up(microbatch)

    def drop(self) -> None:
        """Forget the microbatches that are under way."""
        self._flights.clear()
        self.losses.clear()

    def _compute(self, flight: _Flight) -> None:
        microbatch, training = flight.microbatch, self._training
        assert training.loss is not None
        with self._computing():
            call = capture_call(training.loss, training.model, microbatch.batch)
            if self.is_first:
                flight.outputs = self.piece(self._cut.inputs(call))
            else:
                flight.outputs = self.piece(flight.values, call=call)
            if not self.is_last:
                return
            # What the loss draws before it calls the model, it draws again.
            self._random.again(flight.mark)
            found = loss_given(training.loss, training.model, microbatch.batch, flight.outputs.pop("output"))
        loss, metrics = found if isinstance(found, tuple) else (found, {})
        flight.objective = loss / self._divisor if self._divisor > 1 else loss
        self.losses[microbatch.number] = loss.detach(), metrics

    def _compute_again(self, flight: _Flight) -> None:
        self._begin(flight.microbatch)
        with _copies(self.buffers), torch.enable_grad():
            self._compute(flight)


def buffer_slots(model: nn.Module, piece: nn.Module) -> list[Slot]:
    """Where a model holds the buffers of one of its pieces.

    >>> norm = nn.BatchNorm1d(1)
    >>> [name for _, name in buffer_slots(norm, norm)]
    ['running_mean', 'running_var', 'num_batches_tracked']
    """
    own = {id(buffer) for buffer in piece.buffers()}
    slots = ((module._buffers, name) for module in model.modules() for name in module._buffers)
    return [(held, name) for held, name in slots if id(held[name]) in own]


@contextlib.contextmanager
def _copies(slots: list[Slot]) -> Iterator[None]:
    """Within, forward counts on buffers that are copies: the first time has counted already."""
    kept = [(held, name, held[name]) for held, name in slots]
    for held, name, buffer in kept:
        held[name] = buffer.clone()
    try:
        yield
    finally:
        for held, name, buffer in kept:
            held[name] = buffer
