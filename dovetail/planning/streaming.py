"""Segments of models that stream through one device: where each lives, how fast they move, how long a step takes.

Four resources are shared: the device computes one segment at a time, one copy goes up and one comes down at a time,
and the host updates one segment at a time. The rules, by which sessions choose too:

- a streamed segment is copied up before its forward, once its last update is done, and again before its backward; its
  gradients then go down and are updated. Each member has room for `depth` segments, so a copy waits for a slot, and at
  the turn from forward to backward the last ones are still there;
- next computes the member with the longest time remaining whose segment is there (Hydra's Sharded-LRTF,
  arXiv:2110.08633), unless it is a whole step ahead of another: so nobody waits while others take more than two steps;
- next is updated the segment that forward needs first, of the member whose gradients came first. Finishing one
  member's updates before the next one's sets members apart: one computes while another is updated.

Knows segments, layouts and rates; not which layout is right (`techniques/spill`), nor where figures come from.
"""

import dataclasses
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence

# Copies read and write the host's memory too: beside them, an update has about a tenth less of it (measured with 16
# cores and 55 GB/s each way). They run through nearly all of a step, so all updates are taken to be slowed.
CONTENDED = 0.9
# Gradients of one segment are written while those of the one before travel.
GRADIENT_ROOM = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a model that moves as one; a model's segments come in the order of its forward pass.

    `parameters` are the trainable elements, `travel_bytes` what is copied up, `gradient_bytes` what comes back, and
    `state_bytes` what an update reads and writes besides (fp32 weights where those that travel are not, and the
    optimizer's slots). `backward_seconds` includes recomputation where it is done. A `fixed` one is always kept."""

    name: str
    parameters: int
    travel_bytes: int
    gradient_bytes: int
    state_bytes: int
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    fixed: bool = False

    @property
    def host_bytes(self) -> int:
        """What it takes on the host where it streams."""
        return self.travel_bytes + self.gradient_bytes + self.state_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each segment lives and what that takes: `kept` ones are on the device with their state, the state of those
    `on_disk` is on disk, all else is on the host. `depth` streamed segments have room on the device at once."""

    kept: frozenset[str]
    on_disk: frozenset[str]
    device_bytes: int
    host_bytes: int
    pinned_bytes: int
    disk_bytes: int
    depth: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamingRates:
    """How fast bytes move and updates go. The defaults stand for what nobody measured, and are low on purpose: PCIe 3
    with 16 lanes, a host with two channels of memory, a device with 320 GB/s, a SATA disk.

    `update_parameters_per_second` is what the host's cores do alone; beside copies it is `contended` times that."""

    up_bytes_per_second: float = 10e9
    down_bytes_per_second: float = 10e9
    update_parameters_per_second: float = 1e9
    device_update_parameters_per_second: float = 10e9
    disk_bytes_per_second: float = 0.4e9
    contended: float = CONTENDED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """One member of a gang: its segments, where they live, and how many batches a step takes."""

    segments: tuple[Segment, ...]
    layout: Layout
    accumulate: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The seconds in which every member of a gang takes one step, and for how long of them each resource is busy.

    `roofline_seconds` is the busiest resource alone, updates without copies beside them: no order of the same work is
    faster."""

    seconds: float
    roofline_seconds: float
    compute_seconds: float
    up_seconds: float
    down_seconds: float
    update_seconds: float


# Adding a gradient to those of earlier batches moves about a third of the bytes of an AdamW update.
_ADDING = 1 / 3
# One member repeats itself from the second step on, which waits for the updates of the first. Members that differ need
# a few steps to find their rhythm, which often has two beats: counted are four steps of nine, which give what forty do
# within 2% nine times of ten.
_STEPS_ALONE, _STEPS_TOGETHER = 4, 9
# Simulated are a few steps of a long training, in which the member that computes longest has the most left.
_LONG_STEPS = 1000


def step_seconds(gang: Sequence[Spilled], *, rates: StreamingRates, clip: bool = False) -> Pace:
    """The steady pace of a gang that shares a device, its links and its host, from simulating a few steps of it.

    With `clip`, no update of a member begins before its backward is over and all its gradients have landed.

    >>> one = Segment(name="a", parameters=10**9, travel_bytes=2 * 10**9, gradient_bytes=2 * 10**9, state_bytes=0,
    ...               forward_seconds=0.1, backward_seconds=0.2)
    >>> segments = tuple(dataclasses.replace(one, name=name) for name in "abcd")
    >>> nothing_kept = Layout(kept=frozenset(), on_disk=frozenset(), device_bytes=0, host_bytes=0, pinned_bytes=0,
    ...                       disk_bytes=0, depth=2)
    >>> gang = [Spilled(segments=segments, layout=nothing_kept)]
    >>> rates = StreamingRates(up_bytes_per_second=40e9, down_bytes_per_second=40e9, update_parameters_per_second=4e9)
    >>> pace, clipped = (step_seconds(gang, rates=rates, clip=clip) for clip in (False, True))
    >>> [round(seconds, 2) for seconds in (pace.roofline_seconds, pace.seconds, clipped.seconds)]
    [1.2, 1.81, 2.11]
    """
    runs = [_Run(member, rates, clip) for member in gang]
    compute, up, down, update = (sum(busy) for busy in zip(*(run.busy() for run in runs), strict=True))
    alone = dataclasses.replace(rates, contended=1.0)
    roofline = max(compute, up, down, sum(_Run(member, alone, clip).busy()[3] for member in gang))
    steps = _STEPS_ALONE if len(runs) == 1 else _STEPS_TOGETHER
    # A few steps may not be quite steady, but no pace beats the roofline, and something is always busy.
    period = min(_Simulation(runs, clip=clip, steps=steps).period_seconds(), compute + up + down + update)
    return Pace(
        seconds=max(period, roofline),
        roofline_seconds=roofline,
        compute_seconds=compute,
        up_seconds=up,
        down_seconds=down,
        update_seconds=update,
    )


class _Run:
    """One member while it is simulated: what a step of it is made of, and how far it has come."""

    def __init__(self, member: Spilled, rates: StreamingRates, clip: bool) -> None:
        self._member, self._rates, self._clip = member, rates, clip
        self.streamed = [n for n, each in enumerate(member.segments) if each.name not in member.layout.kept]
        self.down = [each.gradient_bytes / rates.down_bytes_per_second for each in member.segments]
        self.update = [self._update_seconds(each) for each in member.segments]
        #: Copies up of one step, in order: the segment and its seconds.
        self.copies: list[tuple[int, float]] = []
        #: Computations of one step, in order: seconds, how many of the step's copies must have come, the slots free
        #: afterwards, the segment whose gradients go down (or -1), and whether those are its last of the step.
        self.visits: list[tuple[float, int, int, int, bool]] = []
        for batch in range(member.accumulate):
            self._add_batch(is_last=batch == member.accumulate - 1)
        self.remaining = 0.0  # seconds of computing until the end
        self.step = self.position = self.copied = self.arrived = self.held = 0
        self.slots = member.layout.depth
        self.updates = [0] * len(member.segments)
        self.turn = -1  # of its gradients among those of all members
        self.landed: list[int] = []
        self.settled = 0  # steps whose gradients have all landed
        self.ended: list[float] = []

    def busy(self) -> tuple[float, float, float, float]:
        """The seconds of one step on the device, up, down, and on the host."""
        batches = self._member.accumulate
        return (
            sum(visit[0] for visit in self.visits),
            sum(seconds for _, seconds in self.copies),
            sum(self.down[number] for number in self.streamed) * batches,
            sum(self.update[number] for number in self.streamed) * (1 + (batches - 1) * _ADDING),
        )

    def _add_batch(self, *, is_last: bool) -> None:
        segments, streamed, depth = self._member.segments, set(self.streamed), self._member.layout.depth
        stay = set(self.streamed[-depth:] if depth else ())  # these are still there when backward begins
        pass_by = streamed - stay
        for number, each in enumerate(segments):
            if number in streamed:
                self._copy(number)
            self.visits.append((each.forward_seconds, len(self.copies), number in pass_by, -1, False))
        device_seconds = self._device_seconds(is_last)
        for number in reversed(range(len(segments))):
            if number in pass_by:
                self._copy(number)
            seconds, gradient = segments[number].backward_seconds, number if number in streamed else -1
            arrivals, frees = len(self.copies), int(number in streamed)
            self.visits.append((seconds + device_seconds[number], arrivals, frees, gradient, is_last))

    def _copy(self, number: int) -> None:
        self.copies.append((number, self._member.segments[number].travel_bytes / self._rates.up_bytes_per_second))

    def _device_seconds(self, is_last: bool) -> list[float]:
        """What updates of kept segments add to each segment's backward; with clipping, all to the last."""
        rate, streamed = self._rates.device_update_parameters_per_second, set(self.streamed)
        seconds = [0.0 if n in streamed else each.parameters / rate for n, each in enumerate(self._member.segments)]
        if not is_last:
            return [0.0] * len(seconds)
        return [sum(seconds), *(0.0 for _ in seconds[1:])] if self._clip else seconds

    def _update_seconds(self, segment: Segment) -> float:
        rates = self._rates
        seconds = segment.parameters / (rates.update_parameters_per_second * rates.contended)
        if segment.name not in self._member.layout.on_disk:
            return seconds
        return max(seconds, 2 * segment.state_bytes / rates.disk_bytes_per_second)  # read and written


class _Simulation:
    """A gang's steps, event by event. Every choice has one answer, so the same gang always takes the same time."""

    def __init__(self, runs: Sequence[_Run], *, clip: bool, steps: int) -> None:
        self._runs, self._clip, self._steps = runs, clip, steps
        self._now, self._numbers = 0.0, itertools.count()
        self._ends: list[tuple[float, int, Callable[[_Run, int], None], _Run, int]] = []
        self._computing = self._going_up = self._going_down = self._updating = False
        self._to_send: deque[tuple[_Run, int]] = deque()
        # By whose gradients came first, then by the order of forward. What is only added is no update yet.
        self._to_update: list[tuple[int, int, int, bool, _Run]] = []

    def period_seconds(self) -> float:
        """The seconds from step to step, once the first steps are over."""
        for run in self._runs:
            run.remaining = _LONG_STEPS * run.busy()[0]
        self._start()
        while self._ends:
            self._now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= self._now:
                _, _, end, run, what = heapq.heappop(self._ends)
                end(run, what)
            self._start()
        ended: list[float] = [max(moments) for moments in zip(*(run.ended for run in self._runs), strict=True)]
        assert len(ended) == self._steps, "a simulated gang must not come to a halt"
        # Of several members some end a step early, and the last step of the others has the device for itself.
        first, last = (1, -1) if len(self._runs) == 1 else (self._steps // 2 - 1, -2)
        return (ended[last] - ended[first]) / (self._steps + last - first)

    def _start(self) -> None:
        """Whatever is free takes up what waits for it."""
        if not self._computing and (able := [run for run in self._runs if self._can_compute(run)]):
            self._compute(max(able, key=lambda run: run.remaining))  # the first of equals
        if not self._going_up and (able := [run for run in self._runs if self._can_copy(run)]):
            self._copy(min(able, key=lambda run: (_ahead(run), -run.remaining)))
        if not self._going_down and self._to_send:
            run, position = self._to_send.popleft()
            self._going_down = True
            self._begin(run.down[run.visits[position][3]], self._land, run, position)
        if not self._updating and self._to_update:
            _, number, _, adds, run = heapq.heappop(self._to_update)
            self._updating = True
            self._begin(run.update[number] * (_ADDING if adds else 1), self._add if adds else self._update, run, number)

    def _begin(self, seconds: float, end: Callable[[_Run, int], None], run: _Run, what: int) -> None:
        heapq.heappush(self._ends, (self._now + seconds, next(self._numbers), end, run, what))

    def _can_compute(self, run: _Run) -> bool:
        if run.step == self._steps or (len(self._runs) > 1 and run.step > 1 + min(each.step for each in self._runs)):
            return False
        _, arrivals, _, gradient, _ = run.visits[run.position]
        has_room = gradient < 0 or run.held < GRADIENT_ROOM
        return has_room and run.arrived >= run.step * len(run.copies) + arrivals

    def _compute(self, run: _Run) -> None:
        seconds, _, _, gradient, _ = run.visits[run.position]
        self._computing = True
        run.held += gradient >= 0
        self._begin(seconds, self._computed, run, run.position)

    def _computed(self, run: _Run, position: int) -> None:
        seconds, _, frees, gradient, _ = run.visits[position]
        self._computing = False
        run.remaining -= seconds
        run.slots += frees
        if gradient >= 0:
            self._to_send.append((run, position))
        run.position += 1
        if run.position == len(run.visits):
            run.step, run.position = run.step + 1, 0
            run.ended.append(self._now)
            self._settle(run)

    def _can_copy(self, run: _Run) -> bool:
        if not run.slots or not run.copies:
            return False
        step, number = divmod(run.copied, len(run.copies))
        return step < self._steps and run.updates[run.copies[number][0]] >= step

    def _copy(self, run: _Run) -> None:
        number, seconds = run.copies[run.copied % len(run.copies)]
        self._going_up = True
        run.copied, run.slots = run.copied + 1, run.slots - 1
        self._begin(seconds, self._arrive, run, number)

    def _arrive(self, run: _Run, _: int) -> None:
        self._going_up = False
        run.arrived += 1

    def _land(self, run: _Run, position: int) -> None:
        _, _, _, number, is_last = run.visits[position]
        self._going_down = False
        run.held -= 1
        run.turn = next(self._numbers) if run.turn < 0 else run.turn
        if is_last:
            run.landed.append(number)
        if not (is_last and self._clip):
            self._queue_update(run, number, adds=not is_last)
        self._settle(run)

    def _settle(self, run: _Run) -> None:
        """Once a member's backward is over and all its gradients have landed, their norm is known."""
        if len(run.landed) < len(run.streamed) or run.step == run.settled:
            return
        for number in run.landed if self._clip else ():
            self._queue_update(run, number, adds=False)
        run.landed, run.turn, run.settled = [], -1, run.settled + 1

    def _queue_update(self, run: _Run, number: int, *, adds: bool) -> None:
        heapq.heappush(self._to_update, (run.turn, number, next(self._numbers), adds, run))

    def _add(self, _: _Run, __: int) -> None:
        self._updating = False

    def _update(self, run: _Run, number: int) -> None:
        self._updating = False
        run.updates[number] += 1


def _ahead(run: _Run) -> int:
    """How many copies a member has that it has not computed with yet."""
    used = run.visits[run.position - 1][1] if run.position else 0
    return run.arrived - run.step * len(run.copies) - used
