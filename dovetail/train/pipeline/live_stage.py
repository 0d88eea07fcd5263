"""One stage of a pipeline on one rank: the forward and backward of microbatches, several of which may be under way, and
the versions of its weights where a timetable changes these under way.

The parameters that a program built are the newest version: the optimizer steps them. In their modules' places sit
leaves of a chosen version. A leaf has the memory of the parameter as it was then: when the optimizer is about to step,
parameters move to new memory and leave the old one to their leaves. Knows a piece of the model and the program's loss;
knows nothing of other ranks, of timetables or of optimizers.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.base import Training
from dovetail.train.cutting import Cut, capture_call, loss_given
from dovetail.train.loop import split_loss
from dovetail.train.pipeline.deferred_gradients import Deferred
from dovetail.train.pipeline.row_division import RowDivision
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.rows import Rows
from dovetail.train.weights import sites

Weights = dict[str, nn.Parameter]


class WeightVersions:
    """The weights of one stage: `parameters` by name, of which `most` versions are kept, the newest being `newest`.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> versions = WeightVersions(layer, dict(layer.named_parameters()), most=2)
    >>> versions.use(0)
    >>> def step():
    ...     with torch.no_grad():
    ...         versions.parameters["weight"].fill_(7.0)
    >>> versions.update(step)
    >>> versions.use(1), layer.weight.item()
    (None, 7.0)
    >>> versions.use(0), layer.weight.item() == 7.0
    (None, False)
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], *, most: int, newest: int = 0) -> None:
        self.parameters = dict(parameters)
        self.most, self.newest = most, newest
        own = set(parameters.values())
        names = {parameter: name for name, parameter in parameters.items()}
        self._places = [
            (module._parameters, slot, names[parameter])
            for parameter, places in sites(model).items()
            if parameter in own
            for module, slot in places
        ]
        self._leaves: dict[int, Weights] = {newest: self._make_leaves()}
        self._used: int | None = None

    def use(self, version: int) -> None:
        """Let the model compute with a version. One that was never there is the oldest that is."""
        version = max(version, min(self._leaves))
        if version != self._used:
            for slots, slot, name in self._places:
                slots[slot] = self._leaves[version][name]
            self._used = version

    def put_back(self) -> None:
        """Let the model have its own parameters."""
        for slots, slot, name in self._places:
            slots[slot] = self.parameters[name]
        self._used = None

    def take_gradients(self, version: int) -> dict[str, torch.Tensor]:
        """The gradients that a backward with this version gave, which are gone here then."""
        found = {}
        for name, leaf in self._leaves[max(version, min(self._leaves))].items():
            if leaf.grad is not None:
                found[name], leaf.grad = leaf.grad, None
        return found

    def update(self, step: Callable[[], None]) -> None:
        """Make a new version by `step`, which changes the parameters in place."""
        if self.most > 1:
            for parameter in self.parameters.values():
                parameter.data = parameter.data.clone()
        step()
        self.newest += 1
        self._leaves[self.newest] = self._make_leaves()
        for version in [each for each in self._leaves if each <= self.newest - self.most]:
            del self._leaves[version]
        self._used = None

    def older(self) -> list[Weights]:
        """The versions before the newest one, newest first."""
        return [self._leaves[version] for version in sorted(self._leaves, reverse=True)[1:]]

    def restart(self, newest: int, older: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Go on from the parameters as they are now as version `newest`, and these before it, newest first."""
        self._leaves = {newest: self._make_leaves()}
        self.newest, self._used = newest, None
        for age, weights in enumerate(older[: self.most - 1], start=1):
            leaves = {name: nn.Parameter(weights[name].to(p.device, copy=True)) for name, p in self.parameters.items()}
            self._leaves[newest - age] = leaves

    def _make_leaves(self) -> Weights:
        # `.data` and not `detach()`: what the optimizer does to the parameter must not count as done to the leaf.
        return {name: nn.Parameter(parameter.data) for name, parameter in self.parameters.items()}


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
            self._random.return_to(flight.mark)  # what the model itself computes again in backward draws as it did
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

    def derive_weights(self, microbatch: int) -> None:
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
            self._random.return_to(flight.mark)
            found = loss_given(training.loss, training.model, microbatch.batch, flight.outputs.pop("output"))
        loss, metrics = split_loss(found)
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
