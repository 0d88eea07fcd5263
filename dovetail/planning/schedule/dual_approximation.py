"""List schedules towards a target where memory, disk or cores bind: each task takes whichever mode fits now and ends in
time, the cheapest first.

For a target T a task may only start in a mode in which it ends by T. Bisection over T between the proven bound and what
is known then finds a small T: tight targets make tasks wide and fast, loose ones frugal. Hochbaum and Shmoys (1987) for
the idea; Ludwig and Tiwari (1994) for tasks whose number of devices is free. Tasks run alone here; gangs are others'.

What makes it fast: each way of each family to run (a *lane*) points at the longest task of the family that it can still
end in time. A task once started stays started and time only goes on, so pointers only move forward.
"""

import dataclasses
import heapq
import math
from collections import defaultdict
from collections.abc import Sequence

from dovetail.planning.room import RoomForOptions
from dovetail.planning.schedule.table import Start, Table, makespan
from dovetail.vocabulary import Option

# Sums of floats that should equal the target may miss it by a few units in the last place.
_ROUNDING = 1 + 1e-9
# Bisection ends within this share of the bound; up to so many tasks a schedule takes a few milliseconds.
_PRECISE, _COARSE, _FEW_TASKS = 0.002, 0.01, 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """One shape for one family: the mode, the seconds and the price for each task of its queue; infinite where none."""

    queue: int
    shape: int
    modes: tuple[int, ...]
    seconds: tuple[float, ...]
    prices: tuple[float, ...]


class DualApproximation:
    """List schedules of a table for targets, with the modes' `prices` to say which is tried first. The task that takes
    longest even at its fastest comes first or, `dearest_first`, the one that costs most even at its cheapest."""

    def __init__(self, table: Table, *, prices: Sequence[float], dearest_first: bool = False) -> None:
        self.table = table
        queues: dict[str, list[int]] = defaultdict(list)
        for number, group in enumerate(table.groups):
            queues[group.family] += [number] * len(group.tasks)
        self._queues = list(queues.values())
        numbers = {family: number for number, family in enumerate(queues)}
        alone: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for number, mode in enumerate(table.modes):
            if len(mode.groups) == 1:
                (of,) = mode.groups
                alone[numbers[table.groups[of].family], mode.shape][of] = number
        self.lanes = [self._lane(queue, shape, modes, prices) for (queue, shape), modes in alone.items()]
        fastest = [math.inf] * len(table.groups)
        for lane in self.lanes:
            for of, seconds in zip(self._queues[lane.queue], lane.seconds, strict=True):
                fastest[of] = min(fastest[of], seconds)
        #: The seconds of each task in its fastest mode, queue by queue.
        self.fastest = [[fastest[of] for of in queue] for queue in self._queues]
        cheapest = [math.inf] * len(table.groups)
        for number, mode in enumerate(table.modes):
            if len(mode.groups) == 1:
                cheapest[mode.groups[0]] = min(cheapest[mode.groups[0]], prices[number])
        #: Who comes first, queue by queue: the larger before the smaller.
        self.ranks = [[cheapest[of] for of in queue] for queue in self._queues] if dearest_first else self.fastest
        #: Whether every task can run alone.
        self.applies = all(seconds < math.inf for seconds in fastest)

    def _lane(self, queue: int, shape: int, modes: dict[int, int], prices: Sequence[float]) -> _Lane:
        found = [modes.get(group, -1) for group in self._queues[queue]]
        return _Lane(
            queue=queue,
            shape=shape,
            modes=tuple(found),
            seconds=tuple([self.table.modes[n].seconds if n >= 0 else math.inf for n in found]),
            prices=tuple([prices[n] if n >= 0 else math.inf for n in found]),
        )

    def fit(self, target_seconds: float) -> list[Start] | None:
        """A list schedule that ends by the target, or None once a task cannot."""
        return _Dispatch(self, target_seconds * _ROUNDING).run()

    def shorten(self, known: Sequence[Start], *, low: float) -> Sequence[Start]:
        """The schedule or the shortest for targets between a bound and its makespan."""
        best, high, target = known, makespan(self.table, known), low
        precision = _PRECISE if self.table.tasks <= _FEW_TASKS else _COARSE
        bottom = low
        while self.applies and high - bottom > precision * low:
            found = self.fit(target)
            if found is not None and makespan(self.table, found) < high:
                best, high = found, makespan(self.table, found)
            else:
                bottom = target
            target = (bottom + high) / 2
        return best


