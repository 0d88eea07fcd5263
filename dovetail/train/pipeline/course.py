"""A timetable step by step: which of its actions a rank does in which step of a session.

With a flush every step is the same. Without, the timetable has no end: its beginning, then one stretch again and again.
What a rank does in a step is then all that can be done before anybody knows whether there will be a next step: the
step's own microbatches through to their updates, and of the following ones what needs no further update. So ranks stay
busy between steps, and after each step all weights are those of that step. Nothing waits for what is not in the same
step or an earlier one, so what `check` proved of the whole holds of every step.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from dovetail.planning.pipeline.timetables import Action, Timetable, versions_kept
from dovetail.planning.pipeline.timetables.actions import Done, done, needs
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from dovetail.vocabulary import TechniqueRefused

_REPEATS = 3  # how often a stretch must be seen to be taken for one
_LONGEST = 6  # stretches of so many rounds are tried


class Course:
    """One rank's way through a timetable. Microbatches are numbered within a step if there is a flush, and else through
    the whole training.

    >>> course = Course(PipelineLayout.read({"timetable": "2bw"}, size=2, accumulate=2), rank=0)
    >>> [f"{action.operation[0]}{action.microbatch}" for action in course.step(0)]
    ['f0', 'f1', 'f2', 'b0', 'f3', 'b1', 'u0']
    >>> [f"{action.operation[0]}{action.microbatch}" for action in course.step(1)]
    ['f4', 'b2', 'f5', 'b3', 'u1']
    """

    def __init__(self, layout: PipelineLayout, *, rank: int) -> None:
        self._layout, self._rank = layout, rank
        if not layout.is_asynchronous:
            self.table = layout.step()
            self._own = [action for action in self.table.ranks[rank] if action.operation != "update"]
            self.versions = 1
            self._open = _open(self.table)
            return
        self._endless = Endless(layout)
        self.table = self._endless.table
        self.versions = versions_kept(self.table)[rank]
        self._open = _open(self.table)
        self.restart(0)

    @property
    def microbatches_ahead(self) -> int:
        """How many microbatches beyond a step's own its actions may take."""
        if not self._layout.is_asynchronous:
            return 0
        # With 2BW the step after the next needs weights that are not there before this one's update.
        most = self._layout.microbatches if self._layout.timetable == "2bw" else self._endless.ahead
        return min(most, self._endless.ahead)

    def round(self, stage: int) -> int:
        """After how many microbatches a stage is updated."""
        return self._endless.rounds[stage] if self._layout.is_asynchronous else self._layout.microbatches

    def under_way(self, stage: int) -> int:
        """How far at most a stage's forwards are ahead of its backwards, in microbatches."""
        return self._open[stage]

    def restart(self, step: int) -> None:
        """Go on with nothing under way before `step`."""
        if self._layout.is_asynchronous:
            first = step * self._layout.microbatches
            self._lists = [self._endless.actions(rank, first) for rank in range(len(self.table.ranks))]
            self._next = [next(actions) for actions in self._lists]
            self._first, self._done = first, set[Done]()
            self._ended = [-1] * len(self._lists)  # the end of the step that each rank has updated for last

    def step(self, number: int) -> list[Action]:
        """This rank's actions in a step. Steps must be asked for one after another."""
        if not self._layout.is_asynchronous:
            return self._own
        end = (number + 1) * self._layout.microbatches
        found = self._through(end)
        # What is long over is needed no more.
        self._done = {each for each in self._done if each[2] >= end - self._layout.microbatches}
        self._first = max(self._first, end - self._layout.microbatches)
        return found

    def _through(self, end: int) -> list[Action]:
        """All that can be done without updates for any microbatch from `end` on, while the first stage, from which
        everything comes, goes no further than its own update."""
        own: list[Action] = []
        changed = True
        while changed:
            changed = False
            for rank, actions in enumerate(self._lists):
                while self._can_do(rank, self._next[rank], end):
                    action = self._next[rank]
                    changed = True
                    if _is_update(action):
                        self._ended[rank] = (action.microbatch + 1) * self._endless.rounds[action.stage]
                    else:
                        self._done.add(done(action))
                    if rank == self._rank:
                        own.append(action)
                    self._next[rank] = next(actions)
        return own

    def _can_do(self, rank: int, action: Action, end: int) -> bool:
        if _is_update(action):
            return (action.microbatch + 1) * self._endless.rounds[action.stage] <= end and self._is_due(action)
        if action.stage == 0 and self._ended[rank] == end:
            return False
        return all(d in self._done or d[2] < self._first for d, _ in needs(self.table, action))

    def _is_due(self, update: Action) -> bool:
        """Whether all replicas have handed in their gradients."""
        size = self._endless.rounds[update.stage]
        microbatches = range(update.microbatch * size, (update.microbatch + 1) * size)
        return all(("backward", update.stage, each) in self._done or each < self._first for each in microbatches)


