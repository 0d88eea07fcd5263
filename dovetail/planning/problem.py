"""The one frozen snapshot that every planner and every policy reads, and nothing else."""

import dataclasses
import math
from collections.abc import Iterator

from dovetail.vocabulary import Cluster, Entity, Family, Member, Option, Placement, Rejection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a planner may read. Time zero is now.

    `running` holds the placements that are under way and stay: they started at or before zero and their
    `duration_seconds` reaches to when they should end. Their tasks are not among the families' members.
    Policies that share the cluster also read who the tasks' `entities` are, what may be spent an hour, and in rounds of
    what length their shares are given out (0: not known), within which nobody takes turns.

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
