"""The session of a spilled training: steps, updates, clipping, memory, and the canonical state."""

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dovetail.planning.techniques.spill import Layout, Segment, StreamingRates
from dovetail.train.base import SessionMember, StepReport, Training
from dovetail.train.loop import LoopSession
from dovetail.train.postponed_compiler import run_as_written
from dovetail.train.randomness import KeyedRandomness
from dovetail.train.spill.device_resources import ArenaSize, DeviceResources
from dovetail.train.spill.forecast import Forecast, SegmentTimes, link_rates, pace, with_times
from dovetail.train.spill.host_updates import part
from dovetail.train.spill.parked_inputs import ParkedInputs
from dovetail.train.spill.resident_segments import ResidentSegments
from dovetail.train.spill.segment_streamer import Itinerary, NoRoom, UsedWhileAway
from dovetail.train.spill.segment_updates import SegmentUpdates
from dovetail.train.spill.segments import Entry, LiveSegment, prepare
from dovetail.train.spill.spill_knobs import SpillKnobs
from dovetail.train.spill.stray_reads import UsedInFull
from dovetail.train.spill.streamed_model import StreamedModel
from dovetail.train.state import TrainingState, capture, restore
from dovetail.train.weights import Buffers
from dovetail.vocabulary.units import show_bytes

# What the allocator loses between blocks.
_MARGIN = 0.03
# How many streamed segments are on the device at once, at most.
_DEEPEST = 5
# Parameters a second: 28 bytes each through some 3 TB/s. Only where clipping makes them wait are they not timed.
_DEVICE_UPDATES = 1e11


