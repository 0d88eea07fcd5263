"""The engine `simulated`: a virtual clock instead of processes, driven by the same control loop as real engines. What
measuring shows, how long things take and what happens by itself is said by a `World`.

Event driven: `wait` jumps to the next instant at which something ends, arrives, breaks, or at which it was asked to
wake.
"""

import dataclasses
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.vocabulary import Event, Fingerprint, Profile, Rejection, Task
from dovetail.vocabulary.events import (
    AttemptLost,
    AttemptStopped,
    CheckpointSaved,
    DevicesReleased,
    OptionRejected,
    RungReached,
    ShardEvaluated,
    StepsDone,
    TaskFingerprinted,
    TaskFinished,
    TrialMeasured,
)
from dovetail.vocabulary.node_events import DevicesJoined, DevicesLeft

# What is due within so many seconds is due now: instants are sums of floats.
_INSTANT = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outage:
    """Devices that break, with whatever runs on them, and when they are back.

    >>> Outage(devices=("n0:0",), at_seconds=60.0, back_seconds=600.0).devices
    ('n0:0',)
    """

    devices: tuple[str, ...]
    at_seconds: float
    back_seconds: float = math.inf


@dataclasses.dataclass(kw_only=True)
class World:
    """What is true in a simulation: each task's family, what measuring it resident on so many devices of a kind shows,
    or with another technique (named first; None: no other is possible), and by what factor a placement really takes
    longer than predicted (1: predictions hold).

    Where `paces` is given it says instead how many seconds a step of each member of an order really takes, and members
    of a gang end on their own. Orders take `load_seconds` before their first step and `save_seconds` to stop;
    `happenings` are events that come by themselves (tasks that arrive), `outages` devices that break: what was not
    saved by then (orders save every `save_every_seconds`) is lost. With `reports`, whoever runs says where it is
    whenever the loop wakes; without, predictions have to do.
    """

    fingerprint: Callable[[Task], Fingerprint]
    profile: Callable[[str, str, int], Profile | Rejection]
    otherwise: Callable[[str, str, str, int], Profile | Rejection] | None = None
    slowness: Callable[[Order], float] = lambda order: 1.0
    trial_seconds: float = 1.0
    paces: Callable[[Order], Sequence[float]] | None = None
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    happenings: Iterable[Event] = ()
    outages: Sequence[Outage] = ()
    reports: bool = False


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _SimulatedOrder:
    """An order under way: when its first step begins, and of each member where it began, its seconds a step, when it
    ends, and whether it has."""

    order: Order
    first: float
    begun: list[float]
    paces: list[float]
    ends: list[float]
    over: list[bool]
    is_leaving: bool = False
    farewell: tuple[Event, ...] = ()

    def step_at(self, member: int, now: float) -> float:
        """The step, and part of a step, at which a member is."""
        if self.over[member] or now >= self.ends[member]:
            return float(self.order.members[member].until_step)
        return self.begun[member] + max(0.0, now - self.first) / self.paces[member]

    def saved_at(self, member: int, now: float) -> float:
        """The step of the last save that was due by now."""
        every = self.order.save_every_seconds
        return self.step_at(member, self.first + math.floor(max(0.0, now - self.first) / every) * every)


