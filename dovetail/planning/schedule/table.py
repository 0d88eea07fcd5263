"""A problem in the numbers of scheduling: groups of equal tasks, the modes that cover them, and starts of modes.

A *group* holds the tasks of one family with equal steps left and one deadline: they are interchangeable, so planners
count them. A *mode* is an option for tasks of certain groups, one for each family of the option, with its seconds.
Modes whose options draw the same from a node share a *shape*, which is all that packing needs to know of them.
"""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.problem import Problem
from dovetail.planning.room import shared_needs, shared_sizes
from dovetail.vocabulary import Cluster, InvalidRecord, NoFeasiblePlan, Objective, Option, Placement, Rejection, TaskId
from dovetail.vocabulary.units import show_bytes

# An option of a gang is offered for every choice of its members up to so many; beyond, for neighbours by steps only.
_CHOICES = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equal tasks of a family, with one deadline; the weight tells tasks apart only where the objective reads it."""

    family: str
    steps: int
    tasks: tuple[TaskId, ...]
    weight: float = 1.0
    due_seconds: float = math.inf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """An option for a task of each of the `groups`, in the order of the option's families.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(1.0,))
    >>> Mode(option=option, groups=(0,), seconds=10.0, shape=0).area
    20.0
    """

    option: Option
    groups: tuple[int, ...]
    seconds: float
    shape: int

    @property
    def area(self) -> float:
        """How many device-seconds it takes."""
        return self.seconds * self.option.count

    def ends(self, groups: Sequence[Group]) -> tuple[float, ...]:
        """How long after its start each of its tasks ends: in a gang some end before the others."""
        if len(self.groups) == 1:
            return (self.seconds,)
        pairs = zip(self.option.step_seconds, self.groups, strict=True)
        return tuple(self.option.start_seconds + seconds * groups[group].steps for seconds, group in pairs)

    @property
    def covers(self) -> Counter[int]:
        """How many tasks of each group it covers."""
        return Counter(self.groups)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The problem in numbers. `is_complete` says that every choice of members of every gang is among the modes, so
    that what cannot be done with them cannot be done; `only_devices_bind`, that no node's memory, disk or cores can run
    short before its devices do, and that nothing goes over several nodes, so that planners need not count either."""

    cluster: Cluster
    running: tuple[Placement, ...]
    groups: tuple[Group, ...]
    modes: tuple[Mode, ...]
    shapes: tuple[Option, ...]
    is_complete: bool = True
    only_devices_bind: bool = True

    @property
    def tasks(self) -> int:
        """How many tasks there are to place."""
        return sum(len(group.tasks) for group in self.groups)

    @property
    def needs(self) -> list[int]:
        """How many tasks each group has."""
        return [len(group.tasks) for group in self.groups]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A mode that starts on devices: what becomes a placement if its schedule is the best."""

    mode: int
    start_seconds: float
    devices: tuple[int, ...]


def makespan(table: Table, starts: Iterable[Start]) -> float:
    """When the last of them ends.

    >>> makespan(Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=()), [])
    0.0
    """
    return max((each.start_seconds + table.modes[each.mode].seconds for each in starts), default=0.0)


def task_names(table: Table, starts: Iterable[Start]) -> list[tuple[TaskId, ...]]:
    """The tasks of each start, in the order given: which of equal ones goes where makes no difference."""
    used: Counter[int] = Counter()
    named = []
    for each in starts:
        tasks = []
        for group in table.modes[each.mode].groups:
            tasks.append(table.groups[group].tasks[used[group]])
            used[group] += 1
        named.append(tuple(tasks))
    return named


def without_deadlines(table: Table) -> Table:
    """The table as it would be if no task had a deadline: the same groups and modes under the same numbers."""
    groups = tuple(dataclasses.replace(group, due_seconds=math.inf) for group in table.groups)
    return dataclasses.replace(table, groups=groups)


def tabulate(problem: Problem) -> Table:
    """The table of a problem whose options all fit the cluster: the same for any order in which it is written.

    Raises `NoFeasiblePlan` where a task has no option, and `InvalidRecord` where seconds are no finite numbers.

    >>> from dovetail.vocabulary import Family, Kind, Member
    >>> pair = Option(families=("f", "f"), technique="fuse", kind="cpu", count=1, step_seconds=(1.0, 1.0))
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=10) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    >>> single = dataclasses.replace(pair, families=("f",), step_seconds=(1.0,))
    >>> table = tabulate(Problem(cluster=cluster, families=(tasks,), options=(pair, single)))
    >>> [(mode.groups, mode.seconds) for mode in table.modes]
    [((0,), 10.0), ((0, 0), 10.0)]
    """
    groups = _groups(problem)
    by_family: dict[str, list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        by_family[group.family].append(number)
    wanted = [option for option in _sorted(problem.options) if all(name in by_family for name in option.families)]
    shapes: dict[tuple[object, ...], int] = {}
    modes, is_complete = [], True
    for option in wanted:
        _refuse_unless_finite(option)
        choices, is_every = _choices(option, groups, by_family)
        is_complete &= is_every
        shape = shapes.setdefault(_shape(option), len(shapes))
        modes += [_mode(option, choice, groups, shape) for choice in choices]
    _refuse_uncovered(groups, modes, problem)
    first = {mode.shape: mode.option for mode in reversed(modes)}
    drawing = [*first.values(), *(placement.option for placement in problem.running)]
    return Table(
        cluster=problem.cluster,
        running=problem.running,
        groups=groups,
        modes=_undominated(modes),
        shapes=tuple(first.get(number, wanted[0]) for number in range(len(shapes))),
        is_complete=is_complete,
        only_devices_bind=_only_devices_bind(problem.cluster, drawing),
    )


def _only_devices_bind(cluster: Cluster, options: Iterable[Option]) -> bool:
    """Whether all devices of every node, each used by whatever draws most for a device, leave enough of the rest."""
    most: dict[str, list[float]] = {kind.name: [0.0, 0.0, 0.0] for kind in cluster.kinds}
    for option in options:
        if option.nodes > 1:
            return False
        pairs = zip(most[option.kind], shared_needs(option), strict=True)
        most[option.kind] = [max(high, needed / option.count) for high, needed in pairs]
    drawn: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for device in cluster.devices:
        drawn[device.node] = [total + each for total, each in zip(drawn[device.node], most[device.kind], strict=True)]
    # The share is for the rounding of quotients.
    return all(
        total <= size * (1 + 1e-12)
        for node in cluster.nodes
        for total, size in zip(drawn[node.name], shared_sizes(node), strict=True)
    )


def _groups(problem: Problem) -> tuple[Group, ...]:
    tasks: dict[tuple[str, int, float, float], list[TaskId]] = defaultdict(list)
    is_weighted = Objective.parse(problem.objective).name == "weighted"
    for family in problem.families:
        for member in family.members:
            if member.steps > 0:
                weight = member.weight if is_weighted else 1.0
                tasks[family.name, member.steps, weight, member.deadline_seconds].append(member.task)
    return tuple(
        Group(family=name, steps=steps, weight=weight, due_seconds=due, tasks=tuple(sorted(each)))
        for (name, steps, weight, due), each in sorted(tasks.items(), key=lambda item: (item[0][0], -item[0][1], item))
    )


def _sorted(options: Sequence[Option]) -> list[Option]:
    """In an order of their own, each once: equal ones are next to each other, and hashing thousands takes longer."""
    ordered = sorted(options, key=_rank)
    return [option for number, option in enumerate(ordered) if not number or option != ordered[number - 1]]


def _rank(option: Option) -> tuple[object, ...]:
    # Spelled out, because the text of a whole record takes ten times as long and there may be thousands.
    taken = (option.device_bytes, option.host_bytes, option.disk_bytes, option.cores, not option.measured)
    times = (option.step_seconds, option.start_seconds, option.link_bytes_per_second)
    knobs = repr(option.knobs) if option.knobs else ""
    return (option.families, option.technique, option.kind, option.count, *times, *taken, knobs)


def _shape(option: Option) -> tuple[object, ...]:
    taken = (option.host_bytes, option.disk_bytes, option.cores, option.link_bytes_per_second)
    return (option.kind, option.count, option.nodes, *taken)


def _refuse_unless_finite(option: Option) -> None:
    figures = (option.start_seconds, *option.step_seconds)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in figures):
        raise InvalidRecord(
            f"an option's seconds must be finite and at least 0, found start_seconds {option.start_seconds} and "
            f"step_seconds {option.step_seconds} for {option.technique} of {', '.join(option.families)} on "
            f"{option.count} × {option.kind}. Measure it again, or leave it out."
        )


def _choices(
    option: Option, groups: Sequence[Group], by_family: dict[str, list[int]]
) -> tuple[list[tuple[int, ...]], bool]:
    """The groups that can be the option's members, and whether that is every choice there is."""
    if len(option.families) == 1:
        return [(number,) for number in by_family[option.families[0]]], True
    slots = sorted(Counter(option.families).items())
    number_of_choices = math.prod(math.comb(len(by_family[family]) + times - 1, times) for family, times in slots)
    if number_of_choices > _CHOICES:
        return list(_neighbours(option, groups, by_family)), False
    parts = [itertools.combinations_with_replacement(by_family[family], times) for family, times in slots]
    return [choice for each in itertools.product(*parts) if (choice := _seated(option, each, groups))], True


