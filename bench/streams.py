"""A simulation of a stream of tasks on a shared cluster, with nothing but planning in it: policy, rounds, arithmetic.

Event driven: rounds in which nothing could change are skipped. Arrivals are seen, and devices of tasks that end are
given away, at the next round. `move_seconds` is what saving and loading take from a task each time it starts on
devices that it was not on in the round before.
"""

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from dovetail.describe.traces import Arrival
from dovetail.planning.checker import check
from dovetail.planning.problem import Problem
from dovetail.planning.share.columns import columns
from dovetail.planning.share.policies import Policy, equal_rates
from dovetail.planning.share.rounds import Gang, Received, Rota, Round, after, carry_over, without
from dovetail.vocabulary import Allocation, Cluster, Device, Family, Kind, Member, Node, Option


@dataclasses.dataclass
class Running:
    """A task in the simulation."""

    arrival: Arrival
    left: float
    isolated_seconds: float = 0.0
    equal_rate: float = 0.0
    counted: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a simulation."""

    seconds: dict[str, float]
    makespan_seconds: float
    cpu_seconds: float
    allocations: int
    rounds: int
    moves: int
    utilisation: float

    @property
    def mean_hours(self) -> float:
        """The mean time from arrival to end."""
        return sum(self.seconds.values()) / len(self.seconds) / 3600

    @property
    def makespan_hours(self) -> float:
        """When the last task ended."""
        return self.makespan_seconds / 3600


def cluster_of(
    devices: dict[str, int], *, per_node: int | None = None, prices: dict[str, float] | None = None
) -> Cluster:
    """Devices by kind, on nodes of so many; without that all of a kind on one, where every gang is as good as any."""
    places = [
        (kind, number // (per_node or count), number % (per_node or count))
        for kind, count in devices.items()
        for number in range(count)
    ]
    return Cluster(
        kinds=tuple(
            Kind(name=kind, processor="cuda", price_per_hour=(prices or {}).get(kind, 0.0)) for kind in devices
        ),
        nodes=tuple(
            Node(name=name, cores=1024, memory_bytes=1 << 50)
            for name in dict.fromkeys(f"{kind}-{node}" for kind, node, _ in places)
        ),
        devices=tuple(
            Device(name=f"{kind}-{node}:{index}", kind=kind, node=f"{kind}-{node}", index=index)
            for kind, node, index in places
        ),
    )


class Stream:
    """One simulation; `run` gives its outcome."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        *,
        options: Sequence[Option],
        cluster: Cluster,
        policy: Policy,
        round_seconds: float = 360.0,
        least_seconds_between: float = 0.0,
        most_seconds_between: float = math.inf,
        move_seconds: float = 0.0,
        equal_split: bool = False,
        blind: bool = False,
        predicted: Sequence[tuple[Option, Option]] = (),
        checked: bool = False,
    ) -> None:
        self._coming = sorted(arrivals, key=lambda arrival: -arrival.at_seconds)
        self._cluster, self._policy = cluster, policy
        # What is planned with, and by it what is true: the same, unless planning is blind to kinds.
        told = equal_rates(options) if blind else [(option, option) for option in options]
        # Gangs that are only predicted, each with the truth, which is known once the gang has run.
        told += predicted
        self._true = {id(each): option for lie, option in told for each in (lie, option)}
        self._told = [lie for lie, _ in told]
        self._learns = bool(predicted)
        self._alone: dict[str, list[Option]] = defaultdict(list)
        for option in self._told:
            if len(option.families) == 1:
                self._alone[option.families[0]].append(option)
        self._gang_options = [option for option in self._told if len(option.families) > 1]
        self._round_seconds, self._between, self._move_seconds = round_seconds, least_seconds_between, move_seconds
        self._most = most_seconds_between
        self._equal_split, self._checked = equal_split, checked
        self._now, self._decided_at = 0.0, -math.inf
        self._families: dict[str, dict[str, Running]] = {}
        self._tasks: dict[str, Running] = {}
        self._ended: dict[str, float] = {}
        self._allocations = self._rounds = self._moves = 0
        self._busy_seconds = self._last = 0.0
        self._steady = False
        self._problem: Problem | None = None
        self._rota: Rota | None = None
        self._allocation = Allocation(shares=())
        self._received = Received()
        self._gangs: tuple[Gang, ...] = ()

    def run(self) -> Outcome:
        """Until every task has ended."""
        cpu = time.process_time()
        stale = True
        while self._coming or self._tasks:
            stale |= self._arrive() or self._now - self._decided_at >= self._most
            if not self._tasks:
                self._now = self._boundary(self._coming[-1].at_seconds)
                continue
            if stale and self._now - self._decided_at >= self._between:
                self._decide()
                stale = False
            elif stale:
                self._problem = self._snapshot()
                self._rota = Rota(self._problem, self._allocation)
            stale |= self._round(stale=stale)
        return Outcome(
            seconds=self._ended,
            makespan_seconds=self._last,
            cpu_seconds=time.process_time() - cpu,
            allocations=self._allocations,
            rounds=self._rounds,
            moves=self._moves,
            utilisation=self._busy_seconds / (len(self._cluster.devices) * max(self._last, 1.0)),
        )

    def _arrive(self) -> bool:
        came = False
        while self._coming and self._coming[-1].at_seconds <= self._now:
            arrival = self._coming.pop()
            task = Running(arrival=arrival, left=float(arrival.steps), counted=float(arrival.steps))
            self._tasks[arrival.task] = task
            self._families.setdefault(arrival.family, {})[arrival.task] = task
            came = True
        return came

    def _decide(self) -> None:
        """Ask the policy, with what tasks are behind carried over."""
        self._received = carry_over(self._received, self._allocation, most_seconds=2 * self._round_seconds)
        if self._equal_split:
            self._count_isolated()
        self._problem = self._snapshot()
        if self._equal_split:
            self._note_equal_rates()
        self._allocation = self._policy(self._problem)
        self._rota = Rota(self._problem, self._allocation)
        self._steady = _is_steady(self._allocation)
        self._allocations += 1
        self._decided_at = self._now

    def _snapshot(self) -> Problem:
        families = tuple(
            Family(name=name, members=tuple([self._member(task) for task in tasks.values()]))
            for name, tasks in self._families.items()
        )
        alone = [option for name in self._families for option in self._alone[name]]
        together = [option for option in self._gang_options if all(name in self._families for name in option.families)]
        return Problem(cluster=self._cluster, families=families, options=(*alone, *together))

    def _member(self, task: Running) -> Member:
        arrival = task.arrival
        return Member(
            task=arrival.task,
            steps=math.ceil(task.left),
            weight=arrival.weight,
            age_seconds=self._now - arrival.at_seconds,
            isolated_seconds=task.isolated_seconds,
            deadline_seconds=arrival.deadline_seconds - (self._now - arrival.at_seconds),
        )

    def _count_isolated(self) -> None:
        for task in self._tasks.values():
            if task.equal_rate > 0:
                task.isolated_seconds += (task.counted - task.left) / task.equal_rate
            task.counted = task.left

    def _note_equal_rates(self) -> None:
        assert self._problem is not None
        arrays = columns(self._problem)
        for group, rate in zip(arrays.members, arrays.equal_split_rates().tolist(), strict=True):
            for member in group:
                self._tasks[member.task].equal_rate = rate

    def _round(self, *, stale: bool) -> bool:
        """Decide who runs, let them, and go to the next round at which anything can change: whether anything did."""
        assert self._rota is not None
        made = self._rota.next(received=self._received, previous=self._gangs, round_seconds=self._round_seconds)
        if self._checked:
            check(made.schedule(self._problem), self._cluster)
        self._rounds += 1
        self._learn(made)
        rounds = 1 if stale else self._skippable(made)
        self._received = after(self._received, made, seconds=rounds * self._round_seconds)
        ended = self._advance(made, rounds * self._round_seconds)
        self._now += rounds * self._round_seconds
        return ended

    def _learn(self, made: Round) -> None:
        if self._learns:
            ran = {id(gang.option) for gang in made.gangs}
            self._gang_options = [self._true[id(each)] if id(each) in ran else each for each in self._gang_options]

    def _skippable(self, made: Round) -> int:
        """How many rounds will be like this one: until the next end or arrival, if nobody waits or alternates."""
        if made.waiting or not self._steady:
            return 1
        until = math.inf if not self._coming else self._coming[-1].at_seconds - self._now
        for gang in made.gangs:
            for task, seconds in zip(gang.tasks, self._true[id(gang.option)].step_seconds, strict=True):
                until = min(until, self._tasks[task].left * seconds)
        return max(1, math.ceil(until / self._round_seconds)) if until < math.inf else 1

    def _advance(self, made: Round, seconds: float) -> bool:
        where = {task: gang.devices for gang in self._gangs for task in gang.tasks}
        ended = []
        kept = []
        for gang in made.gangs:
            alive = True
            longest = 0.0
            for task, step in zip(gang.tasks, self._true[id(gang.option)].step_seconds, strict=True):
                moved = where.get(task) != gang.devices
                self._moves += moved
                lost = self._move_seconds if moved else 0.0
                running = self._tasks[task]
                needed = running.left * step + lost
                if needed <= seconds * (1 + 1e-12):
                    ended.append((task, self._now + needed))
                    alive = False
                else:
                    running.left -= max(0.0, seconds - lost) / step
                longest = max(longest, min(needed, seconds))
            self._busy_seconds += longest * gang.option.count
            if alive:
                kept.append(gang)
        self._gangs = tuple(kept)
        for task, at in ended:
            self._end(task, at)
        if ended:
            self._allocation = without(self._allocation, {task for task, _ in ended})
        return bool(ended)

    def _end(self, name: str, at: float) -> None:
        task = self._tasks.pop(name)
        self._last = max(self._last, at)
        self._ended[name] = at - task.arrival.at_seconds
        family = self._families[task.arrival.family]
        del family[name]
        if not family:
            del self._families[task.arrival.family]

    def _boundary(self, at: float) -> float:
        return math.ceil(at / self._round_seconds) * self._round_seconds


def _is_steady(allocation: Allocation) -> bool:
    """Whether every task has all of its time on one option, so that no round differs from another."""
    seen: set[int] = set()
    for share in allocation.shares:
        if len(share.groups) > 1 or share.groups[0] in seen:
            return False
        seen.add(share.groups[0])
        if abs(share.share - len(allocation.groups[share.groups[0]])) > 1e-6:
            return False
    return len(seen) == len(allocation.groups)


def simulate(arrivals: Sequence[Arrival], **how: object) -> Outcome:
    """Run one simulation."""
    return Stream(arrivals, **how).run()  # type: ignore[arg-type]


Simulation = Callable[[], Outcome]