class SimulatedEngine(Engine):
    """Runs orders in virtual time.

    >>> world = World(fingerprint=lambda task: Fingerprint(family="f"), profile=lambda family, kind, count: None)
    >>> SimulatedEngine(world, kind_of=lambda device: "cpu").now()
    0.0
    """

    def __init__(self, world: World, *, kind_of: Callable[[str], str]) -> None:
        self._world, self._kind_of = world, kind_of
        self._now, self._wake = 0.0, math.inf
        self._number = itertools.count()
        self._due: list[tuple[float, int, _SimulatedOrder, int]] = []
        self._runs: dict[str, _SimulatedOrder] = {}
        self._steps: dict[str, float] = {}
        self._happenings = deque(sorted(world.happenings, key=lambda event: event.at_seconds))
        self._outages = deque(sorted(_breaks(world.outages), key=lambda change: change[0]))
        self._broken: set[str] = set()

    def start(self, order: Order) -> None:
        """Put the ends of the order on the calendar."""
        run = self._run(order)
        self._runs[order.name] = run
        for member, at in enumerate(run.ends):
            heapq.heappush(self._due, (at, next(self._number), run, member))
        if not self._broken.isdisjoint(order.devices):
            self._break(run, "its devices are gone")

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """End the order at the step that it has reached; without saving, at the step that was last saved."""
        run = self._runs.get(name)
        if run is None or run.is_leaving:
            return
        if save:
            self._stop_run(run, self._farewell(run, reason), after=self._world.save_seconds)
        else:
            self._break(run, reason)

    def wait(self) -> list[Event]:
        """Jump to the next instant at which something happens, and give all that happens then."""
        instant = min(self._next_end(), self._next_happening(), self._wake)
        events: list[Event] = []
        if instant == math.inf:
            return events
        self._now = max(self._now, instant)
        if self._now >= self._wake - _INSTANT:
            self._wake = math.inf
            if self._world.reports:
                events += [event for run in self._runs.values() for event in self._progress(run)]
        until = self._now + _INSTANT
        while self._happenings and self._happenings[0].at_seconds <= until:
            events.append(self._happenings.popleft())
        while self._outages and self._outages[0][0] <= until:
            events.append(self._change(*self._outages.popleft()[1:]))
        while self._next_end() <= until:
            _, _, run, member = heapq.heappop(self._due)
            events += self._end_member(run, member)
        return events

    def wake(self, at_seconds: float) -> None:
        """Put this moment on the calendar, instead of the one before."""
        self._wake = at_seconds

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on the calendar: of itself nothing will happen any more."""
        return self._wake == math.inf and min(self._next_end(), self._next_happening()) == math.inf

    def close(self) -> None:
        """Clear the calendar; there is no process to end."""
        self._due.clear()

    # The calendar

    def _next_end(self) -> float:
        while self._due and (self._due[0][2].is_leaving != (self._due[0][3] < 0)):
            heapq.heappop(self._due)  # it was stopped before that
        return self._due[0][0] if self._due else math.inf

    def _next_happening(self) -> float:
        happening = self._happenings[0].at_seconds if self._happenings else math.inf
        return min(happening, self._outages[0][0] if self._outages else math.inf)

    def _run(self, order: Order) -> _SimulatedOrder:
        begun = [self._steps.get(member.task.identity, 0.0) for member in order.members]
        first = self._now
        if order.purpose != "train":
            seconds = self._world.trial_seconds if order.purpose == "measure" else 0.0
            paces = [0.0] * len(begun)
            ends = [first + seconds] * len(begun)
        elif self._world.paces is not None:
            first += self._world.load_seconds
            paces = list(self._world.paces(order))
            ends = [first + max(0.0, m.until_step - begun[n]) * paces[n] for n, m in enumerate(order.members)]
        else:
            first += self._world.load_seconds
            seconds = order.predicted_seconds * self._world.slowness(order)
            steps = [max(1.0, m.until_step - at) for m, at in zip(order.members, begun, strict=True)]
            paces = [seconds / each for each in steps]
            ends = [first + seconds] * len(begun)
        return _SimulatedOrder(order=order, first=first, begun=begun, paces=paces, ends=ends, over=[False] * len(begun))

    def _end_member(self, run: _SimulatedOrder, member: int) -> list[Event]:
        """The events of a member's end, or of the end of an order that was stopped."""
        order = run.order
        if member < 0:
            events = list(run.farewell)
        else:
            run.over[member] = True
            events = self._outcome(order, order.members[member])
            if order.purpose == "train":
                self._steps[order.members[member].task.identity] = float(order.members[member].until_step)
        if member < 0 or all(run.over):
            del self._runs[order.name]
            events.append(DevicesReleased(at_seconds=self._now, placement=order.name))
        return events

    # Ends before the end

    def _stop_run(self, run: _SimulatedOrder, farewell: tuple[Event, ...], *, after: float) -> None:
        run.is_leaving, run.farewell = True, farewell
        heapq.heappush(self._due, (self._now + after, next(self._number), run, -1))

    def _farewell(self, run: _SimulatedOrder, reason: str) -> tuple[Event, ...]:
        at = self._now + self._world.save_seconds
        events: list[Event] = []
        for number, member in enumerate(run.order.members):
            if not run.over[number]:
                position = self._steps[member.task.identity] = run.step_at(number, self._now)
                step = int(position + _INSTANT)
                events.append(self._save_event(member, at, step))
                events.append(
                    AttemptStopped(
                        task=member.task.identity, attempt=member.attempt, at_seconds=at, step=step, reason=reason
                    )
                )
        return tuple(events)

    def _break(self, run: _SimulatedOrder, reason: str) -> None:
        events: list[Event] = []
        for number, member in enumerate(run.order.members):
            if not run.over[number]:
                if run.order.purpose == "train":
                    step = math.floor(run.saved_at(number, self._now))
                    self._steps[member.task.identity] = max(float(step), math.floor(run.begun[number]))
                    if step > run.begun[number]:
                        events.append(self._save_event(member, self._now, step))
                step = int(self._steps.get(member.task.identity, 0.0))
                events.append(
                    AttemptLost(
                        task=member.task.identity,
                        attempt=member.attempt,
                        at_seconds=self._now,
                        step=step,
                        reason=reason,
                    )
                )
        self._stop_run(run, tuple(events), after=0.0)

    def _change(self, outage: Outage, breaks: bool) -> Event:
        """Devices break or come back. An order that was told to stop counts as saved."""
        if not breaks:
            self._broken.difference_update(outage.devices)
            return DevicesJoined(at_seconds=self._now, devices=outage.devices)
        self._broken.update(outage.devices)
        reason = f"{', '.join(outage.devices)} broke"
        for run in self._runs.values():
            if not run.is_leaving and not self._broken.isdisjoint(run.order.devices):
                self._break(run, reason)
        back = outage.back_seconds if outage.back_seconds < math.inf else None
        return DevicesLeft(at_seconds=self._now, devices=outage.devices, reason=reason, back_seconds=back)

    # What is said

    def _outcome(self, order: Order, member: MemberOrder) -> list[Event]:
        at, task, attempt, until = self._now, member.task.identity, member.attempt, member.until_step
        if order.purpose == "fingerprint":
            fingerprint = self._world.fingerprint(member.task)
            return [TaskFingerprinted(task=task, attempt=attempt, at_seconds=at, fingerprint=fingerprint)]
        if order.purpose == "measure":
            found = self._measure(order, self._kind_of(order.devices[0]), len(order.devices))
            if order.knobs:  # worlds speak of techniques; what was asked for is what is answered
                found = dataclasses.replace(found, knobs=order.knobs)
            if isinstance(found, Profile):
                return [TrialMeasured(task=task, attempt=attempt, at_seconds=at, profile=found)]
            return [OptionRejected(task=task, attempt=attempt, at_seconds=at, rejection=found)]
        events: list[Event] = [self._save_event(member, at, until)]
        if member.evaluates:
            events.append(ShardEvaluated(task=task, attempt=attempt, at_seconds=at, step=until, shard=member.evaluates))
        if member.visits and not member.final:
            why = "its shard is evaluated" if member.evaluates else "its shard is read"
            return [*events, AttemptStopped(task=task, attempt=attempt, at_seconds=at, step=until, reason=why)]
        ended = TaskFinished if member.final else RungReached
        return [*events, ended(task=task, attempt=attempt, at_seconds=at, step=until)]

    def _measure(self, order: Order, kind: str, count: int) -> Profile | Rejection:
        if order.technique == "resident":
            return self._world.profile(order.family, kind, count)
        if self._world.otherwise is not None:
            return self._world.otherwise(order.technique, order.family, kind, count)
        reason = f"in this world nothing can be trained by {order.technique}"
        return Rejection(families=(order.family,), technique=order.technique, kind=kind, count=count, reason=reason)

    def _progress(self, run: _SimulatedOrder) -> list[Event]:
        if run.order.purpose != "train" or run.is_leaving:
            return []
        return [
            StepsDone(
                task=member.task.identity,
                attempt=member.attempt,
                at_seconds=self._now,
                step=int(run.step_at(n, self._now) + _INSTANT),
                steps_per_second=1 / run.paces[n],
            )
            for n, member in enumerate(run.order.members)
            if not run.over[n] and run.paces[n] > 0
        ]

    @staticmethod
    def _save_event(member: MemberOrder, at: float, step: int) -> Event:
        return CheckpointSaved(task=member.task.identity, attempt=member.attempt, at_seconds=at, step=step)


def _breaks(outages: Sequence[Outage]) -> list[tuple[float, Outage, bool]]:
    found = [(outage.at_seconds, outage, True) for outage in outages]
    found += [(outage.back_seconds, outage, False) for outage in outages if outage.back_seconds < math.inf]
    return found
