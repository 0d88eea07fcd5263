"""When everything in a timetable happens, given how long each thing takes: starts, ends, idle time, what is held.

Ranks compute one action at a time in their order; messages travel beside that, one at a time from a rank to another.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from dovetail.planning.pipeline.timetables.actions import Action, Done, Timetable, done, needs
from dovetail.planning.pipeline.timetables.consistency import check, waiting
from dovetail.vocabulary import InvalidRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one microbatch at each stage, of a message from each stage to the next and back, and of an update.

    `weights_share` is the part of backward that gradients of weights take where it is split.

    >>> Durations.equal(2).backward
    (2.0, 2.0)
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    transfer: tuple[float, ...] = ()
    update: tuple[float, ...] = ()
    weights_share: float = 0.5

    @staticmethod
    def equal(stages: int, *, forward: float = 1.0, backward: float = 2.0) -> "Durations":
        """The same at all stages, messages and updates in no time."""
        return Durations(forward=(forward,) * stages, backward=(backward,) * stages)

    def of(self, action: Action) -> float:
        """How long an action takes."""
        if action.operation == "forward":
            return self.forward[action.stage]
        if action.operation == "update":
            return self.update[action.stage] if self.update else 0.0
        share = {"backward": 1.0, "inputs": 1 - self.weights_share, "weights": self.weights_share}[action.operation]
        return self.backward[action.stage] * share

    def message(self, stage: int, other: int) -> float:
        """How long a message between neighbouring stages takes."""
        return self.transfer[min(stage, other)] if self.transfer else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One action with its times."""

    action: Action
    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What every rank does when. `held` is the most microbatches that each rank had between forward and the end of
    their backward, chunks counted apart; it is empty where times were measured.

    >>> Simulated(name="1f1b", ranks=((),), held=(0,)).bubble_share
    0.0
    """

    name: str
    ranks: tuple[tuple[Timed, ...], ...]
    held: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """When the last action ends."""
        return max((timed.end for rank in self.ranks for timed in rank), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each rank computes, updates aside."""
        return tuple(sum(t.end - t.start for t in rank if t.action.operation != "update") for rank in self.ranks)

    @property
    def bubble_share(self) -> float:
        """The share of all ranks' time in which nothing is computed."""
        whole = self.seconds * len(self.ranks)
        return 1 - sum(self.busy) / whole if whole else 0.0


def simulate(timetable: Timetable, durations: Durations) -> Simulated:
    """Every action as early as it can begin. The timetable is checked first.

    >>> from dovetail.planning.pipeline.timetables.makers import one_forward_one_backward
    >>> simulated = simulate(one_forward_one_backward([1, 1], microbatches=4), Durations.equal(2))
    >>> simulated.seconds, round(simulated.bubble_share, 3), simulated.held
    (15.0, 0.2, (2, 1))
    """
    check(timetable)
    if not len(durations.forward) == len(durations.backward) == timetable.depth:
        raise InvalidRecord(f"durations must be given for {timetable.depth} stages, got {len(durations.forward)}.")
    waits = waiting(timetable)
    begun: dict[tuple[int, int], Timed] = {}
    arrivals: dict[tuple[Done, int], float] = {}
    channels: dict[tuple[int, int], float] = defaultdict(float)
    receivers = _receivers(timetable)
    places = [0] * len(timetable.ranks)
    waiting_ranks = True
    while waiting_ranks:
        waiting_ranks = False
        for rank, actions in enumerate(timetable.ranks):
            while places[rank] < len(actions) and all(spot in begun for spot in waits[rank, places[rank]]):
                place = places[rank]
                timed = _timed(timetable, durations, actions[place], rank, place, waits, begun, arrivals)
                begun[rank, place] = timed
                places[rank] += 1
                waiting_ranks = True
                for other, stage in receivers.get(done(timed.action), ()):
                    # A message goes when what it carries is there and the channel is free.
                    leaves = max(timed.end, channels[rank, other])
                    arrives = leaves + durations.message(timed.action.stage, stage)
                    channels[rank, other] = arrives
                    arrivals[done(timed.action), other] = arrives
    ranks = tuple(tuple(begun[rank, place] for place in range(len(each))) for rank, each in enumerate(timetable.ranks))
    return Simulated(name=timetable.name, ranks=ranks, held=most_held(timetable))


def _timed(
    timetable: Timetable,
    durations: Durations,
    action: Action,
    rank: int,
    place: int,
    waits: dict[tuple[int, int], list[tuple[int, int]]],
    begun: dict[tuple[int, int], Timed],
    arrivals: dict[tuple[Done, int], float],
) -> Timed:
    messages = {needed: arrivals[needed, rank] for needed, sent in needs(timetable, action) if sent}
    start = max(
        (
            messages.get(done(begun[spot].action), begun[spot].end) if spot[0] != rank else begun[spot].end
            for spot in waits[rank, place]
        ),
        default=0.0,
    )
    return Timed(action=action, start=start, end=start + durations.of(action))


def _receivers(timetable: Timetable) -> dict[Done, list[tuple[int, int]]]:
    """For each action whose result travels, to which rank and stage."""
    found: dict[Done, list[tuple[int, int]]] = defaultdict(list)
    for rank, _, action in timetable.actions():
        for needed, sent in needs(timetable, action):
            if sent:
                found[needed].append((rank, action.stage))
    return found


def most_held(timetable: Timetable) -> tuple[int, ...]:
    """The most microbatches that each rank has between forward and the end of their backward, chunks counted apart.

    >>> from dovetail.planning.pipeline.timetables.makers import one_forward_one_backward
    >>> most_held(one_forward_one_backward([1, 1, 1], microbatches=8))
    (3, 2, 1)
    """
    return tuple(_held(actions) for actions in timetable.ranks)


def held_at(timetable: Timetable) -> tuple[int, ...]:
    """The most microbatches that a rank of each stage has there between forward and the end of their backward.

    >>> from dovetail.planning.pipeline.timetables.makers import interleaved
    >>> held_at(interleaved([1, 1], microbatches=4))
    (4, 3, 2, 1)
    """
    return tuple(
        max(_held([action for action in timetable.ranks[rank] if action.stage == stage]) for rank in ranks)
        for stage, ranks in enumerate(timetable.holders)
    )


def _held(actions: Sequence[Action]) -> int:
    last = {
        (action.stage, action.microbatch): place
        for place, action in enumerate(actions)
        if action.operation in ("backward", "weights")
    }
    now = most = 0
    for place, action in enumerate(actions):
        if action.operation == "forward":
            now += 1
            most = max(most, now)
        elif action.operation != "update" and last.get((action.stage, action.microbatch)) == place:
            now -= 1
    return most
