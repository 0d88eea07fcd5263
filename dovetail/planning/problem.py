"""The one frozen snapshot that every planner and every policy reads, and nothing else."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from dovetail.vocabulary import (
    Cluster,
    Entity,
    Family,
    FrozenDict,
    Member,
    Option,
    Placement,
    Profile,
    Rejection,
    TaskId,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTour:
    """The shards of an evaluation: which nodes are `homes` of each, the `batches` it has, and the seconds that one of
    them takes, by kind, where that was measured. Options' steps take longer by `step_seconds`, because an evaluation on
    one device is in them.

    >>> found = EvaluationTour(homes={"a": ("n0",)}, batches={"a": 6}, batch_seconds={"cpu": 2.0})
    >>> found.seconds_on("a", kind="cpu", step_seconds=1.5), found.seconds_on("a", kind="v100", step_seconds=1.5)
    (12.0, 3.0)
    """

    homes: Mapping[str, tuple[str, ...]]
    batches: Mapping[str, int]
    batch_seconds: Mapping[str, float] = FrozenDict()
    step_seconds: Mapping[str, float] = FrozenDict()

    def seconds_on(self, shard: str, *, kind: str, step_seconds: float) -> float:
        """What evaluating on a shard takes on a device of a kind that takes so long for a training step. Where nobody
        measured it, a batch is taken for a third of that: backward takes twice as long as forward."""
        return self.batches[shard] * (self.batch_seconds.get(kind) or step_seconds / 3)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardTour:
    """What a task whose data lies on nodes has left to visit: the shards of each epoch and the steps on each, in this
    order where it `is_ordered`; which nodes are `homes` of each shard, and how long another takes to read it (one that
    is not among `read_seconds` cannot be read there), once for each node where it is among `copied`, which says from
    where. Its state is on node `at` from `ready_seconds` on. One that runs now keeps its `option`. `first_epoch` is the
    number of the first epoch. Between epochs, or parts of them, stand the shards of an `evaluation`, each with no
    steps. Copies of the model exchange `gradient_bytes`.

    >>> ShardTour(epochs=((("a", 10), ("b", 10)),), homes={"a": ("n0",), "b": ("n1",)}).is_ordered
    False
    """

    epochs: tuple[tuple[tuple[str, int], ...], ...]
    homes: Mapping[str, tuple[str, ...]]
    read_seconds: Mapping[str, float] = FrozenDict()
    copied: Mapping[str, str] = FrozenDict()
    is_ordered: bool = False
    state_bytes: int = 0
    at: str = ""
    ready_seconds: float = 0.0
    option: Option | None = None
    first_epoch: int = 0
    evaluation: EvaluationTour | None = None
    gradient_bytes: int = 0

    @property
    def trainings(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The epochs without the evaluations between them."""
        return tuple(epoch for epoch in self.epochs if any(steps for _, steps in epoch))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a planner may read. Time zero is now.

    `running` holds the placements that are under way and stay: they started at or before zero and their
    `duration_seconds` reaches to when they should end. Their tasks are not among the families' members.
    Policies that share the cluster also read who the tasks' `entities` are, what may be spent an hour, and in rounds of
    what length their shares are given out (0: not known), within which nobody takes turns. `tours` are of the tasks
    whose data lies on nodes, those that run among them. `profiles` are what options were foreseen from, by which their
    promises are judged.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> Problem(cluster=cluster, families=(), options=()).running
    ()
    """

    cluster: Cluster
    families: tuple[Family, ...]
    options: tuple[Option, ...]
    rejections: tuple[Rejection, ...] = ()
    running: tuple[Placement, ...] = ()
    objective: str = "makespan"
    entities: tuple[Entity, ...] = ()
    spend_limit_per_hour: float = math.inf
    round_seconds: float = 0.0
    tours: Mapping[TaskId, ShardTour] = dataclasses.field(default_factory=dict)
    profiles: tuple[Profile, ...] = ()

    @property
    def deadlines(self) -> dict[str, float]:
        """By when the tasks that have a deadline must have ended, in seconds from now."""
        return {
            member.task: member.deadline_seconds for member in self._members() if member.deadline_seconds < math.inf
        }

    def without_deadlines(self) -> "Problem":
        """The same, as if no task had one."""
        families = tuple(
            dataclasses.replace(
                family, members=tuple(dataclasses.replace(each, deadline_seconds=math.inf) for each in family.members)
            )
            for family in self.families
        )
        return dataclasses.replace(self, families=families)

    def _members(self) -> Iterator[Member]:
        return (member for family in self.families for member in family.members)
