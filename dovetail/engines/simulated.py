"""The engine `simulated`: a virtual clock instead of processes. The loop that drives it is the one that drives
yours; what it measures and how long things take come from two functions."""

import dataclasses
import heapq
import itertools
from collections.abc import Callable

from dovetail.engines.base import Engine, MemberOrder, Order
from dovetail.vocabulary import Event, Fingerprint, Profile, Rejection, Task, to_json


@dataclasses.dataclass(kw_only=True)
class World:
    """What is true in a simulation: each task's family, what measuring it resident on so many devices of a kind shows,
    or with another technique (named first; None: no other is possible), and by what factor a placement really takes
    longer than predicted (1: predictions hold)."""

    fingerprint: Callable[[Task], Fingerprint]
    profile: Callable[[str, str, int], Profile | Rejection]
    otherwise: Callable[[str, str, str, int], Profile | Rejection] | None = None
    slowness: Callable[[Order], float] = lambda order: 1.0
    trial_seconds: float = 1.0


class SimulatedEngine(Engine):
    """Runs orders in virtual time.

    >>> world = World(fingerprint=lambda task: Fingerprint(family="f"), profile=lambda family, kind, count: None)
    >>> SimulatedEngine(world, kind_of=lambda device: "cpu").now()
    0.0
    """

    def __init__(self, world: World, *, kind_of: Callable[[str], str]) -> None:
        self._world, self._kind_of = world, kind_of
        self._now = 0.0
        self._number = itertools.count()
        self._due: list[tuple[float, int, Order, tuple[Event, ...]]] = []
        self._begun: dict[str, tuple[float, float, dict[str, int]]] = {}
        self._steps: dict[str, int] = {}

    def start(self, order: Order) -> None:
        """Put the order's end on the calendar."""
        seconds = self._seconds(order)
        from_steps = {member.task.identity: self._steps.get(member.task.identity, 0) for member in order.members}
        self._begun[order.name] = (self._now, seconds, from_steps)
        at = self._now + seconds
        events = tuple(event for member in order.members for event in self._outcome(order, member, at))
        heapq.heappush(self._due, (at, next(self._number), order, events))

    def stop(self, name: str, *, reason: str, save: bool = True) -> None:
        """End the order now, at the step it would have reached; without saving, at the step it began."""
        for number, (_, _, order, _) in enumerate(self._due):
            if order.name != name:
                continue
            del self._due[number]
            heapq.heapify(self._due)
            start, seconds, steps = self._begun[name]
            share = (self._now - start) / seconds if save and seconds > 0 else 0.0
            events = tuple(e for m in order.members for e in self._interrupted(m, steps, share, reason, save))
            heapq.heappush(self._due, (self._now, next(self._number), order, events))
            return

    def wait(self) -> list[Event]:
        """Jump to the next instant at which something ends, and give all that ends then."""
        events: list[Event] = []
        if not self._due:
            return events
        self._now = self._due[0][0]
        while self._due and self._due[0][0] <= self._now:
            _, _, order, outcome = heapq.heappop(self._due)
            for event in outcome:
                if "step" in event.data:
                    self._steps[event.task] = event.data["step"]
            self._begun.pop(order.name, None)
            events += outcome
            events.append(Event(kind="released", at_seconds=self._now, data={"placement": order.name}))
        return events

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def close(self) -> None:
        """Nothing to end."""
        self._due.clear()

    def _seconds(self, order: Order) -> float:
        if order.purpose == "train":
            return order.predicted_seconds * self._world.slowness(order)
        return self._world.trial_seconds if order.purpose == "measure" else 0.0

    def _outcome(self, order: Order, member: MemberOrder, at: float) -> list[Event]:
        if order.purpose == "fingerprint":
            return [self._event("fingerprinted", member, at, to_json(self._world.fingerprint(member.task)))]
        if order.purpose == "measure":
            found = self._shown(order, self._kind_of(order.devices[0]), len(order.devices))
            kind = "measured" if isinstance(found, Profile) else "rejected"
            return [self._event(kind, member, at, to_json(found))]
        ended = {"step": member.until_step, "reason": "", "metrics": {}}
        kind = "finished" if member.final else "waiting"
        return [self._saved(member, at, member.until_step), self._event(kind, member, at, ended)]

    def _shown(self, order: Order, kind: str, count: int) -> Profile | Rejection:
        if order.technique == "resident":
            return self._world.profile(order.family, kind, count)
        if self._world.otherwise is not None:
            return self._world.otherwise(order.technique, order.family, kind, count)
        reason = f"in this world nothing can be trained by {order.technique}"
        return Rejection(families=(order.family,), technique=order.technique, kind=kind, count=count, reason=reason)

    def _interrupted(
        self, member: MemberOrder, steps: dict[str, int], share: float, reason: str, save: bool
    ) -> list[Event]:
        begun = steps[member.task.identity]
        step = begun + int((member.until_step - begun) * share)
        if not save:
            return [self._event("lost", member, self._now, {"reason": reason, "step": step})]
        stopped = self._event("stopped", member, self._now, {"step": step, "reason": reason})
        return [self._saved(member, self._now, step), stopped]

    def _saved(self, member: MemberOrder, at: float, step: int) -> Event:
        return self._event("saved", member, at, {"step": step, "path": "", "bytes": 0})

    @staticmethod
    def _event(kind: str, member: MemberOrder, at: float, data: object) -> Event:
        return Event(kind=kind, task=member.task.identity, attempt=member.attempt, at_seconds=at, data=data)  # type: ignore[arg-type]
