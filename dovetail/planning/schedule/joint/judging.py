"""What a schedule comes to under an objective. Less is better, and no task that ends sooner ever makes it worse."""

import math
from collections.abc import Sequence

from dovetail.planning.schedule.joint.modes import Table
from dovetail.planning.schedule.joint.packing import Begun
from dovetail.vocabulary import InvalidRecord, InvalidWorkload, Objective

_ROUNDING = 1e-6


class Judge:
    """Judges schedules of one table by one objective.

    Tasks that run already count among the first results and among those that may meet a target; what is spent on them
    and how long they take is not for a plan to change.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> Judge(nothing, Objective(name="mean")).value([])
    0.0
    """

    def __init__(self, table: Table, objective: Objective) -> None:
        self.table, self.objective = table, objective
        self.running_ends = tuple(
            max(0.0, placement.end_seconds) for placement in table.running for _ in placement.tasks
        )
        self.weight = sum(group.weight * len(group.tasks) for group in table.groups)
        self._refuse()
        #: For each mode the sum of its tasks' weights, and of weight × seconds from its start to each task's end.
        self.weights = [sum(table.groups[group].weight for group in mode.groups) for mode in table.modes]
        self.ends = [mode.ends(table.groups) for mode in table.modes]
        self.spends = [self._spend(number) for number in range(len(table.modes))]
        self.is_due = any(group.due_seconds < math.inf for group in table.groups)

    def value(self, begun: Sequence[Begun]) -> float:
        """What it comes to: seconds, or money; infinite where a deadline is missed."""
        if not begun:
            return 0.0
        name = self.objective.name
        if self.is_due and self.late_seconds(begun) > 0:
            return math.inf
        if name == "spend":
            last = max(each.start_seconds + self.table.modes[each.mode].seconds for each in begun)
            late = last > self.objective.deadline_seconds * (1 + 1e-9)
            return math.inf if late else sum(self.spends[each.mode] for each in begun)
        if name in ("mean", "weighted"):
            return sum(self._weighted_ends(each) for each in begun) / self.weight
        ends = sorted(
            [*self.running_ends, *(each.start_seconds + end for each in begun for end in self.ends[each.mode])]
        )
        return sum(share * ends[rank - 1] for rank, share in self.ranks(len(ends)))

    def late_seconds(self, begun: Sequence[Begun]) -> float:
        """By how much tasks end after their own deadlines and placements after the objective's, in sum."""
        late = [
            each.start_seconds + end - self.table.groups[group].due_seconds
            for each in begun
            for group, end in zip(self.table.modes[each.mode].groups, self.ends[each.mode], strict=True)
        ]
        if self.objective.name == "spend":
            late += [
                each.start_seconds + self.table.modes[each.mode].seconds - self.objective.deadline_seconds
                for each in begun
            ]
        # Sums of seconds are off in their last digits.
        return sum(seconds for seconds in late if seconds > _ROUNDING)

    def ranks(self, tasks: int) -> list[tuple[int, float]]:
        """For objectives that read only the sorted ends: by how much the end of each rank counts."""
        if self.objective.name == "first":
            return [(self.objective.results, 1.0)]
        if self.objective.name == "target":
            chance = self.objective.chance
            return [
                (rank, (1 - chance) ** (rank - 1) * (chance if rank < tasks else 1.0)) for rank in range(1, tasks + 1)
            ]
        return [(tasks, 1.0)]

    def _weighted_ends(self, begun: Begun) -> float:
        mode = self.table.modes[begun.mode]
        pairs = zip(mode.groups, self.ends[begun.mode], strict=True)
        return sum(self.table.groups[group].weight * (begun.start_seconds + end) for group, end in pairs)

    def _spend(self, number: int) -> float:
        mode = self.table.modes[number]
        return self.table.cluster.kind(mode.option.kind).price_per_hour * mode.area / 3600

    def _refuse(self) -> None:
        """What the objective needs and the problem does not have."""
        name, groups = self.objective.name, self.table.groups
        tasks = self.table.tasks + len(self.running_ends)
        if name == "first" and self.table.tasks > 0 and self.objective.results > tasks:
            raise InvalidWorkload(
                f"objective '{self.objective}' must ask for no more results than there are tasks, "
                f"found {tasks}. Ask for fewer."
            )
        if name == "weighted" and not all(0 <= group.weight < math.inf for group in groups):
            raise InvalidRecord("weights must be finite and at least 0; found one that is not.")
        if name == "weighted" and groups and self.weight <= 0:
            raise InvalidRecord("objective 'weighted' must have a task with a weight above 0, found none.")
        if name == "spend":
            kinds = {mode.option.kind for mode in self.table.modes}
            prices = {kind: self.table.cluster.kind(kind).price_per_hour for kind in sorted(kinds)}
            missing = [kind for kind, price in prices.items() if not 0 < price < math.inf]
            if missing:
                raise InvalidRecord(
                    f"objective '{self.objective}' must have a price for each kind, found none for "
                    f"{', '.join(map(repr, missing))}. Give price_per_hour of the kind, or --price {missing[0]}=1.50."
                )
