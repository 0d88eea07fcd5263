"""Nodes that have joined a Ray cluster and get ready: their hosts and workers start, which takes longer than deciding
what to do with them. They are of no use before, and a task that was moved there would wait instead of being trained.
"""

import dataclasses
import time
from collections.abc import Sequence

from dovetail.engines.worker import READY
from dovetail.engines.worker_handle import WorkerHandle
from dovetail.vocabulary import Cluster

# Who takes longer is used all the same: whatever is wrong is said of the order that meets it.
WARM_SECONDS = 20.0
# Of a node with more devices than that, others start when they are used: idle workers take memory.
WARM_WORKERS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WarmingNode:
    """A node, as a cluster of its own, whose workers start.

    >>> WarmingNode(cluster=Cluster(kinds=(), nodes=(), devices=()), workers=()).is_ready()
    True
    """

    cluster: Cluster
    workers: Sequence[WorkerHandle]
    since_seconds: float = dataclasses.field(default_factory=time.monotonic)

    def is_ready(self) -> bool:
        """Whether orders can begin there at once, or nobody waits any longer."""
        if time.monotonic() > self.since_seconds + WARM_SECONDS:
            return True
        return all(worker.doing == READY or worker.exited(0) for worker in self.workers)