def _seated(option: Option, parts: Sequence[tuple[int, ...]], groups: Sequence[Group]) -> tuple[int, ...]:
    """One group for each family of the option in its order, or nothing where a group has too few tasks."""
    flat = Counter(number for part in parts for number in part)
    if any(times > len(groups[number].tasks) for number, times in flat.items()):
        return ()
    # The member with the most steps takes the seat that is fastest.
    seats: dict[str, Iterator[int]] = {groups[part[0]].family: iter(sorted(part)) for part in parts}
    order = sorted(range(len(option.families)), key=lambda seat: option.step_seconds[seat])
    seated = {seat: next(seats[option.families[seat]]) for seat in order}
    return tuple(seated[seat] for seat in range(len(option.families)))


def _neighbours(option: Option, groups: Sequence[Group], by_family: dict[str, list[int]]) -> Iterator[tuple[int, ...]]:
    """Members next to each other by steps: a gang lasts as long as its longest, so these waste least."""
    slots = sorted(Counter(option.families).items())
    tasks = [[number for number in by_family[family] for _ in groups[number].tasks] for family, _ in slots]
    longest = max(len(each) for each in tasks)
    seen = set()
    for position in range(longest):
        parts = []
        for (_, times), each in zip(slots, tasks, strict=True):
            first = min(position * len(each) // longest, len(each) - times)
            parts.append(tuple(each[first : first + times]) if first >= 0 else ())
        if all(parts) and (choice := _seated(option, parts, groups)) and choice not in seen:
            seen.add(choice)
            yield choice


def _mode(option: Option, choice: tuple[int, ...], groups: Sequence[Group], shape: int) -> Mode:
    if len(choice) == 1:  # as `Option.seconds` has it, without what a gang needs: there may be tens of thousands
        seconds = option.start_seconds + option.step_seconds[0] * groups[choice[0]].steps
    else:
        seconds = option.seconds(tuple(groups[number].steps for number in choice))
    if not math.isfinite(seconds):
        raise InvalidRecord(f"a placement must take a finite time, {option.technique} of {option.families} takes more.")
    return Mode(option=option, groups=choice, seconds=seconds, shape=shape)


def _undominated(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    """Of modes for the same groups with the same shape, the fastest."""
    best: dict[tuple[tuple[int, ...], int], Mode] = {}
    for mode in modes:
        key = (mode.groups if len(mode.groups) == 1 else tuple(sorted(mode.groups)), mode.shape)
        if key not in best or mode.seconds < best[key].seconds:
            best[key] = mode
    return tuple(best.values())


def _refuse_uncovered(groups: Sequence[Group], modes: Sequence[Mode], problem: Problem) -> None:
    covered = {number for mode in modes for number in mode.groups}
    missing = [group for number, group in enumerate(groups) if number not in covered]
    if not missing:
        return
    measured = {family.name: family.measured_as for family in problem.families}
    lines = "\n".join(_refusal(group.tasks, measured[group.family], problem.rejections) for group in missing)
    raise NoFeasiblePlan(
        f"every task must have an option that fits the cluster, alone or in a gang whose other families have "
        f"tasks; these have none:\n{lines}\n"
        "Leave them out, allow other techniques (--techniques, techniques=), or add nodes that are large enough."
    )


def _refusal(tasks: Sequence[TaskId], family: str, rejections: Sequence[Rejection]) -> str:
    own = [each for each in rejections if family in each.families]
    reasons = [f"{each.technique} on {each.count} × {each.kind} {each.reason}" for each in own]
    unknown = f"nothing was measured of family {family!r} on the kinds of this cluster. Measure it first."
    return f"- {', '.join(map(repr, tasks))}: {' '.join(reasons or [unknown])}{_smallest_change(own)}"


def _smallest_change(rejections: Sequence[Rejection]) -> str:
    """Of what does not fit for want of memory, what lacks least."""
    short = [each for each in rejections if each.needed_bytes > 0]
    if not short:
        return ""
    least = min(short, key=lambda each: each.needed_bytes - each.free_bytes)
    lacking = show_bytes(least.needed_bytes - least.free_bytes)
    return (
        f" The smallest change that would fit it: {lacking} more for {least.technique} on {least.count} × {least.kind}."
    )
