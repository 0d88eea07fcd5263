"""The one frozen snapshot that every planner and every policy reads, and nothing else."""

import dataclasses
import math

from dovetail.vocabulary import Cluster, Entity, Family, Option, Placement, Rejection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a planner may read. Time zero is now.

    `running` holds the placements that are under way and stay: they started at or before zero and their
    `duration_seconds` reaches to when they should end. Their tasks are not among the families' members.
    Policies that share the cluster also read who the tasks' `entities` are and what may be spent an hour.

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