class _Dispatch:
    """The state of one list schedule between two moments."""

    def __init__(self, tasks: DualApproximation, limit_seconds: float) -> None:
        table = tasks.table
        self._table, self._lanes, self._fastest, self._ranks = table, tasks.lanes, tasks.fastest, tasks.ranks
        self._limit, self._now = limit_seconds, 0.0
        self._room = RoomForOptions(table.cluster, options=[table.shapes[lane.shape] for lane in tasks.lanes])
        self._begun = [bytearray(len(queue)) for queue in self._fastest]
        self._left = sum(map(len, self._fastest))
        self._heads, self._pointers = [0] * len(self._fastest), [0] * len(self._lanes)
        self._longest_left = max((queue[0] for queue in self._fastest), default=0.0)
        self._starts: list[Start] = []
        # Ends to come: when, a number that settles ties, what ends, and where.
        self._ends: list[tuple[float, int, Option, tuple[int, ...]]] = []
        for number, placement in enumerate(table.running):
            devices = self._room.occupy(placement)
            self._ends.append((placement.end_seconds, number - len(table.running), placement.option, devices))
        heapq.heapify(self._ends)
        # One heap a kind, so that a kind without a free device costs nothing.
        self._awake: dict[str, list[tuple[float, int, int, float, int]]] = {k.name: [] for k in table.cluster.kinds}
        for number in range(len(self._lanes)):
            self._wake(number)

    def run(self) -> list[Start] | None:
        """Go from end to end until every task has started or one no longer can in time."""
        self._end_what_is_over()
        while True:
            self._start_what_fits()
            if not self._left:
                return self._starts
            if not self._ends:
                return None
            self._now = max(self._now, self._ends[0][0])
            self._end_what_is_over()
            if self._is_too_late():
                return None

    def _start_what_fits(self) -> None:
        idle = self._room.idle
        while ready := [heap for kind, heap in self._awake.items() if heap and idle[kind] > 0]:
            # Lists compare by their first items, here the lane that should go first of each kind.
            entry = heapq.heappop(min(ready))
            number = entry[4]
            if self._advance(number) != entry[2]:
                self._wake(number)
                continue
            nodes = self._room.find(number)
            if nodes is not None:
                self._start(number, nodes)
                self._wake(number)

    def _start(self, number: int, nodes: tuple[int, ...]) -> None:
        lane, position = self._lanes[number], self._pointers[number]
        devices = self._room.take(number, nodes=nodes)
        self._begun[lane.queue][position] = 1
        self._left -= 1
        end_seconds = self._now + lane.seconds[position]
        heapq.heappush(self._ends, (end_seconds, len(self._starts), self._table.shapes[lane.shape], devices))
        self._starts.append(Start(mode=lane.modes[position], start_seconds=self._now, devices=devices))

    def _end_what_is_over(self) -> None:
        while self._ends and self._ends[0][0] <= self._now:
            _, _, option, devices = heapq.heappop(self._ends)
            for number in self._room.give(option, devices=devices):
                self._wake(number)

    def _advance(self, number: int) -> int:
        """The longest task that this lane can still start now and end in time; one past the last if none."""
        lane, position = self._lanes[number], self._pointers[number]
        begun, seconds, left = self._begun[lane.queue], lane.seconds, self._limit - self._now
        while position < len(seconds) and (begun[position] or seconds[position] > left):
            position += 1
        self._pointers[number] = position
        return position

    def _wake(self, number: int) -> None:
        """Put a lane in line by its task's rank; of one task's lanes, the cheapest first."""
        position, lane = self._advance(number), self._lanes[number]
        if position < len(lane.seconds):
            entry = (-self._ranks[lane.queue][position], lane.queue, position, lane.prices[position], number)
            heapq.heappush(self._awake[self._table.shapes[lane.shape].kind], entry)

    def _is_too_late(self) -> bool:
        """Whether some task can no longer end in time, were it started now."""
        # What starts only makes the longest left shorter, so the last answer holds until its time is up.
        if self._longest_left > self._limit - self._now:
            self._longest_left = max(map(self._longest_of, range(len(self._fastest))))
        return self._longest_left > self._limit - self._now

    def _longest_of(self, number: int) -> float:
        """The fastest time of the longest task of a queue that has not begun."""
        begun, head = self._begun[number], self._heads[number]
        while head < len(begun) and begun[head]:
            head += 1
        self._heads[number] = head
        return self._fastest[number][head] if head < len(begun) else 0.0
