"""The technique `graph`: one task on one device, the gradients of each step replayed from a CUDA graph.

A small model's step is hundreds of kernels that Python hands over one by one while the device waits. A graph has no
Python. What follows the gradients (clipping, the optimizer, schedules) runs as it does alone, so that any optimizer
will do and every bit is that of `resident`.

A graph repeats what Python did when it was captured, so it must not depend on anything but its inputs and its random
numbers. The step after a capture is therefore taken both ways and compared; where they differ, or where nothing can be
captured, training goes on plainly, and no step is lost.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.train.base import NO_KNOBS, Knobs, Members, SessionMember, StepReport, Technique, TrainingSession
from dovetail.train.flat_optimizer import FlatSteps
from dovetail.train.fp8_products import wants_fp8
from dovetail.train.fuse.stacked_batches import flatten, rebuild
from dovetail.train.loop import MODEL_ACCEPTS, OPTIMIZER_STEPS, to_device
from dovetail.train.randomness import KeyedRandomness, Seeding, draw_again, generator_of
from dovetail.train.replayability import (
    SeenSeedings,
    attributes_of,
    checksums,
    distance,
    first_change,
    loose_tensors,
    noting_waits,
)
from dovetail.train.resident import RESIDENT, ResidentSession
from dovetail.train.schedulers import schedulers_of
from dovetail.train.state import TrainingState
from dovetail.vocabulary import TechniqueRefused

# Steps taken plainly before the first capture: kernels are chosen and workspaces allocated in them.
_WARM = 2
# Graphs of one training, each for batches of another shape; each keeps its activations' memory.
_MOST = 4
# By how much two runs of the same kernels may differ, in losses, gradients and buffers. Few add up in any order on the
# way to a loss, many to gradients. If more, then by so many times as much as two plain runs do.
_TOLERANCES, _BY_CHANCE = (1e-6, 2e-2, 2e-2), 3.0
# Batches of more forms than this are each too seldom to be captured.
_MOST_FORMS = 64

Computed = tuple[list[torch.Tensor], Mapping[str, Any]]
Outcome = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]
"""The losses, gradients and buffers that a step leads to."""


class GraphReplay(Technique):
    """One task, by replaying its steps."""

    name = "graph"
    exactness = RESIDENT.exactness

    def refuse(self, members: Members) -> str | None:
        """Gangs, what takes its own steps, and what does something at each that a graph would leave out."""
        return _refusal(members[0]) if len(members) == 1 else f"graph trains one task at a time, got {len(members)}"

    def open(self, members: Members, *, device: torch.device, threads: int, knobs: Knobs = NO_KNOBS) -> TrainingSession:
        """A session of this one member at step 0."""
        self.check(members)
        fp8 = wants_fp8(knobs, device)
        return GraphSession(members[0], device=device, threads=threads, fp8=fp8)


GRAPH = GraphReplay()


def _refusal(member: SessionMember) -> str | None:
    training = member.training
    if training.step is not None:
        return "a step that is captured must be Dovetail's; the training has a step function of its own"
    if training.precision not in ("fp32", "bf16"):
        return f"precision must be fp32 or bf16, got {training.precision!r}, whose steps change weights or scales"
    if training.callbacks or training.state:
        return "callbacks, and what changes state of the user's own, run in Python, which a graph leaves out"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for name, module in training.model.named_modules():
        if any(getattr(module, each) for each in hooks):
            return f"hooks of modules run in Python, which a graph leaves out; {name or 'the model'!r} has some"
    if any(each._backward_hooks or each._post_accumulate_grad_hooks for each in training.model.parameters()):
        return "hooks of parameters run in Python, which a graph leaves out; some have them"
    if nn.modules.module._has_any_global_hook():
        return "hooks of all modules run in Python, which a graph leaves out; there are some"
    for name, each in schedulers_of(training).items():
        if not type(each.scheduler).__module__.startswith("torch.optim"):
            return f"a scheduler of one's own may change what a graph has fixed; {name!r} is one"
    return None


class GraphSession(ResidentSession):
    """A training loop on a stream of its own whose gradients are replayed."""

    def __init__(self, member: SessionMember, *, device: torch.device, threads: int, fp8: bool = False) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))  # what building has put there
        with self._streaming():
            super().__init__(member, device=device, threads=threads, fp8=fp8)
        self._seen: dict[Hashable, int] = {}
        # Of each form, how generators were seeded and which parameters had gradients when a step was looked at.
        self._warmed: dict[Hashable, tuple[list[Seeding], list[nn.Parameter]]] = {}
        self._captured: dict[Hashable, _CapturedStep] = {}
        self._settling: set[Hashable] = set()  # forms whose first step has changed a module
        assert isinstance(member.training.optimizer, torch.optim.Optimizer)
        self._optimizer = FlatSteps(member.training.optimizer)
        self._replayed = self._clipped = False  # whether the gradients at hand are
        self._failure = "" if self._stream is not None else "there are no CUDA graphs on a CPU"

    @property
    def warmup_steps(self) -> int:
        """Those before a capture, the one at it, the one that is taken both ways, and a first replay."""
        return _WARM + 3

    def shortfall(self, member: int = 0) -> str:
        """Why steps run plainly; empty where they do not."""
        return self._failure

    @property
    def streams(self) -> list[torch.cuda.Stream]:
        """Where the device's work is put."""
        return [self._stream] if self._stream is not None else []

    def advance(self, live: Sequence[int] = (0,)) -> list[StepReport]:
        """Take one optimizer step."""
        with self._streaming():
            return super().advance(live)

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics, in evaluation mode, without gradients."""
        before = attributes_of(self._training.model)
        with self._streaming():
            found = super().evaluate(member)
        if attributes_of(self._training.model) != before:  # which graphs have fixed
            self._captured, self._seen = {}, {}
        return found

    def state(self, member: int = 0) -> TrainingState:
        """The live tensors under their canonical names."""
        with self._streaming():
            self._optimizer.settle()
            return super().state(member)

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`, whichever technique wrote it."""
        self._captured, self._seen = {}, {}
        with self._streaming():
            self._optimizer.forget()
            super().load(state, member)

    def close(self) -> None:
        """Remove hooks and drop the model and its graphs."""
        self._captured = {}
        super().close()

    @contextlib.contextmanager
    def _streaming(self) -> Iterator[None]:
        """Within, the device's work goes to this session's stream; what follows elsewhere waits for it. It waits for
        nobody: nothing but this session touches its tensors."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _place_batches(self, batches: list[Any]) -> list[Any]:
        return batches  # a graph's own inputs are filled from where batches are

    def _compute_gradients(self, batches: list[Any]) -> Computed:
        self._replayed = self._clipped = False
        if self._failure:
            return self._plainly(batches)
        try:
            form, leaves = flatten(batches)
        except TechniqueRefused as error:
            self._failure = str(error)
            return self._plainly(batches)
        form = form, tuple(leaf.stride() for leaf in leaves)
        key: Hashable = (form, self._circumstances())
        if captured := self._captured.get(key):
            return self._compare(captured, leaves, batches) if captured.is_due() else self._replay(captured, leaves)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if len(self._seen) > _MOST_FORMS:
            self._stop_replaying("batches are of too many forms")
            return self._plainly(batches)
        if seen <= _WARM or len(self._captured) >= _MOST:
            return self._warm_up(key, leaves, batches, is_last=seen == _WARM)
        self._capture(form, leaves, *self._warmed[key])
        return self._plainly(batches)  # a capture computes nothing

    def _warm_up(self, key: Hashable, leaves: Sequence[torch.Tensor], batches: list[Any], *, is_last: bool) -> Computed:
        """A plain step that is looked at. A form's first one may fill caches; the others must leave modules as they
        are."""
        own, seen = [tensor for tensor in leaves if tensor.device.type != "cpu"], SeenSeedings()
        before = [tensor._version for tensor in own]
        attributes, weights = attributes_of(self._training.model), checksums(self._parameters)
        with self._random.seeding(seen.note), noting_waits() as waits:
            self._random.begin(self._step, 0)  # so that draws before the first module's are among the seedings
            found = self._plainly(batches)
        self._warmed[key] = seen.seedings, self._trained_parameters()
        changed = first_change(attributes, attributes_of(self._training.model))
        fixed = [n for n, v in found[1].items() if not isinstance(v, torch.Tensor) or v.device.type == "cpu"]
        if waits:
            self._failure = f"its steps must not wait for the device; they do in {waits[0]}"
        elif seen.in_backward:
            self._failure = "activations with random numbers are computed again in backward"
        elif seen.drew_on_host():
            self._failure = "random numbers must be drawn on the device; some are drawn on the host"
        elif fixed:
            self._failure = f"metrics of a step must be tensors on the device to be computed again; {fixed} are not"
        elif weights != checksums(self._parameters):
            self._failure = "forward must leave parameters to the optimizer; it changes some"
        elif changed and (is_last or key in self._settling):
            self._failure = f"forward must leave its modules as they are; it replaces {changed!r}"
        elif changed:  # a cache that is longer now, say; graphs still read what was there
            self._captured, self._seen = {}, {}
            self._settling.add(key)
        elif before != [tensor._version for tensor in own]:  # they would be found so when they are read again
            self._failure = "the loss changes its batches in place"
        return found

    def _replay(self, captured: "_CapturedStep", leaves: Sequence[torch.Tensor]) -> Computed:
        self._replayed = self._clipped = True
        return captured.replay(leaves, self._step)

    def _plainly(self, batches: list[Any]) -> Computed:
        return super()._compute_gradients([to_device(batch, self._device) for batch in batches])

    def _stop_replaying(self, reason: str) -> None:
        self._failure, self._replayed = reason, False
        self._captured, self._seen, self._warmed = {}, {}, {}
        self._optimizer.forget()

    def _circumstances(self) -> Hashable:
        """What else a graph has fixed that others may change between steps."""
        return (
            tuple([parameter.data_ptr() for parameter in self._parameters]),
            tuple([parameter.requires_grad for parameter in self._parameters]),
            tuple([module.training for module in self._modes]),
        )

    def _capture(
        self, form: Any, leaves: Sequence[torch.Tensor], seedings: Sequence[Seeding], trained: Sequence[nn.Parameter]
    ) -> None:
        """Capture what comes before the optimizer's step, and leave everything else as it was."""
        # cuDNN wants the weights of recurrent layers in a row of its own.
        if not any(isinstance(module, nn.RNNBase) for module in self._modes):
            self._optimizer.lay_out(trained)

        def compute(inputs: Sequence[torch.Tensor]) -> Computed:
            self._random.begin(self._step, 0)
            found = super(GraphSession, self)._compute_gradients(rebuild(form[0], iter(inputs)))
            self._clip()
            self._optimizer.fill(self._trained_parameters())
            return found

        again = draw_again()
        assert self._stream is not None
        try:
            captured = _CapturedStep(compute, leaves, self._random, seedings, self._parameters, self._stream)
        except Exception as error:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self._stop_replaying(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        else:
            self._captured[form, self._circumstances()] = captured
        for parameter in self._parameters:
            parameter.grad = None
        again()
        self._random.begin(self._step, 0)

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._parameters if parameter.grad is not None]

    def _clip(self) -> None:
        if self._training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._training.clip_norm)

    def _clip_and_step(self, parameters: Sequence[nn.Parameter]) -> None:
        if not self._clipped:
            self._clip()
        layouts = self._optimizer.layouts
        self._demand = OPTIMIZER_STEPS
        self._optimizer.step(self._trained_parameters(), is_filled=self._replayed)
        self._demand = MODEL_ACCEPTS
        if self._optimizer.layouts != layouts:  # graphs write to where gradients were in a row
            self._captured, self._seen = {}, {}

    def _compare(self, captured: "_CapturedStep", leaves: Sequence[torch.Tensor], batches: list[Any]) -> Computed:
        """Take a step both ways; the plain one counts. Where they differ, a second plain one tells whether the model
        ever comes out the same."""
        loose = list(loose_tensors(self._training.model))
        before = [tensor.clone() for tensor in loose]
        replayed = self._outcome(captured.replay(leaves, self._step)[0], loose)
        try:
            found = self._plainly_again(loose, before, batches)
            plain = self._outcome(found[0], loose)
            apart, is_exact = _distances(replayed, plain), torch.are_deterministic_algorithms_enabled()
            if is_exact and any(apart):
                self._stop_replaying(self._describe_distances(apart, captured))
            elif _is_far(apart):
                found = self._plainly_again(loose, before, batches)
                by_chance = _distances(plain, self._outcome(found[0], loose))
                if _is_far([one - _BY_CHANCE * other for one, other in zip(apart, by_chance, strict=True)]):
                    self._stop_replaying(self._describe_distances(apart, captured))
        except torch.OutOfMemoryError:  # for two there is no room
            self._stop_replaying("a graph and a plain step do not fit into the device's memory at once")
            torch.cuda.empty_cache()
            found = self._plainly_again(loose, before, batches)
        captured.compared_step = self._step + 1
        return found

    def _plainly_again(
        self, loose: Sequence[torch.Tensor], before: Sequence[torch.Tensor], batches: list[Any]
    ) -> Computed:
        """The gradients of a step of which nothing is left but what it was computed from."""
        for parameter in self._parameters:
            parameter.grad = None
        with torch.no_grad():
            for tensor, value in zip(loose, before, strict=True):
                tensor.copy_(value)
        self._random.begin(self._step, 0)
        found = self._plainly(batches)
        self._clip()
        self._clipped = True
        return found

    def _outcome(self, losses: list[torch.Tensor], loose: Sequence[torch.Tensor]) -> Outcome:
        gradients = [each.grad.clone() for each in self._parameters if each.grad is not None]
        return losses, gradients, [tensor.clone() for tensor in loose]

    def _describe_distances(self, apart: Sequence[float], captured: "_CapturedStep") -> str:
        names = ("losses", "gradients", "buffers")
        said = ", ".join(
            f"{name} by {value:.1g} of their size" for name, value in zip(names, apart, strict=True) if value
        )
        since = f"; the last that did not was step {captured.compared_step}" if captured.compared_step else ""
        return f"step {self._step + 1} came out otherwise when it was replayed ({said}){since}"


