"""A model whose segments stream: what happens at the borders of its segments, forward and backward.

Leaves stand in for the model's parameters; each segment's forward brings it and lets it go. Autograd keeps for backward
where a streamed weight lay, not the weight. When the last gradient of a segment has come, all of them go down together.
Knows autograd and streams; knows nothing of optimizers.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dovetail.train.recompute import keep_buffers_once, refuse_changed_inputs
from dovetail.train.spill.forecast import SegmentTimes
from dovetail.train.spill.lanes import Mark, Slot
from dovetail.train.spill.parked_inputs import ParkedInputs
from dovetail.train.spill.segment_streamer import Itinerary, Saved, Streamer, UsedWhileAway
from dovetail.train.spill.segments import Entry, LiveSegment, is_placeholder
from dovetail.train.spill.stray_reads import StrayReads
from dovetail.train.weights import StandIns, to_half
from dovetail.vocabulary import ProgramError, TechniqueRefused

Complete = Callable[[LiveSegment, list[Entry], Mark | None], None]
"""Told of a segment with the entries whose gradients came, and when they will have landed (None: they are kept)."""


class StreamedModel:
    """The segments of one model at work. `begin`, forward, backward, `end`, for each microbatch."""

    def __init__(
        self,
        model: nn.Module,
        segments: list[LiveSegment],
        *,
        streamer: Streamer,
        itinerary: Itinerary,
        complete: Complete,
        turnstile: Callable[[LiveSegment], None],
        norms: bool,
        half_inputs: bool,
    ) -> None:
        self.segments, self.recompute, self.ahead = segments, False, 2
        self.parked_inputs: ParkedInputs | None = None
        """Where inputs of recomputed segments wait; None: on the device."""
        self._streamer, self._itinerary = streamer, itinerary
        self._complete_with, self._turnstile, self._norms = complete, turnstile, norms
        self._half_inputs, self._watching = half_inputs, False
        self._versions: dict[LiveSegment, list[int]] = {}
        self._slots: dict[LiveSegment, Slot] = {}
        self._arrived: dict[LiveSegment, list[Entry]] = {}
        self._entered: dict[LiveSegment, int] = {}  # how often, in this microbatch's forward
        self._completed: set[LiveSegment] = set()
        self._open: dict[LiveSegment, bool] = {}  # in backward; whether it was computed again, and so must stay
        self._running: Counter[LiveSegment] = Counter()  # how often each is inside its own forward now
        self._last, self.closed = True, False
        self.times: SegmentTimes | None = None
        self.stand_ins = StandIns(model, {e.master: e.leaf for segment in segments for e in segment.entries})
        self._release: list[Callable[[], None]] = []
        if half_inputs:
            self._release.append(model.register_forward_pre_hook(to_half, with_kwargs=True).remove)
        for segment in segments:
            for module in segment.modules:
                self._wrap(module, segment)
            for entry in segment.trainable:
                hook = self._make_gradient_hook(entry, segment)
                self._release.append(entry.leaf.register_post_accumulate_grad_hook(hook).remove)

    @contextlib.contextmanager
    def computing(self, *, watching: bool) -> Iterator[None]:
        """The context that forward runs in; with `watching`, weights read from outside their modules are found."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            if watching:
                stack.enter_context(StrayReads(self.segments, runs=self._runs, autocast=not self._half_inputs))
            self._watching = watching
            yield

    def begin(self, *, last: bool) -> None:
        """Begin a microbatch; after the last one of a step the segments' copies are out of date."""
        self._last = last
        self._entered.clear()
        self._completed.clear()
        if self.parked_inputs is not None:
            self.parked_inputs.begin()
        for segment in self.segments:
            segment.missing = len(segment.trainable)
            for entry in segment.entries:
                if entry.leaf.requires_grad != entry.trains:
                    raise TechniqueRefused(
                        f"spill must know from the first what trains; {entry.name!r} was frozen or unfrozen since."
                    )
        self._prefetch()

    def end(self) -> None:
        """Its backward is over: segments of which some gradients never came are complete too."""
        for segment in list(self._arrived):
            self._complete(segment)
        for segment in list(self._open):
            self._close(segment)
        self._itinerary.end_step()

    def never_entered(self) -> list[LiveSegment]:
        """The streamed segments that this microbatch's forward never entered: not used, or by others than their
        modules."""
        return [segment for segment in self.segments if not segment.kept and segment not in self._entered]

    def abandon(self) -> None:
        """Forget a microbatch that failed half way."""
        for segment in self.segments:
            for entry in segment.entries:
                entry.leaf.grad = entry.gradient = entry.norm = None
        for slot in self._slots.values():
            self._streamer.give_back(slot, self._streamer.lanes.mark())
        self._slots, self._arrived, self._open = {}, {}, {}
        self._running.clear()
        self._streamer.discard_all(self.segments)
        self._itinerary.end_step()

    def close(self) -> None:
        """Leave the model as it was."""
        self.closed = True
        self._streamer.discard_all(self.segments)
        for release in self._release:
            release()
        self._release = []
        self.stand_ins.remove()

    # Forward

    def _wrap(self, module: nn.Module, segment: LiveSegment) -> None:
        own = module.forward

        def entered(*positional: Any, **named: Any) -> Any:
            self._enter(segment)
            try:
                return self._own(own(*positional, **named))
            finally:
                self._leave(segment)

        def forward(*positional: Any, **named: Any) -> Any:
            if torch.is_grad_enabled():
                if not _is_in_backward():
                    self._watch_inputs(segment, (*positional, *named.values()))
                if self.recompute and not segment.fixed and not self._is_recomputed():
                    run = refuse_changed_inputs(
                        keep_buffers_once(entered, [module]), positional if self.parked_inputs is None else ()
                    )
                    if self.parked_inputs is not None:
                        return self.parked_inputs.checkpoint(run, positional, named)
                    return checkpoint(run, *positional, use_reentrant=False, **named)
            return entered(*positional, **named)

        had = "forward" in vars(module)
        vars(module)["forward"] = forward

        def release() -> None:
            if had:
                vars(module)["forward"] = own
            else:
                vars(module).pop("forward", None)

        self._release.append(release)

    def _own(self, found: Any) -> Any:
        """What a module gives, in memory of its own: weights that it hands out would be overwritten where they lie."""
        if isinstance(found, torch.Tensor):
            return found.clone() if self._streamer.travel.holds(found) else found
        if type(found) in (tuple, list):
            return type(found)(self._own(value) for value in found)
        return {key: self._own(value) for key, value in found.items()} if type(found) is dict else found

    def _runs(self, segment: LiveSegment) -> bool:
        return self._running[segment] > 0

    def _is_recomputed(self) -> bool:
        """Whether a checkpoint of the program's own is around, forward or when it is computed again: once is enough."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is None or hooks[0] != self._pack

    def _enter(self, segment: LiveSegment) -> None:
        if _is_in_backward():
            self._reopen(segment, hold=True)
            return
        self._turnstile(segment)
        if not segment.kept:
            if torch.is_grad_enabled():  # evaluation goes its own way, and is not what the next step will be like
                self._entered[segment] = self._entered.get(segment, 0) + 1
                self._itinerary.enter(segment)
            self._streamer.enter(segment)
            if torch.is_grad_enabled():
                self._prefetch()
        self._running[segment] += 1
        if self._watching:
            self._versions[segment] = [entry.leaf._version for entry in segment.entries]
        if self.times and torch.is_grad_enabled():
            self.times.enter(segment)

    def _leave(self, segment: LiveSegment) -> None:
        if _is_in_backward():
            return  # what is computed again is used until its gradients are there
        self._running[segment] -= 1
        if self._watching:
            self._look_for_writes(segment)
        if self.times and torch.is_grad_enabled():
            self.times.leave(segment)
        if not segment.kept:
            self._streamer.leave(segment)

    def _look_for_writes(self, segment: LiveSegment) -> None:
        """What forward writes into a weight is lost where that streams, and of no use where it is a rounded copy."""
        before = zip(segment.entries, self._versions.get(segment, []), strict=False)
        for entry in [entry for entry, version in before if entry.leaf._version != version]:
            if entry.dtype != entry.master.dtype:
                raise TechniqueRefused(f"forward must leave rounded weights as they are; it writes {entry.name!r}")
            if not segment.kept:
                raise UsedWhileAway(segment)

    def _prefetch(self) -> None:
        for segment in self._itinerary.ahead(self.ahead):
            if not self._streamer.prefetch(segment):
                break

    def _pack(self, tensor: torch.Tensor) -> Any:
        if is_placeholder(tensor):
            away = [s for s in self.segments if not s.kept and not self._streamer.is_present(s)]
            size = tensor.numel()
            raise UsedWhileAway(next((s for s in away if any(e.leaf.numel() == size for e in s.entries)), away[0]))
        return self._streamer.pack(tensor)

    # Backward

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, Saved):
            tensor: torch.Tensor = saved
            return tensor
        self._reopen(saved.segment, hold=False)
        return self._streamer.unpack(saved)

    def _reopen(self, segment: LiveSegment, *, hold: bool) -> None:
        """Backward needs this segment: for a moment, or until its gradients are there."""
        if segment.kept or self._open.get(segment):
            return
        if segment in self._completed:  # something reads its weights after the last gradient: its update must wait
            segment.is_read_late = True
        known = segment in self._open
        self._open[segment] = hold
        if not known:
            self._itinerary.enter(segment)
        if hold:
            self._streamer.enter(segment)
        else:
            self._streamer.touch(segment)
        if not known:
            self._prefetch()

    def _close(self, segment: LiveSegment) -> None:
        held = self._open.pop(segment, None)
        if held is not None:
            self._streamer.leave(segment, held=held)

    def _watch_inputs(self, segment: LiveSegment, inputs: tuple[Any, ...]) -> None:
        # Once its inputs have their gradients a segment is done with, whether or not it had gradients to give: it may
        # be frozen, or hold what this batch does not use. One that is called several times waits for its gradients.
        def done(gradient: torch.Tensor) -> None:
            if self._entered.get(segment) == 1:
                if segment in self._arrived:
                    self._complete(segment)
                self._close(segment)

        if not segment.kept:
            for value in inputs:
                # A leaf has its gradient before the weights do.
                if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                    value.register_hook(done)

    def _make_gradient_hook(self, entry: Entry, segment: LiveSegment) -> Callable[[torch.Tensor], None]:
        @torch.no_grad()
        def hook(leaf: torch.Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            arrived = self._arrived.setdefault(segment, [])
            if gradient.layout != torch.strided or segment.missing == 0 or entry in arrived:
                raise ProgramError(_ONCE.format(name=entry.name))
            if not segment.kept and segment not in self._entered:
                raise UsedWhileAway(segment)
            if self._norms:
                entry.norm = torch.linalg.vector_norm(gradient, dtype=entry.master.grad_dtype)
            if segment.kept:
                entry.gradient = gradient
            else:
                entry.view(self._gradients(segment)).copy_(gradient)
            arrived.append(entry)
            segment.missing -= 1
            if not segment.missing:
                self._complete(segment)

        return hook

    def _gradients(self, segment: LiveSegment) -> torch.Tensor:
        slot = self._slots.get(segment)
        if slot is None:
            slot = self._slots[segment] = self._streamer.borrow(segment.gradient_bytes)
        return slot.bytes[: segment.gradient_bytes]

    def _complete(self, segment: LiveSegment) -> None:
        arrived, landed = self._arrived.pop(segment), None
        self._completed.add(segment)
        segment.missing = 0
        if not segment.kept:
            assert segment.gradients is not None
            self._streamer.updates.finish(segment)  # the last microbatch's gradients may still be read
            landed = self._streamer.lanes.down(segment.gradients, self._gradients(segment))
            self._streamer.give_back(self._slots.pop(segment), landed)
            self._close(segment)
            if self._last:
                self._streamer.discard(segment)
        self._complete_with(segment, arrived, landed)
        if self.times:
            self.times.complete(segment)


_ONCE = (
    "the gradient of {name!r} must be dense and come once in a backward pass; it came again or sparse. Use "
    "torch.utils.checkpoint with use_reentrant=False, and embeddings with sparse=False."
)


def _is_in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
