"""A round: whose turn it is, on which devices. Pure: what was received is handed in and handed back."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from dovetail.planning.problem import Problem
from dovetail.planning.room import Room
from dovetail.planning.share.rounds.round_records import Gang, Received, Round
from dovetail.planning.share.rounds.turns import Leftovers, Lines, Turn, turns
from dovetail.vocabulary import Allocation, Cluster, Option, TaskId


class Rota:
    """The rounds of one allocation; holds only what is the same in all of them. Where the rota `before` it is of the
    same cluster, or the same allocation, what it knows of these need not be looked up again.

    >>> from dovetail.planning.share.policies import example, max_min_fairness
    >>> problem = example()
    >>> made = Rota(problem, max_min_fairness.allocate(problem)).next(received=Received())
    >>> sorted(task for gang in made.gangs for task in gang.tasks), made.waiting
    (['a', 'b', 'c'], ())
    """

    def __init__(self, problem: Problem, allocation: Allocation, *, before: "Rota | None" = None) -> None:
        self._problem, self._allocation = problem, allocation
        is_known = before is not None and before._allocation is allocation
        self._lines: Lines = before._lines if before is not None and is_known else Lines(allocation)
        cluster, running = problem.cluster, problem.running
        if before is not None and before._problem.cluster is cluster and before._problem.running == running:
            self._room: Room = before._room
        else:
            self._room = Room(cluster, running=running)

    @cached_property
    def _leftovers(self) -> Leftovers:
        return Leftovers(self._problem)

    def next(self, *, received: Received, previous: Iterable[Gang] = (), round_seconds: float = 360.0) -> Round:
        """Who runs in the next round, given what tasks have received and who ran where just now."""
        before = {gang.tasks: gang for gang in previous}
        holders = {task: gang.option for gang in before.values() for task in gang.tasks}
        room = self._room.copy()
        free = dict(room.idle)
        made = turns(self._lines, received, seconds=round_seconds, free=free, holders=holders)
        if self._allocation.fills and any(free.values()):
            made += self._leftovers.fill({task for turn in made for task in turn.tasks}, free)
            made = self._leftovers.widen(made, free)
        gangs = place(made, before=before, room=room, cluster=self._problem.cluster)
        moved, busy = 0, set[TaskId]()
        for gang in gangs:
            busy.update(gang.tasks)
            old = before.get(gang.tasks)
            if old is not gang and (old is None or old.devices != gang.devices):
                moved += sum(task in holders for task in gang.tasks)
        waiting = tuple([task for group in self._allocation.groups for task in group if task not in busy])
        return Round(gangs=tuple(gangs), waiting=waiting, moved=moved, seconds=round_seconds)


def place(
    made: Sequence[Turn], *, before: Mapping[tuple[TaskId, ...], Gang], room: Room, cluster: Cluster
) -> list[Gang]:
    """The devices of each gang. One that had devices keeps them; the others go on the fullest node that still holds
    them, the widest first. Where a kind is so split up that a gang finds no node, all of that kind are placed anew,
    the widest first; what finds none even so waits.

    >>> from dovetail.vocabulary import Cluster, Kind, Option
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> before = {("a",): Gang(("a",), option, ("n0:1",), 0)}
    >>> made = place([Turn(("a",), option, 0)], before=before, room=Room(cluster), cluster=cluster)
    >>> [gang.devices for gang in made]
    [('n0:1',)]
    """
    by_kind: dict[str, list[Turn]] = defaultdict(list)
    for turn in made:
        by_kind[turn.option.kind].append(turn)
    gangs: list[Gang] = []
    for of_kind in by_kind.values():
        placed = _place_kind(of_kind, before, room, cluster)
        if len(placed) < len(of_kind) and before:
            for gang in placed:
                room.give(gang.option, room.numbers(gang.devices))
            placed = []
            for count in sorted({turn.option.count for turn in of_kind}, reverse=True):
                as_wide = [turn for turn in of_kind if turn.option.count == count]
                placed += _place_kind(as_wide, before, room, cluster)
        gangs += placed
    return gangs


def _place_kind(
    of_kind: Sequence[Turn], before: Mapping[tuple[TaskId, ...], Gang], room: Room, cluster: Cluster
) -> list[Gang]:
    placed, moving = [], []
    for turn in of_kind:
        tasks, option, share = turn
        old = before.get(tasks)
        if old is not None and _is_same(old.option, option) and room.take_these(option, room.numbers(old.devices)):
            goes_on = old.share == share and old.option is option
            placed.append(old if goes_on else Gang(tasks, option, old.devices, share))
        else:
            moving.append(turn)
    moving.sort(key=lambda turn: -turn.option.count)
    for turn in moving:
        nodes = room.fullest(turn.option)
        if nodes is not None:
            names = tuple([cluster.devices[device].name for device in room.take(turn.option, nodes=nodes)])
            placed.append(Gang(turn.tasks, turn.option, names, turn.share))
    return placed


def _is_same(one: Option, other: Option) -> bool:
    """Whether two options are equal; they mostly are one object, or of different kinds."""
    return one is other or (one.kind == other.kind and one == other)
