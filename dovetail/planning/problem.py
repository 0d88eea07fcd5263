"""The one frozen snapshot that every planner and every policy reads, and nothing else."""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from dovetail.vocabulary import Cluster, Entity, Family, FrozenDict, Member, Option, Placement, Rejection, TaskId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardTour:
    """What a task whose data lies on nodes has left to visit: the shards of each epoch and the steps on each, in this
    order where it `is_ordered`; which nodes are `homes` of each shard, and how many bytes move where it is read from
    another (a shard that is not among `read_bytes` cannot be). Its state is on node `at` from `ready_seconds` on. One
    that runs now keeps its `option`. `first_epoch` is the number of the first epoch.

    >>> ShardTour(epochs=((("a", 10), ("b", 10)),), homes={"a": ("n0",), "b": ("n1",)}).is_ordered
    False
    """

    epochs: tuple[tuple[tuple[str, int], ...], ...]
    homes: Mapping[str, tuple[str, ...]]
    read_bytes: Mapping[str, int] = FrozenDict()
    is_ordered: bool = False
    state_bytes: int = 0
    at: str = ""
    ready_seconds: float = 0.0
    option: Option | None = None
    first_epoch: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a planner may read. Time zero is now.

    `running` holds the placements that are under way and stay: they started at or before zero and their
    `duration_seconds` reaches to when they should end. Their tasks are not among the families' members.
    Policies that share the cluster also read who the tasks' `entities` are, what may be spent an hour, and in rounds of
    what length their shares are given out (0: not known), within which nobody takes turns. `tours` are of the tasks
    whose data lies on nodes, those that run among them.

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