class SpillSession(LoopSession):
    """One training whose segments stream between host and device.

    The first step holds every update back until its backward is over: should the device run out of memory in it,
    nothing has changed yet, and it is taken again with less on the device.
    """

    def __init__(
        self,
        member: SessionMember,
        *,
        device: torch.device,
        threads: int,
        knobs: SpillKnobs,
        resources: DeviceResources | None = None,
        turnstile: Callable[[LiveSegment], None] = lambda segment: None,
    ) -> None:
        training = member.training
        assert isinstance(training.optimizer, torch.optim.Optimizer)
        self._knobs, self._optimizer = knobs, training.optimizer
        self._budget = knobs.device_budget(device)
        self._waits = training.clip_norm is not None
        # What streams the weights would be compiled along, and cut the program's graphs.
        self._compile_again = run_as_written(training.model)
        try:
            self._cut(training, device)
            super().__init__(member, device=device, threads=threads)
        except BaseException:
            self._compile_again()
            raise
        self._resources = resources or DeviceResources(device, threads=threads)
        self._owns_resources = resources is None
        try:
            self._set_up(training, turnstile)
        except BaseException:  # whoever is refused goes on, and must find threads and pinned memory as they were
            self._random.close()
            self._compile_again()
            if self._owns_resources:
                self._resources.close()
            raise

    def _cut(self, training: Training, device: torch.device) -> None:
        """Into segments, with the parts of the optimizer that update them."""
        self._segments = prepare(training.model, budget_bytes=self._budget, precision=training.precision, device=device)
        self._parts = {segment: part(self._optimizer, segment) for segment in self._segments if segment.trainable}
        self._optimizer.state.clear()  # the parts have it
        # What work takes on an accelerator is known after a step; until then only what must be is kept.
        self._settled = device.type == "cpu"
        self._working_bytes = 0
        self._residents = ResidentSegments(
            self._segments,
            self._parts,
            self._optimizer,
            device=device,
            knobs=self._knobs,
            accumulate=training.accumulate,
            holds=self._waits or training.accumulate > 1,
        )

    def _set_up(self, training: Training, turnstile: Callable[[LiveSegment], None]) -> None:
        knobs = self._knobs
        self._itinerary = Itinerary()
        self._resources.itineraries.update(dict.fromkeys(self._segments, self._itinerary))
        self._residents.begin(self._resources.memory, settled=self._settled)
        self._segment_updates = SegmentUpdates(
            training, self._parts, residents=self._residents, resources=self._resources, device=self._device
        )
        self._spilled = StreamedModel(
            training.model,
            self._segments,
            streamer=self._resources.streamer,
            itinerary=self._itinerary,
            complete=self._segment_updates.complete,
            turnstile=turnstile,
            norms=self._waits and training.accumulate == 1,
            half_inputs=training.precision == "bf16-pure",
        )
        self._spilled.recompute, self._spilled.ahead = knobs.recompute, _DEEPEST
        self._began = self._settled_step = self._bytes_before_step = 0
        self._times: SegmentTimes | None = None
        if self._owns_resources:
            self._resources.allocate([self.room])

    # What the outside asks

    @property
    def room(self) -> ArenaSize:
        """What this session needs of the arenas."""
        return self._residents.room

    @property
    def device_bytes(self) -> int:
        """What its segments take on the device: those that stay, and the room of those that stream."""
        return self.room.bytes + self.kept_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of the segments that stay on the device."""
        return self._residents.bytes

    @property
    def waits(self) -> bool:
        """Whether updates wait for the norm of all gradients."""
        return self._waits

    def owns(self, segment: LiveSegment | None) -> bool:
        """Whether a segment is one of this session's."""
        return segment in self._segments

    def remaining(self) -> int:
        """How many segments this step has yet to enter, if it goes as the last one did."""
        return self._itinerary.remaining()

    def put_aside(self) -> Callable[[], None]:
        """Put the random numbers of this session aside; gives what puts them back."""
        return self._random.put_aside()

    @property
    def segments(self) -> tuple[LiveSegment, ...]:
        """The model's segments, in the order of its modules."""
        return tuple(self._segments)

    @property
    def layout(self) -> Layout:
        """Where each of the segments lives."""
        return self._residents.layout

    def records(self) -> list[Segment]:
        """The segments as planning knows them."""
        return self._residents.records()

    def forecast(self) -> Forecast:
        """What this takes: bytes from the layout, and, once three steps were taken, the pace from the third's times
        and from the rates of this machine's links and of the updates so far."""
        parked = self._spilled.parked_inputs.bytes if self._spilled.parked_inputs else 0
        found = Forecast(
            device_bytes=self._working_bytes + self.device_bytes,
            host_bytes=self.layout.host_bytes + parked,
            pinned_bytes=self.layout.pinned_bytes + parked,
            disk_bytes=self.layout.disk_bytes,
        )
        timed = self.timed_segments()
        if timed is None:
            return found
        return dataclasses.replace(found, pace=pace([timed], rates=self.rates(), clip=self._waits))

    def timed_segments(self) -> "tuple[Sequence[Segment], Layout, int] | None":
        """The segments with their seconds, once they were seen."""
        if self._times is None or self._step < self._settled_step + 2:
            return None
        return with_times(self.records(), self._times.seconds()), self.layout, self._training.accumulate

    def rates(self) -> StreamingRates:
        """How fast links and updates are here; what was not seen is at its default."""
        self.drain()
        streamed = [segment.travel for segment in self._segments if not segment.kept]
        found = link_rates(self._device, streamed[0] if streamed else None)
        found |= self._resources.updates.rates()
        # Updates were seen with copies going on beside them; the device's own are in its segments' times.
        return StreamingRates(**found, contended=1.0, device_update_parameters_per_second=_DEVICE_UPDATES)

    def update_seconds(self) -> float:
        """For how long of a step the host is busy with updates, by those since `forget_rates`; zero where there were
        none."""
        self.drain()
        rate = self._resources.updates.rates().get("update_parameters_per_second")
        streamed = [each for each in self._segments if not each.kept and not self._residents.disk_bytes(each)]
        return sum(e.master.numel() for each in streamed for e in each.trainable) / rate if rate else 0.0

    def drain(self) -> None:
        """Wait until every update is done."""
        self._resources.updates.drain(self._segments)

    def forget_rates(self) -> None:
        """Judge how fast updates are by those from here on."""
        self._resources.updates.forget_rates()

    def state(self, member: int = 0) -> TrainingState:
        """The masters and their slots, wherever they are, under their canonical names."""
        self.drain()
        with self._spilled.stand_ins.masters(), self._whole_optimizer():
            return capture(self._training, step=self._step, feed=self._cursor.state(), random=self._random.state())

    def load(self, state: TrainingState, member: int = 0) -> None:
        """Go on from `state`, whichever technique wrote it."""
        self.drain()
        self._resources.streamer.discard_all(self._segments)
        with self._spilled.stand_ins.masters(), self._whole_optimizer():
            feed, random = restore(self._training, state)
        for segment in self._segments:
            self._residents.placement.refresh(segment)
        self._cursor.restore(feed)
        self._random.restore(random)
        self._step = self._began = state.step

    def close(self) -> None:
        """Give the model its parameters back, on the host, and everything else to whom it belongs."""
        if self._spilled.closed:
            return
        with contextlib.suppress(Exception):  # a failed update was reported where it was waited for
            self.drain()
        self._spilled.close()
        self._random.close()
        self._compile_again()
        for segment in self._segments:
            self._resources.itineraries.pop(segment, None)
            for entry in segment.entries:
                entry.master.data = entry.master.data.to("cpu", copy=True)
        self._residents.placement.close()
        if self._owns_resources:
            self._resources.close()

    def evaluate(self, member: int = 0) -> dict[str, float]:
        """The user's metrics. What evaluation alone reads from outside its module is found here, and stays."""
        while True:
            try:
                return super().evaluate()
            except (UsedWhileAway, UsedInFull) as error:
                better = self._answer(error)
            self._spilled.abandon()
            better()

    # A step

    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        stack.enter_context(super()._computing())
        stack.enter_context(self._spilled.computing(watching=self._step == self._began or not torch.is_grad_enabled()))
        return stack

    def _take_step(self, batches: list[Any]) -> StepReport:
        first = self._step == self._began
        # Steps before it settles touch memory that nobody had touched, the one after allocates anew.
        is_timed = first or (self._settled and self._step == self._settled_step + 1)
        self._spilled.times = SegmentTimes(self._device) if is_timed else None
        report = self._retry_with_less(batches, first=first)
        self._times, self._spilled.times = self._spilled.times or self._times, None
        if first and not self._settled and self._owns_resources:
            self._settle()
        return report

    def _retry_with_less(self, batches: list[Any], *, first: bool) -> StepReport:
        """One step; again with less on the device if that ran out before anything had changed."""
        before = _Before(self._training.model, self._random, buffers=first)
        better: Callable[[], None]
        while True:
            try:
                return self._step_once(batches, holds=first or self._waits)
            except (UsedWhileAway, UsedInFull) as error:
                if not first:
                    raise
                better = self._answer(error)
            except torch.OutOfMemoryError as error:
                rung = self._deeper() if first and isinstance(error, NoRoom) else self._next_rung()
                has_buffers = any(True for _ in self._training.model.buffers())
                if rung is None or self._segment_updates.has_changed or (has_buffers and not first):
                    raise
                better = rung
            # Not within `except`, where the error keeps everything alive that the failed attempt had made.
            self._abandon(before)
            better()

    def _answer(self, error: UsedWhileAway | UsedInFull) -> Callable[[], None]:
        """What to do where weights were used otherwise than they lie."""
        if isinstance(error, UsedInFull):
            return functools.partial(self._travel_in_full, error.segment, error.entry)
        return functools.partial(self._keep_always, error.segment)

    def _travel_in_full(self, segment: LiveSegment, entry: Entry) -> None:
        """Autocast is off where it is used: what autocast would have made of it is not what it must be."""
        self.drain()
        self._residents.send_in_full(segment, entry)
        if not self._owns_resources:  # a gang's arenas are everybody's, and this no longer fits for certain
            self._residents.keep_always({segment})
        self._refurnish()

    def _keep_always(self, read: LiveSegment) -> None:
        """It is read by others than its own modules, and so may be those that nobody called: they stay."""
        self._residents.keep_always({read, *self._spilled.never_entered()})
        self._refurnish()

    def _step_once(self, batches: list[Any], *, holds: bool) -> StepReport:
        self._segment_updates.begin(self._optimizer.param_groups, holds=holds)
        if not self._settled and self._owns_resources:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._bytes_before_step = torch.cuda.memory_allocated(self._device)
        losses: list[torch.Tensor] = []
        metrics: Mapping[str, Any] = {}
        backward = self._backward(batches)
        for number in range(len(batches)):
            last = number == len(batches) - 1
            self._segment_updates.microbatch(last=last)
            self._spilled.begin(last=last)
            loss, metrics = next(backward)
            self._spilled.end()
            losses.append(loss)
        self._segment_updates.complete_early_ones()
        if not self._settled and self._owns_resources:
            self._see_work()
        report = self._report(losses, metrics)
        self._segment_updates.update_held()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # parts of it were stepped
        self._step_schedulers()
        return report

    # Memory

    def keep_within(self, more_bytes: int) -> int:
        """Keep on the device what fits into this many more bytes than are in use now; gives how many were taken.
        Between two steps only.

        The arenas must be furnished again afterwards: what streams has changed.
        """
        self.drain()
        self._resources.streamer.discard_all(self._segments)
        taken = self._residents.keep_within(more_bytes)
        self._settled, self._settled_step = True, self._step + 1 if self._owns_resources else self._step
        return taken

    def _settle(self) -> None:
        """The first step has shown what work takes: keep on the device what fits beside it."""
        self._synchronize()
        self._residents.depth = max(self._residents.least_depth, self._knobs.depth or self._fitting_depth())
        over = self._working_bytes + self.device_bytes - self._budget
        if over > 0:
            self._need_less(over)
            self._began = self._step + 1  # look again at the next step
        else:
            self.keep_within(max(0, -over - int(self._budget * _MARGIN)))
            self._resources.allocate([self.room])
            self.forget_rates()  # the first touched memory that nobody had touched
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def _need_less(self, over: int) -> None:
        rung = self._next_rung()
        if rung is None:
            raise torch.OutOfMemoryError(
                f"spill must keep within {show_bytes(self._budget)} of the device; it takes {show_bytes(over)} more, "
                f"with everything streamed, recomputed and parked. Use a smaller batch with accumulate."
            )
        rung()
        self._refurnish()

    def _fitting_depth(self) -> int:
        """So many segments at once that the next ones' copies are there when they are needed, by the first step's
        times: one that computes, and those that come up meanwhile."""
        times = self._times.seconds() if self._times else {}
        streamed = [segment for segment in self._segments if not segment.kept and segment.name in times]
        rates = link_rates(self._device, streamed[0].travel if streamed else None)
        if not rates:
            return self._residents.depth
        waits = [
            segment.travel_bytes / rates["up_bytes_per_second"] / max(1e-6, times[segment.name][0])
            for segment in streamed
        ]
        return min(_DEEPEST, 1 + max(1, math.ceil(statistics.median(waits))))

    def _see_work(self) -> None:
        """What forward and backward took beside what was there before; updates come after, and take less."""
        self._working_bytes = torch.cuda.max_memory_allocated(self._device) - self._bytes_before_step

    def _abandon(self, before: "_Before") -> None:
        """Forget a step that failed before anything had changed."""
        self.drain()  # an update of the step before, or a sum, may be under way
        self._spilled.abandon()
        self._segment_updates.forget()
        if self._spilled.times is not None:
            self._spilled.times = SegmentTimes(self._device)
        for segment in self._segments:
            for entry in segment.entries:
                entry.master.grad = None
        before.put_back()
        self._random.begin(self._step, 0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _next_rung(self) -> Callable[[], None] | None:
        """What to do where the device ran out of memory; None where all was done."""
        if not self._spilled.recompute:
            return self._recompute
        # Of a gang the arenas are everybody's: what streams must not change while others are under way.
        if self._owns_resources and self._residents.removable():
            return self._keep_half
        if self._spilled.parked_inputs is None and self._device.type == "cuda":
            return self._park
        return None

    def _deeper(self) -> Callable[[], None] | None:
        """What to do where more segments are in use at once than there is room for, as within a checkpoint of the
        program's own around several of them."""
        return self._deepen if self._owns_resources and self._residents.can_deepen() else None

    def _deepen(self) -> None:
        self._residents.deepen(settled=self._settled)
        self._refurnish()

    def _recompute(self) -> None:
        self._spilled.recompute = True

    def _keep_half(self) -> None:
        self._residents.drop_half()
        self._refurnish()

    def _park(self) -> None:
        self._spilled.parked_inputs = ParkedInputs(self._resources.lanes, self._resources.memory, self._device)

    def _refurnish(self) -> None:
        if self._owns_resources:
            self._resources.streamer.discard_all(self._segments)
            self._synchronize()
            self._resources.allocate([self.room])

    def _synchronize(self) -> None:
        """Nothing is under way on the device, so memory can change hands."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @contextlib.contextmanager
    def _whole_optimizer(self) -> Iterator[None]:
        """Within, the user's optimizer holds all slots; afterwards the parts hold what it then has."""
        for optimizer in self._parts.values():
            self._optimizer.state.update(optimizer.state)
        try:
            yield
        finally:
            for segment, optimizer in self._parts.items():
                own = {entry.master for entry in segment.trainable}
                optimizer.state.clear()
                optimizer.state.update({p: self._optimizer.state.pop(p) for p in own if p in self._optimizer.state})
            self._optimizer.state.clear()


class _Before:
    """What a step may change before it is sure to be taken: buffers, and what has been drawn."""

    def __init__(self, model: nn.Module, random: KeyedRandomness, *, buffers: bool) -> None:
        self._random, self._drawn = random, random.state()
        self._buffers = Buffers(model.modules() if buffers else ())

    def put_back(self) -> None:
        """Put everything back as it was before the step."""
        self._buffers.put_back()
        self._random.restore(self._drawn)
