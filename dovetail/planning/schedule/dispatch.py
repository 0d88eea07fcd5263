"""One list schedule: start, again and again, what fits now, the task with the longest time left first.

Given a target, a task may only start with an option with which it ends by the target; without one, with any.
Among the options of a task that are left, the one with the smallest area (seconds × count) is tried first. The
choice of the target, and what to make of a schedule that misses it, are the caller's (`planning/schedule/listing.py`).

What makes it fast: each option of each family (a *lane*) points at the longest task of its family that it
can still end in time. A task once started stays started and time only goes on, so pointers only move forward.
"""

import dataclasses
import heapq
from collections.abc import Sequence

from dovetail.planning.room import RoomForOptions
from dovetail.vocabulary import Cluster, Member, Option, Placement

# Sums of floats that should equal the target may miss it by a few units in the last place.
_ROUNDING = 1 + 1e-9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One option of one family, with what it takes for each member: infinite where it may not be used.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,))
    >>> Lane(queue=0, option=option, seconds=(8.0, 3.0)).seconds[1]
    3.0
    """

    queue: int
    option: Option
    seconds: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The members of one family, most steps first, with what decides who goes first: larger before smaller.

    >>> Queue(members=(Member(task="a", steps=8),), fastest=(8.0,), ranks=(8.0,)).members[0].task
    'a'
    """

    members: tuple[Member, ...]
    fastest: tuple[float, ...]
    ranks: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A member that a lane starts: what becomes a placement if this schedule is the best.

    >>> Started(lane=0, position=2, devices=(5,), start_seconds=1.0).devices
    (5,)
    """

    lane: int
    position: int
    devices: tuple[int, ...]
    start_seconds: float


def dispatch(
    queues: Sequence[Queue],
    *,
    lanes: Sequence[Lane],
    cluster: Cluster,
    running: Sequence[Placement] = (),
    target_seconds: float,
) -> list[Started] | None:
    """A list schedule that ends by the target, or None once a task cannot.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> members = (Member(task="a", steps=8), Member(task="b", steps=3))
    >>> queue = Queue(members=members, fastest=(8.0, 3.0), ranks=(8.0, 3.0))
    >>> lane = Lane(queue=0, option=option, seconds=(8.0, 3.0))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> [started.start_seconds for started in dispatch([queue], lanes=[lane], cluster=cluster, target_seconds=11.0)]
    [0.0, 8.0]
    >>> dispatch([queue], lanes=[lane], cluster=cluster, target_seconds=10.0) is None
    True
    """
    return _Dispatch(queues, lanes, cluster, running, target_seconds * _ROUNDING).run()


class _Dispatch:
    """The state of one list schedule between two moments."""

    def __init__(
        self,
        queues: Sequence[Queue],
        lanes: Sequence[Lane],
        cluster: Cluster,
        running: Sequence[Placement],
        limit_seconds: float,
    ) -> None:
        self._queues, self._lanes, self._limit, self._now = queues, lanes, limit_seconds, 0.0
        self._room = RoomForOptions(cluster, options=[lane.option for lane in lanes])
        self._begun = [bytearray(len(queue.members)) for queue in queues]
        self._left = sum(len(queue.members) for queue in queues)
        self._heads, self._pointers = [0] * len(queues), [0] * len(lanes)
        self._longest_left = max((queue.fastest[0] for queue in queues), default=0.0)
        self._started: list[Started] = []
        # Ends to come: when, a number that settles ties, what ends, and where.
        self._ends: list[tuple[float, int, Option, tuple[int, ...]]] = []
        for number, placement in enumerate(running):
            devices = self._room.occupy(placement)
            self._ends.append((placement.end_seconds, number - len(running), placement.option, devices))
        heapq.heapify(self._ends)
        # One heap a kind, so that a kind without a free device costs nothing.
        self._awake: dict[str, list[tuple[float, int, int, float, int]]] = {kind.name: [] for kind in cluster.kinds}
        for number in range(len(lanes)):
            self._wake(number)

    def run(self) -> list[Started] | None:
        """Go from end to end until every member has started or one no longer can in time."""
        self._end_what_is_over()
        while True:
            self._start_what_fits()
            if not self._left:
                return self._started
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
            node = self._room.find(number)
            if node is not None:
                self._start(number, node)
                self._wake(number)

    def _start(self, number: int, node: int) -> None:
        lane, position = self._lanes[number], self._pointers[number]
        devices = self._room.take(number, node=node)
        self._begun[lane.queue][position] = 1
        self._left -= 1
        end_seconds = self._now + lane.seconds[position]
        heapq.heappush(self._ends, (end_seconds, len(self._started), lane.option, devices))
        self._started.append(Started(lane=number, position=position, devices=devices, start_seconds=self._now))

    def _end_what_is_over(self) -> None:
        while self._ends and self._ends[0][0] <= self._now:
            _, _, option, devices = heapq.heappop(self._ends)
            for number in self._room.give(option, devices=devices):
                self._wake(number)

    def _advance(self, number: int) -> int:
        """The longest member that this lane can still start now and end in time; one past the last if none."""
        lane, position = self._lanes[number], self._pointers[number]
        begun, seconds, room = self._begun[lane.queue], lane.seconds, self._limit - self._now
        while position < len(seconds) and (begun[position] or seconds[position] > room):
            position += 1
        self._pointers[number] = position
        return position

    def _wake(self, number: int) -> None:
        """Put a lane in line by its member's rank; of one member's lanes, the smallest area first."""
        position, lane = self._advance(number), self._lanes[number]
        if position < len(lane.seconds):
            area = lane.seconds[position] * lane.option.count
            entry = (-self._queues[lane.queue].ranks[position], lane.queue, position, area, number)
            heapq.heappush(self._awake[lane.option.kind], entry)

    def _is_too_late(self) -> bool:
        """Whether some member can no longer end in time, were it started now."""
        # What starts only makes the longest left shorter, so the last answer holds until its time is up.
        if self._longest_left > self._limit - self._now:
            self._longest_left = max(map(self._longest_of, range(len(self._queues))))
        return self._longest_left > self._limit - self._now

    def _longest_of(self, number: int) -> float:
        """The fastest time of the longest member of a queue that has not begun."""
        begun, head = self._begun[number], self._heads[number]
        while head < len(begun) and begun[head]:
            head += 1
        self._heads[number] = head
        return self._queues[number].fastest[head] if head < len(begun) else 0.0
