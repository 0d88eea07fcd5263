"""What rounds are made of: gangs on devices, what tasks have received, and the reason for each decision."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Allocation, Option, Placement, Schedule, TaskId


class Gang(NamedTuple):
    """Tasks that run together in a round: with which option, on which devices, and whose turn it was (the number of the
    allocation's share; −1 where devices were left over).

    >>> Gang(tasks=("a",), option=None, devices=("n0:0",), share=0).devices
    ('n0:0',)
    """

    tasks: tuple[TaskId, ...]
    option: Option
    devices: tuple[str, ...]
    share: int

    def place(self, steps: tuple[int, ...], *, seconds: float) -> Placement:
        """The gang as a placement that starts now."""
        return Placement(
            tasks=self.tasks,
            steps=steps,
            option=self.option,
            devices=self.devices,
            start_seconds=0.0,
            duration_seconds=seconds,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What tasks have had of an allocation: how long it has been in force, the seconds of each task under each of its
    shares, and what tasks were still owed when it began."""

    elapsed_seconds: float = 0.0
    seconds: Mapping[tuple[int, TaskId], float] = dataclasses.field(default_factory=dict)
    owed_seconds: Mapping[TaskId, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for a task and why.

    >>> str(Decision(task="a", verb="extends", place="n0:0", because="its turn goes on"))
    "'a' extends on n0:0: its turn goes on"
    """

    task: TaskId
    verb: str
    place: str = ""
    because: str

    def __str__(self) -> str:
        return f"{self.task!r} {self.verb}{' on ' + self.place if self.place else ''}: {self.because}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Who runs in a round, who waits, and for how long the round lasts."""

    gangs: tuple[Gang, ...]
    waiting: tuple[TaskId, ...]
    moved: int
    seconds: float

    def schedule(self, problem: Problem) -> Schedule:
        """The round as placements that start now: each does as many steps as it has time for, or has left."""
        left = {member.task: member.steps for family in problem.families for member in family.members}
        return Schedule(placements=tuple(self._placement(gang, left) for gang in self.gangs))

    def _placement(self, gang: Gang, left: Mapping[TaskId, int]) -> Placement:
        time = max(0.0, self.seconds - gang.option.start_seconds)
        steps = tuple(
            min(left[task], int(time / seconds))
            for task, seconds in zip(gang.tasks, gang.option.step_seconds, strict=True)
        )
        return gang.place(steps, seconds=self.seconds)


def after(received: Received, made: Round, *, seconds: float) -> Received:
    """What tasks have received once a round has lasted so many seconds; what was left over is nobody's turn.

    >>> gang = Gang(tasks=("a",), option=None, devices=("n0:0",), share=0)
    >>> after(Received(), Round(gangs=(gang,), waiting=(), moved=0, seconds=360.0), seconds=360.0).seconds
    {(0, 'a'): 360.0}
    """
    total = dict(received.seconds)
    for gang in made.gangs:
        if gang.share >= 0:
            for task in gang.tasks:
                total[gang.share, task] = total.get((gang.share, task), 0.0) + seconds
    return Received(
        elapsed_seconds=received.elapsed_seconds + seconds, seconds=total, owed_seconds=received.owed_seconds
    )


def carry_over(received: Received, allocation: Allocation, *, most_seconds: float) -> Received:
    """Where a new allocation begins: each task is owed what its shares of the old one were behind, at most so much.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> from dovetail.vocabulary import Share
    >>> old = Allocation(groups=(("a", "b"),), shares=(Share(option=option, share=1.0),))
    >>> behind = Received(elapsed_seconds=720.0, seconds={(0, "a"): 720.0})
    >>> carry_over(behind, old, most_seconds=1000.0).owed_seconds
    {'b': 360.0}
    """
    here = {task for group in allocation.groups for task in group}
    owed: dict[TaskId, float] = {task: late for task, late in received.owed_seconds.items() if task in here}
    for number, share in enumerate(allocation.shares):
        for group in share.groups:
            tasks = allocation.groups[group]
            due = share.share / max(1, len(tasks)) * received.elapsed_seconds
            for task in tasks:
                owed[task] = owed.get(task, 0.0) + due - received.seconds.get((number, task), 0.0)
    return Received(owed_seconds={task: min(most_seconds, late) for task, late in owed.items() if late > 0})


def without(allocation: Allocation, ended: Collection[TaskId]) -> Allocation:
    """The allocation once some tasks have ended, until there is a new one: what they had is nobody's.

    Shares keep their numbers, so that what was received under them still counts.

    >>> from dovetail.vocabulary import Share
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> old = Allocation(groups=(("a", "b"),), shares=(Share(option=option, share=1.0),))
    >>> left = without(old, {"a"})
    >>> left.groups, left.shares[0].share
    ((('b',),), 0.5)
    """
    groups = tuple([tuple([task for task in group if task not in ended]) for group in allocation.groups])
    shares = []
    for share in allocation.shares:
        stays = min(len(groups[group]) / (len(allocation.groups[group]) or 1) for group in share.groups)
        shares.append(share if stays == 1 else dataclasses.replace(share, share=share.share * stays))
    return dataclasses.replace(allocation, groups=groups, shares=tuple(shares))


def explain(made: Round, *, previous: Iterable[Gang] = ()) -> list[Decision]:
    """A line for every task: it extends its lease, moves, starts, or waits, and why.

    >>> gang = Gang(tasks=("a",), option=None, devices=("n0:0",), share=0)
    >>> for line in explain(Round(gangs=(gang,), waiting=("b",), moved=0, seconds=360.0), previous=[gang]):
    ...     print(line)
    'a' extends on n0:0: its turn goes on
    'b' waits: others have received less of what they are due
    """
    where = {task: gang.devices for gang in previous for task in gang.tasks}
    lines = []
    for gang in made.gangs:
        for task in gang.tasks:
            turn = "it is its turn" if gang.share >= 0 else "the devices were left over"
            if task not in where:
                verb, because = "starts", turn
            elif where[task] == gang.devices:
                verb, because = "extends", "its turn goes on" if gang.share >= 0 else turn
            else:
                verb, because = "moves", f"{turn}; it was on {', '.join(where[task])}"
            lines.append(Decision(task=task, verb=verb, place=", ".join(gang.devices), because=because))
    late = "others have received less of what they are due"
    return [*lines, *(Decision(task=task, verb="waits", because=late) for task in made.waiting)]
