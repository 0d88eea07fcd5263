"""Timetables: which rank of a pipeline does what, in which order. Plain data: the runtime follows it, the simulator
times it, the picture draws it, and `consistency.py` proves that it cannot hang, all from the same lists.

A *stage* is a part of the model; a *rank* is a process with one device, which holds one stage, or several as chunks. A
stage on several ranks is replicated: microbatch b goes to its replica number b modulo their count.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from dovetail.vocabulary import InvalidRecord

#: What a rank can do: the forward of a microbatch; its whole backward, or apart the gradients of inputs, for which the
#: stage before waits, and those of weights, for which nobody does; and the optimizer's update, together with the
#: stage's other replicas.
OPERATIONS = ("forward", "backward", "inputs", "weights", "update")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing a rank does for one stage. `version` counts the updates in the weights that forward and backward use;
    an update has in `microbatch` its own number, and makes version `microbatch + 1`.

    >>> str(Action(operation="forward", stage=1, microbatch=4))
    'forward 4 of stage 1'
    """

    operation: str
    stage: int
    microbatch: int
    version: int = 0

    def __str__(self) -> str:
        return f"{self.operation} {self.microbatch} of stage {self.stage}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The actions of every rank in order, and the ranks that hold each stage.

    `flushes` says that the pipeline runs empty before an update, so that every microbatch of a step uses the same
    weights as on one device; `microbatches` are all it covers.

    >>> one = Action(operation="forward", stage=0, microbatch=0)
    >>> Timetable(name="tiny", ranks=((one,),), holders=((0,),), microbatches=1, flushes=True).depth
    1
    """

    name: str
    ranks: tuple[tuple[Action, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    microbatches: int
    flushes: bool

    @property
    def depth(self) -> int:
        """How many stages there are, chunks included."""
        return len(self.holders)

    def rank(self, stage: int, microbatch: int) -> int:
        """Who computes a microbatch at a stage."""
        holders = self.holders[stage]
        return holders[microbatch % len(holders)]

    def actions(self) -> Iterator[tuple[int, int, Action]]:
        """Every action with its rank and its place in that rank's list."""
        for rank, actions in enumerate(self.ranks):
            for place, action in enumerate(actions):
                yield rank, place, action


#: What others need of an action: what was done, at which stage, for which microbatch. Gradients of inputs are what a
#: backward gives others, so they go by its name.
Done = tuple[str, int, int]


def needs(timetable: Timetable, action: Action) -> Iterator[tuple[Done, bool]]:
    """What must be done before an action can begin, besides what its rank does earlier, and whether it takes a message
    from another rank. An update's other replicas are not among these.

    >>> forward = Action(operation="forward", stage=1, microbatch=0)
    >>> two = Timetable(name="tiny", ranks=((), ()), holders=((0,), (1,)), microbatches=1, flushes=True)
    >>> list(needs(two, forward))
    [(('forward', 0, 0), True)]
    """
    stage, microbatch = action.stage, action.microbatch
    if action.operation == "forward" and stage > 0:
        yield ("forward", stage - 1, microbatch), _is_sent(timetable, stage - 1, stage, microbatch)
    elif action.operation in ("backward", "inputs"):
        yield ("forward", stage, microbatch), False
        if stage + 1 < timetable.depth:
            yield ("backward", stage + 1, microbatch), _is_sent(timetable, stage + 1, stage, microbatch)
    elif action.operation == "weights":
        yield ("backward", stage, microbatch), False


def _is_sent(timetable: Timetable, source: int, target: int, microbatch: int) -> bool:
    return timetable.rank(source, microbatch) != timetable.rank(target, microbatch)


def done(action: Action) -> Done:
    """What an action does, as others need it.

    >>> done(Action(operation="inputs", stage=1, microbatch=4, version=2))
    ('backward', 1, 4)
    """
    operation = "backward" if action.operation == "inputs" else action.operation
    return operation, action.stage, action.microbatch


def checked_replicas(replicas: Sequence[int], microbatches: int) -> tuple[int, ...]:
    """The replicas of each stage, as given, if there can be such a pipeline.

    >>> checked_replicas([2, 1], 4)
    (2, 1)
    """
    if not replicas or min(replicas) < 1:
        raise InvalidRecord(f"every stage must have at least one rank, got {list(replicas)}.")
    if microbatches < max(replicas):
        raise InvalidRecord(
            f"every replica must get a microbatch: there must be at least {max(replicas)}, got {microbatches}."
        )
    return tuple(replicas)


def single(name: str, replicas: Sequence[int], microbatches: int) -> int:
    """The depth of a pipeline whose stages all have one rank, which some timetables need.

    >>> single("interleaved", [1, 1, 1], 4)
    3
    """
    if any(count != 1 for count in checked_replicas(replicas, microbatches)):
        raise InvalidRecord(
            f"a timetable {name!r} must have one rank for each stage, got {list(replicas)}; use '1f1b'."
        )
    return len(replicas)


def held_by(replicas: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each stage, numbered stage by stage.

    >>> held_by([2, 1])
    ((0, 1), (2,))
    """
    firsts = [sum(replicas[:stage]) for stage in range(len(replicas))]
    return tuple(tuple(range(first, first + count)) for first, count in zip(firsts, replicas, strict=True))
