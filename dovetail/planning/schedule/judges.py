"""What a schedule comes to under an objective. Less is better, and no task that ends sooner ever makes it worse."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from dovetail.planning.schedule.table import Start, Table, makespan
from dovetail.vocabulary import InvalidRecord, InvalidWorkload, Objective

_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """The best schedule known, what it comes to by the judge, and what is proven that no schedule is below; a `bound`
    of zero proves nothing.

    >>> Incumbent(starts=(), value=1.0, bound=0.5).gap
    1.0
    """

    starts: tuple[Start, ...]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """By which share of the bound the value is above it."""
        return self.value / self.bound - 1 if self.bound > 0 else math.inf if self.value > 0 else 0.0


def value_of_ends(objective: Objective, ends: Sequence[float], weights: Sequence[float] = ()) -> float:
    """What tasks that end then come to, all that run counted in; for the objectives that read nothing but ends, and of
    weights only `weighted`.

    >>> [value_of_ends(Objective.parse(name), [10.0, 30.0]) for name in ("makespan", "mean", "first:1")]
    [30.0, 20.0, 10.0]
    """
    if objective.name in ("mean", "weighted"):
        shares = weights if objective.name == "weighted" else [1.0] * len(ends)
        return sum(share * end for share, end in zip(shares, ends, strict=True)) / sum(shares)
    ordered = sorted(ends)
    return sum(share * ordered[rank - 1] for rank, share in _ranks(objective, len(ends)))


def _ranks(objective: Objective, tasks: int) -> list[tuple[int, float]]:
    if objective.name == "first":
        return [(objective.results, 1.0)]
    if objective.name == "target":
        chance = objective.chance
        return [(rank, (1 - chance) ** (rank - 1) * (chance if rank < tasks else 1.0)) for rank in range(1, tasks + 1)]
    return [(tasks, 1.0)]


class Judge:
    """Judges schedules of one table by one objective.

    Tasks that run already count among the first results and among those that may meet a target; what is spent on them
    and how long they take is not for a plan to change."""

    def __init__(self, table: Table, objective: Objective) -> None:
        self.table, self.objective = table, objective
        self.running_ends = tuple(
            max(0.0, placement.end_seconds) for placement in table.running for _ in placement.tasks
        )
        self.weight = sum(group.weight * len(group.tasks) for group in table.groups)
        self._refuse()
        self.is_due = any(group.due_seconds < math.inf for group in table.groups)

    # Of each mode, and only where they are asked for: large tables have tens of thousands.
    @cached_property
    def weights(self) -> list[float]:
        """The sum of the weights of each mode's tasks."""
        return [sum(self.table.groups[group].weight for group in mode.groups) for mode in self.table.modes]

    @cached_property
    def ends(self) -> list[tuple[float, ...]]:
        """How long after each mode's start each of its tasks ends."""
        return [mode.ends(self.table.groups) for mode in self.table.modes]

    @cached_property
    def spends(self) -> list[float]:
        """What is spent on each mode, by the prices of its devices."""
        return [self._spend(number) for number in range(len(self.table.modes))]

    def best(self, candidates: Iterable[Sequence[Start]]) -> Sequence[Start]:
        """The one that comes to least, the first of equals."""
        return min(candidates, key=self.value)

    def incumbent(self, starts: Sequence[Start], *, bound: float) -> Incumbent:
        """A schedule with its value; no bound is above what was done."""
        value = self.value(starts)
        return Incumbent(starts=tuple(starts), value=value, bound=min(bound, value))

    def value(self, starts: Sequence[Start]) -> float:
        """What it comes to: seconds, or money; infinite where a deadline is missed."""
        if not starts:
            return 0.0
        name = self.objective.name
        if self.is_due and self.late_seconds(starts) > 0:
            return math.inf
        if name == "makespan":
            return makespan(self.table, starts)
        if name == "spend":
            last = makespan(self.table, starts)
            late = last > self.objective.deadline_seconds * (1 + 1e-9)
            return math.inf if late else sum(self.spends[each.mode] for each in starts)
        if name in ("mean", "weighted"):
            return sum(self._weighted_ends(each) for each in starts) / self.weight
        planned = (each.start_seconds + end for each in starts for end in self.ends[each.mode])
        return value_of_ends(self.objective, [*self.running_ends, *planned])

    def late_seconds(self, starts: Sequence[Start]) -> float:
        """By how much tasks end after their own deadlines and placements after the objective's, in sum."""
        late = [
            each.start_seconds + end - self.table.groups[group].due_seconds
            for each in starts
            for group, end in zip(self.table.modes[each.mode].groups, self.ends[each.mode], strict=True)
        ]
        if self.objective.name == "spend":
            late += [
                each.start_seconds + self.table.modes[each.mode].seconds - self.objective.deadline_seconds
                for each in starts
            ]
        # Sums of seconds are off in their last digits.
        return sum(seconds for seconds in late if seconds > _ROUNDING)

    def ranks(self, tasks: int) -> list[tuple[int, float]]:
        """For objectives that read only the sorted ends: by how much the end of each rank counts."""
        return _ranks(self.objective, tasks)

    def _weighted_ends(self, start: Start) -> float:
        mode = self.table.modes[start.mode]
        pairs = zip(mode.groups, self.ends[start.mode], strict=True)
        return sum(self.table.groups[group].weight * (start.start_seconds + end) for group, end in pairs)

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
