"""The order of actions where stages are replicated: found by playing the pipeline through, then kept as data.

Between stages with unlike replicas microbatches come in bursts, and a strict turn of one forward and one backward, each
awaited, leaves ranks idle: with 2-3-1 replicas 40% of the time, and 60% if replicas also update together after each
round (PipeDream's 1F1B with round robin, simulated; here 1% and 2%). So ranks take what is there: a backward if one can
be done, else a forward while not too many are in flight. And a rank that waits for other replicas' gradients goes on
with forwards: an update is made just before the next backward.

Stages are played as if balanced: a stage of r replicas takes r times as long for a microbatch as one of one.
"""

import dataclasses
import heapq
from collections.abc import Callable, Sequence

from dovetail.planning.pipeline.timetables.actions import Action, held_by

#: The version of the weights that a microbatch uses at a stage, whose rank has made so many updates.
Versions = Callable[[int, int, int], int]
_FORWARD, _BACKWARD = 1, 2


@dataclasses.dataclass(slots=True)
class _Rank:
    stage: int
    replica: int
    next_forward: int
    next_backward: int
    backwards: int = 0  # done
    updates: int = 0
    is_busy: bool = False
    actions: list[Action] = dataclasses.field(default_factory=list)


def play(
    replicas: Sequence[int], microbatches: int, warm: Sequence[int], *, every: int | None, versions: Versions
) -> tuple[tuple[Action, ...], ...]:
    """Every rank's actions: at most `warm` + 1 microbatches in flight on a rank of each stage, an update after each
    `every` microbatches, or each round if that is longer, or after the last.

    >>> ranks = play([2, 1], 4, [1, 0], every=None, versions=lambda stage, microbatch, made: 0)
    >>> [f"{action.operation[0]}{action.microbatch}" for action in ranks[1]]
    ['f1', 'f3', 'b1', 'b3', 'u0']
    """
    played = _Play(replicas, microbatches, warm, every, versions)
    played.run()
    return tuple(tuple(rank.actions) for rank in played.ranks)


class _Play:
    def __init__(
        self, replicas: Sequence[int], microbatches: int, warm: Sequence[int], every: int | None, versions: Versions
    ) -> None:
        self._replicas, self._microbatches, self._warm, self._versions = replicas, microbatches, warm, versions
        # How many backwards of a rank make up one update.
        self._period = [max(every // count, 1) if every else microbatches for count in replicas]
        self._holders = held_by(replicas)
        self.ranks = [_Rank(s, r, r, r) for s, held in enumerate(self._holders) for r in range(len(held))]
        self._done: set[tuple[str, int, int]] = set()
        self._used: dict[tuple[int, int], int] = {}
        self._ends: list[tuple[int, int, Action]] = []
        self._now = 0

    def run(self) -> None:
        self._start()
        while self._ends:
            self._now = self._ends[0][0]
            while self._ends and self._ends[0][0] == self._now:
                _, number, action = heapq.heappop(self._ends)
                self._end(self.ranks[number], action)
            self._start()
        for rank in self.ranks:
            # Whoever had no microbatch in the last round takes part in its update all the same.
            while rank.updates < self._all_updates(rank.stage):
                self._update(rank)

    def _start(self) -> None:
        """Everybody who is free begins what can be begun. Updates take no time, and may free others."""
        changed = True
        while changed:
            changed = False
            for number, rank in enumerate(self.ranks):
                while not rank.is_busy and (action := self._choice(rank)):
                    changed = True
                    if action.operation == "update":
                        self._update(rank)
                    else:
                        self._begin(rank, number, action)

    def _choice(self, rank: _Rank) -> Action | None:
        stage, count = rank.stage, self._replicas[rank.stage]
        microbatch = rank.next_backward
        is_due = rank.backwards >= (rank.updates + 1) * self._period[stage]
        if self._can_go_back(stage, microbatch):
            if not is_due:
                return self._action("backward", stage, microbatch, self._used[stage, microbatch])
            if self._can_update(stage, rank.updates):
                return self._action("update", stage, rank.updates)
        microbatch = rank.next_forward
        has_room = (microbatch - rank.next_backward) // count <= self._warm[stage]
        arrived = stage == 0 or ("forward", stage - 1, microbatch) in self._done
        if microbatch < self._microbatches and has_room and arrived:
            version = self._versions(stage, microbatch, rank.updates)
            if version <= rank.updates:
                return self._action("forward", stage, microbatch, version)
            if is_due and self._can_update(stage, rank.updates):
                return self._action("update", stage, rank.updates)
        return None

    def _can_go_back(self, stage: int, microbatch: int) -> bool:
        is_last = stage == len(self._replicas) - 1
        return ("forward", stage, microbatch) in self._done and (
            is_last or ("backward", stage + 1, microbatch) in self._done
        )

    def _can_update(self, stage: int, number: int) -> bool:
        """Whether every replica has done its part of an update."""
        needed = (number + 1) * self._period[stage]
        return all(
            rank.backwards >= min(needed, len(range(rank.replica, self._microbatches, self._replicas[stage])))
            for rank in (self.ranks[n] for n in self._holders[stage])
        )

    def _all_updates(self, stage: int) -> int:
        rounds = -(-self._microbatches // self._replicas[stage])
        return -(-rounds // self._period[stage])

    def _action(self, operation: str, stage: int, microbatch: int, version: int = 0) -> Action:
        return Action(operation=operation, stage=stage, microbatch=microbatch, version=version)

    def _update(self, rank: _Rank) -> None:
        rank.actions.append(self._action("update", rank.stage, rank.updates))
        rank.updates += 1

    def _begin(self, rank: _Rank, number: int, action: Action) -> None:
        rank.actions.append(action)
        rank.is_busy = True
        self._used[rank.stage, action.microbatch] = action.version
        if action.operation == "forward":
            rank.next_forward += self._replicas[rank.stage]
        units = _FORWARD if action.operation == "forward" else _BACKWARD
        heapq.heappush(self._ends, (self._now + units * self._replicas[rank.stage], number, action))

    def _end(self, rank: _Rank, action: Action) -> None:
        rank.is_busy = False
        self._done.add((action.operation, rank.stage, action.microbatch))
        if action.operation == "backward":
            rank.next_backward += self._replicas[rank.stage]
            rank.backwards += 1
