"""A time before which no schedule of a problem can end, whatever planner made it.

Two relaxations, over a target of T seconds:

- alone: every task needs an option whose devices are free soon enough that it ends by T;
- area: with the options that end by T, the tasks of families that can only use the kinds S need at least
  Σ min(seconds × count) device-seconds, and the devices of S offer Σ max(0, T - busy until) of them by T.

Both ease as T grows, so the least T that passes is a lower bound. It holds for gangs too: a member's part of
a gang's device-seconds is taken as its own seconds × count / members, which summed is never more than
the gang's. Host memory and cores are held to the area too, with every option. Running placements are taken
to end when they say.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from dovetail.planning.fitting import misfit
from dovetail.planning.problem import Problem
from dovetail.vocabulary import Cluster, Option, Placement

# Halvings of the interval that holds the bound: 2^-16 of it is far below what a prediction is worth.
_HALVINGS = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One family's part in one option."""

    option: Option
    step_seconds: float
    ready_seconds: float

    def seconds(self, steps: int) -> float:
        return self.option.start_seconds + self.step_seconds * steps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """One family: how many tasks have how many steps left, and its ways."""

    steps: Counter[int]
    ways: tuple[_Way, ...]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(way.option.kind for way in self.ways)


class _Volume:
    """The least Σ seconds × amount / members of one family's tasks, over the ways that end by a target."""

    def __init__(self, demand: _Demand, amount: Callable[[Option], float]) -> None:
        rates = [(way, amount(way.option) / len(way.option.families)) for way in demand.ways]
        rows = []
        for steps, tasks in sorted(demand.steps.items()):
            spans = [(way.ready_seconds, way.seconds(steps), rate) for way, rate in rates]
            rows.append((tasks, sorted((seconds * rate, ready + seconds) for ready, seconds, rate in spans)))
        self.least = sum(tasks * ways[0][0] for tasks, ways in rows)
        # Most tasks can use the way of the least volume whatever the target; those that end last with it come first.
        self._rows = sorted(rows, key=lambda row: -row[1][0][1])

    def by(self, target: float) -> float:
        """Infinite where a task has no way that ends by the target."""
        total = self.least
        for tasks, ways in self._rows:
            if ways[0][1] <= target:
                break
            timely = next((volume for volume, end in ways if end <= target), math.inf)
            total += tasks * (timely - ways[0][0])
        return total


_Volumes = list[tuple[frozenset[str], _Volume]]


def lower_bound(problem: Problem) -> float:
    """Seconds before which no schedule of the problem's tasks can end.

    >>> from dovetail.vocabulary import Family, Kind, Member
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> lower_bound(Problem(cluster=cluster, families=(tasks,), options=(option,)))
    15.0
    """
    ends = _ends(problem.running)
    demands = _demands(problem, ends)
    if not demands:
        return 0.0
    busy = {
        kind.name: [ends.get(device.name, 0.0) for device in problem.cluster.of_kind(kind.name)]
        for kind in problem.cluster.kinds
    }
    volumes = [(demand.kinds, _Volume(demand, lambda option: option.count)) for demand in demands]
    simple = (_alone(demands), _area(volumes, busy, target=math.inf), _shared(demands, problem.cluster))
    return _tighten(volumes, busy, low=max(simple))


def _tighten(volumes: _Volumes, busy: Mapping[str, list[float]], *, low: float) -> float:
    """A larger bound where the options that need the least area are too slow to end by the bound."""

    def passes(target: float) -> bool:
        return _area(volumes, busy, target=target) <= target

    if passes(low):
        return low
    high = 2 * low
    while not passes(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return low


def _alone(demands: Iterable[_Demand]) -> float:
    """When the longest task could end at the earliest, had it the cluster for itself beside what runs."""
    longest = ((demand, max(demand.steps)) for demand in demands)
    return max(min(way.ready_seconds + way.seconds(steps) for way in demand.ways) for demand, steps in longest)


def _area(volumes: _Volumes, busy: Mapping[str, list[float]], *, target: float) -> float:
    """When the devices have offered the seconds that tasks need, with options that end by the target."""
    needed = [(kinds, volume.by(target)) for kinds, volume in volumes]
    return max(
        _fill(
            sum(seconds for other, seconds in needed if other <= kinds),
            [seconds for kind in sorted(kinds) for seconds in busy[kind]],
        )
        for kinds in {kinds for kinds, _ in needed}
    )


def _shared(demands: list[_Demand], cluster: Cluster) -> float:
    """When the memory and the cores of all nodes have offered the byte-seconds and core-seconds that tasks need."""
    memory_bytes, cores = sum(node.memory_bytes for node in cluster.nodes), sum(node.cores for node in cluster.nodes)
    bytes_used = sum(_Volume(demand, lambda option: option.host_bytes).least for demand in demands)
    cores_used = sum(_Volume(demand, lambda option: option.cores).least for demand in demands)
    return max(bytes_used / memory_bytes if memory_bytes else 0.0, cores_used / cores if cores else 0.0)


def _fill(volume: float, busy_until: Iterable[float]) -> float:
    """The least T with Σ max(0, T - busy) over devices >= volume."""
    spent = level = 0.0
    devices = 0
    for seconds in sorted(busy_until):
        if spent + devices * (seconds - level) >= volume:
            break
        spent, level, devices = spent + devices * (seconds - level), seconds, devices + 1
    return level + (volume - spent) / devices if devices else 0.0


def _demands(problem: Problem, ends: Mapping[str, float]) -> list[_Demand]:
    """What is to be done, with the options that an empty node could hold."""
    ways: dict[str, list[_Way]] = defaultdict(list)
    for option in problem.options:
        if misfit(option, problem.cluster) is None:
            ready_seconds = _ready_seconds(option, problem.cluster, ends)
            for family, step_seconds in zip(option.families, option.step_seconds, strict=True):
                ways[family].append(_Way(option=option, step_seconds=step_seconds, ready_seconds=ready_seconds))
    steps = {family.name: Counter(m.steps for m in family.members if m.steps > 0) for family in problem.families}
    return [_Demand(steps=steps[name], ways=tuple(ways[name])) for name in sorted(steps) if steps[name] and ways[name]]


def _ready_seconds(option: Option, cluster: Cluster, ends: Mapping[str, float]) -> float:
    """When enough devices of one node, or of as many as it goes over, are free of what runs now for this option."""
    by_node: dict[str, list[float]] = defaultdict(list)
    for device in cluster.of_kind(option.kind):
        by_node[device.node].append(ends.get(device.name, 0.0))
    count = option.count_on_node
    ready = sorted(sorted(ends)[count - 1] for ends in by_node.values() if len(ends) >= count)
    return ready[option.nodes - 1]


def _ends(running: Iterable[Placement]) -> dict[str, float]:
    """When each device that is busy now is free."""
    ends: dict[str, float] = {}
    for placement in running:
        for device in placement.devices:
            ends[device] = max(ends.get(device, 0.0), placement.end_seconds)
    return ends