class Endless:
    """A timetable that never flushes, without its end.

    >>> endless = Endless(PipelineLayout.read({"timetable": "stashing"}, size=2, accumulate=1))
    >>> [f"{a.operation[0]}{a.microbatch}v{a.version}" for a in itertools.islice(endless.actions(0, 100), 4)]
    ['f100v99', 'f101v100', 'b100v99', 'u100v0']
    """

    def __init__(self, layout: PipelineLayout) -> None:
        replicas, each = layout.replicas, layout.microbatches
        self.rounds = [each if layout.timetable == "2bw" else count for count in replicas]
        self._unit = math.lcm(each, *replicas)
        whole = self._unit // each * max(2, math.ceil(4 * sum(replicas) / self._unit))  # steps that fill the pipeline
        self.table = layout.run((_LONGEST + 2) * _REPEATS * whole)
        self._stretch, self._starts = self._find_period()
        self.ahead = _open(self.table)[0]

    def actions(self, rank: int, first: int) -> Iterator[Action]:
        """A rank's actions for microbatches from `first` on, a multiple of every round."""
        listed, start = self.table.ranks[rank], self._starts[rank]
        length = self._count(rank)
        skipped = max(0, first // self._stretch - 2 - self.ahead // self._stretch - start // length)
        for place in itertools.count(start + skipped * length if skipped else 0):
            turns = max(0, (place - start) // length)
            action = listed[place] if turns == 0 else self._shift(listed[start + (place - start) % length], turns)
            size = self.rounds[action.stage] if _is_update(action) else 1
            if action.microbatch * size >= first:
                yield action

    def _count(self, rank: int) -> int:
        """How many actions a rank has in one stretch."""
        stage = next(s for s, holders in enumerate(self.table.holders) if rank in holders)
        return 2 * self._stretch // len(self.table.holders[stage]) + self._stretch // self.rounds[stage]

    def _shift(self, action: Action, turns: int) -> Action:
        by = turns * self._stretch
        rounds = by // self.rounds[action.stage]
        if _is_update(action):
            return dataclasses.replace(action, microbatch=action.microbatch + rounds)
        return dataclasses.replace(action, microbatch=action.microbatch + by, version=action.version + rounds)

    def _find_period(self) -> tuple[int, list[int]]:
        """The shortest stretch that repeats itself on all ranks, in microbatches, and where it begins on each."""
        for count in range(1, _LONGEST + 1):
            self._stretch = count * self._unit
            starts = [self._begin(rank) for rank in range(len(self.table.ranks))]
            if None not in starts:
                return self._stretch, [start for start in starts if start is not None]
        raise TechniqueRefused(
            f"a timetable without a flush must repeat itself; {self.table.name!r} with replicas "
            f"{[len(holders) for holders in self.table.holders]} does not. Use other replicas, or '1f1b'."
        )

    def _begin(self, rank: int) -> int | None:
        listed, length = self.table.ranks[rank], self._count(rank)
        # Towards the end a rank runs out of forwards, and its order is another.
        end = max(place for place, action in enumerate(listed) if action.operation == "forward") - length
        place = end - 1
        while place >= length and listed[place] == self._shift(listed[place - length], 1):
            place -= 1
        start = max(0, place - length + 1)
        return start if end - start >= _REPEATS * length else None


def _is_update(action: Action) -> bool:
    return action.operation == "update"


def _open(table: Timetable) -> list[int]:
    """The most microbatches between forward and backward at each stage, counting those of other replicas between."""
    found = []
    for stage, ranks in enumerate(table.holders):
        lists = ([a for a in table.ranks[rank] if a.stage == stage] for rank in ranks)
        changes = ([_CHANGES[a.operation] for a in actions] for actions in lists)
        found.append(max(max(itertools.accumulate(each)) for each in changes) * len(ranks))
    return found


_CHANGES = {"forward": 1, "backward": -1, "inputs": -1, "weights": 0, "update": 0}