def _distances(one: Outcome, other: Outcome) -> list[float]:
    return [distance(mine, theirs) for mine, theirs in zip(one, other, strict=True)]


def _is_far(apart: Sequence[float]) -> bool:
    return any(value > most for value, most in zip(apart, _TOLERANCES, strict=True))


@contextlib.contextmanager
def _unseen_capture() -> Iterator[None]:
    """Within, nobody is told that a graph is captured. Who asks takes other ways then: `transformers` builds masks that
    it leaves out otherwise, and attention with a mask has other kernels, which round otherwise."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


class _CapturedStep:
    """The gradients of a step, to be computed again from other batches."""

    def __init__(
        self,
        compute: Callable[[Sequence[torch.Tensor]], Computed],
        leaves: Sequence[torch.Tensor],
        random: KeyedRandomness,
        seedings: Sequence[Seeding],
        parameters: Sequence[nn.Parameter],
        stream: torch.cuda.Stream,
    ) -> None:
        self.compared_step = self._uses = 0
        self._due_use = 1
        self._random, self._seedings, self._parameters = random, seedings, parameters
        self._inputs = [torch.empty_like(tensor, device=stream.device) for tensor in leaves]
        self._fill(leaves)
        self._graph = torch.cuda.CUDAGraph()
        generator = generator_of(stream.device)
        # Each seeding has a generator of its own, which is seeded before a replay: within one nothing can be.
        own, self._generators = generator.clone_state(), [generator.clone_state() for _ in seedings]
        for each in self._generators:
            self._graph.register_generator_state(each)
        states = iter(self._generators)

        def take_next(seeding: Seeding) -> bool:
            generator.graphsafe_set_state(next(states))
            return True

        try:
            with (
                random.seeding(take_next),
                _unseen_capture(),
                torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self._losses, self._metrics = compute(self._inputs)
        finally:
            generator.graphsafe_set_state(own)  # a copy: where a capture fails, what it has had is of no more use
        self._gradients = [parameter.grad for parameter in parameters]

    def is_due(self) -> bool:
        """Whether it is to be compared with a plain step: before its first use counts, and at uses 8, 32, 128 and so
        on, since what Python reads may change at any time."""
        self._uses += 1
        if self._uses < self._due_use:
            return False
        self._due_use = max(8, 4 * self._due_use)
        return True

    def replay(self, leaves: Sequence[torch.Tensor], step: int) -> Computed:
        """Losses and metrics of these batches; the gradients are the parameters' afterwards."""
        self._fill(leaves)
        for generator, seeding in zip(self._generators, self._seedings, strict=True):
            generator.manual_seed(self._random.seed_of(seeding, step))
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return [loss.clone() for loss in self._losses], {
            name: each.detach().clone() for name, each in self._metrics.items()
        }

    def _fill(self, leaves: Sequence[torch.Tensor]) -> None:
        for own, given in zip(self._inputs, leaves, strict=True):
            own.copy_(given.pin_memory() if given.device.type == "cpu" else given, non_blocking=True)
