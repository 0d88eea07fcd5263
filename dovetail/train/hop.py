"""The technique `hop`: a task whole on a device of the node where its next shard of data lies, until that is read.

What a visit computes is what `resident` computes; that the task goes on elsewhere is the controller's doing.
"""

from dovetail.train.base import Members
from dovetail.train.resident import RESIDENT, Resident


class Hop(Resident):
    """One sub-epoch of one task."""

    name = "hop"
    exactness = RESIDENT.exactness

    def refuse(self, members: Members) -> str | None:
        """Hop refuses nothing but gangs."""
        return None if len(members) == 1 else f"hop trains one task at a time, got {len(members)}"


HOP = Hop()
