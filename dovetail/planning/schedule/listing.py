"""The first planner: list schedules by longest time left, with the option of each task chosen by dual approximation.

For a target T each task may only use an option with which it ends by T (`planning/schedule/dispatch.py` makes that
schedule or says that it cannot). Bisection over T between the proven lower bound and the best plain schedule
then finds a small T: tight targets make tasks wide and fast, loose ones make them narrow and frugal. Hochbaum
and Shmoys (1987) for the idea; Ludwig and Tiwari (1994) for tasks whose number of devices is free.

Knows one task at a time: options of gangs with several families are left to the joint planner. It
promises a schedule that passes `planning/checker.py`, not the shortest.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from dovetail.planning.explanation import explain
from dovetail.planning.fitting import misfit
from dovetail.planning.problem import Problem
from dovetail.planning.schedule import joint
from dovetail.planning.schedule.bound import lower_bound
from dovetail.planning.schedule.dispatch import Lane, Queue, Started, dispatch
from dovetail.vocabulary import Cluster, Family, NoFeasiblePlan, Option, Placement, Plan, Schedule

# Bisection ends within this share of the bound: predictions are not better than that.
_PRECISE = 0.002
_COARSE = 0.01
# Up to here a schedule takes a few milliseconds, so more orders and closer targets are worth trying.
_FEW_TASKS = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The problem in the order and the numbers of list schedules."""

    cluster: Cluster
    running: tuple[Placement, ...]
    queues: tuple[Queue, ...]
    lanes: tuple[Lane, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A list schedule and when it ends."""

    started: list[Started]
    makespan_seconds: float


def plan(problem: Problem) -> Plan:
    """A schedule of every member with steps left, its lower bound, and why it is so.

    Raises `NoFeasiblePlan` where a member has no option that fits, naming each. Of deadlines it knows nothing: where
    its schedule keeps them it is as good with them, and else they are the joint planner's, one task at a time.

    >>> from dovetail.vocabulary import Kind, Member
    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,), cores=1)
    >>> two = Option(families=("f",), technique="resident", kind="cpu", count=2, step_seconds=(0.7,), cores=2)
    >>> tasks = Family(name="f", members=tuple(Member(task=name, steps=100) for name in "abc"))
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> made = plan(Problem(cluster=cluster, families=(tasks,), options=(one, two)))
    >>> made.schedule.makespan_seconds, made.bound_seconds, sorted(p.option.count for p in made.schedule.placements)
    (170.0, 150.0, [1, 1, 2])
    """
    refused = [(option, misfit(option, problem.cluster)) for option in problem.options]
    rejections = (*problem.rejections, *(rejection for _, rejection in refused if rejection is not None))
    problem = dataclasses.replace(
        problem, options=tuple(option for option, rejection in refused if rejection is None), rejections=rejections
    )
    table = _table(problem)
    bound_seconds = lower_bound(problem)
    schedule = _schedule(table, _search(table, bound_seconds=bound_seconds))
    due = problem.deadlines
    if any(each.end_seconds > due.get(each.tasks[0], math.inf) for each in schedule.placements):
        own = tuple(option for option in problem.options if len(option.families) == 1)
        return joint.plan(dataclasses.replace(problem, options=own), work=0.0)
    explanation = explain(problem, schedule)
    return Plan(schedule=schedule, bound_seconds=bound_seconds, rejections=rejections, explanation=explanation)


def _search(table: _Table, *, bound_seconds: float) -> _Found:
    """The best schedule over the orders of tasks; the first order wins ties."""
    few = sum(len(queue.members) for queue in table.queues) <= _FEW_TASKS
    orders = (_by_time, _by_area) if few else (_by_time,)
    precision = _PRECISE if few else _COARSE
    found = [_bisect(order(table), bound_seconds=bound_seconds, precision=precision) for order in orders]
    return min(found, key=lambda each: each.makespan_seconds)


def _bisect(table: _Table, *, bound_seconds: float, precision: float) -> _Found:
    """The best of the plain schedules and of those for targets between the bound and them."""
    best = _plain(table)
    # The bound itself comes first: where it can be met, nothing is better and the search is over.
    low = target = bound_seconds
    while best.makespan_seconds - low > precision * bound_seconds:
        found = _attempt(table, target_seconds=target)
        if found is not None and found.makespan_seconds < best.makespan_seconds:
            best = found
        else:
            low = target
        target = (low + best.makespan_seconds) / 2
    return best


def _plain(table: _Table) -> _Found:
    """The better of two: every task with its smallest area, and every task as fast as it goes."""
    frugal = dataclasses.replace(table, lanes=_only_least(table.lanes, _areas))
    # A list schedule never idles entirely, so one task after another is the latest that it can end.
    running_seconds = max([0.0, *(placement.end_seconds for placement in table.running)])
    latest = running_seconds + sum(seconds for lane in table.lanes for seconds in lane.seconds)
    first = _attempt(frugal, target_seconds=latest)
    assert first is not None, "a list schedule without a target must place every task"
    fast = dataclasses.replace(table, lanes=_only_least(table.lanes, _seconds))
    area = sum(map(sum, _least(fast.lanes, _areas).values()))
    if area > first.makespan_seconds * len(table.cluster.devices):
        return first  # all devices together could not do it sooner
    second = _attempt(fast, target_seconds=first.makespan_seconds)
    return second if second is not None and second.makespan_seconds < first.makespan_seconds else first


def _attempt(table: _Table, *, target_seconds: float) -> _Found | None:
    """The list schedule for a target, or None where it cannot be met."""
    started = dispatch(
        table.queues,
        lanes=table.lanes,
        cluster=table.cluster,
        running=table.running,
        target_seconds=target_seconds,
    )
    if started is None:
        return None
    ends = (each.start_seconds + table.lanes[each.lane].seconds[each.position] for each in started)
    return _Found(started=started, makespan_seconds=max(ends, default=0.0))


def _only_least(lanes: tuple[Lane, ...], measure: Callable[[Lane], tuple[float, ...]]) -> tuple[Lane, ...]:
    """Lanes that each member may use only where the measure is least for it."""
    least = _least(lanes, measure)
    return tuple(
        dataclasses.replace(
            lane,
            seconds=tuple(
                seconds if each <= lowest else math.inf
                for seconds, each, lowest in zip(lane.seconds, measure(lane), least[lane.queue], strict=True)
            ),
        )
        for lane in lanes
    )


def _least(lanes: Iterable[Lane], measure: Callable[[Lane], tuple[float, ...]]) -> dict[int, tuple[float, ...]]:
    """For each queue and member the least of a measure over its lanes."""
    columns: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for lane in lanes:
        columns[lane.queue].append(measure(lane))
    return {queue: tuple(map(min, zip(*rows, strict=True))) for queue, rows in columns.items()}


def _seconds(lane: Lane) -> tuple[float, ...]:
    return lane.seconds


def _areas(lane: Lane) -> tuple[float, ...]:
    return tuple(seconds * lane.option.count for seconds in lane.seconds)


def _by_time(table: _Table) -> _Table:
    """The task first that takes longest even with its fastest option: it has the least time to wait."""
    return _ranked(table, _seconds)


def _by_area(table: _Table) -> _Table:
    """The task first that needs the most device-seconds even when frugal: wide gangs before what fills gaps."""
    return _ranked(table, _areas)


def _ranked(table: _Table, measure: Callable[[Lane], tuple[float, ...]]) -> _Table:
    ranks = _least(table.lanes, measure)
    queues = tuple(dataclasses.replace(queue, ranks=ranks[number]) for number, queue in enumerate(table.queues))
    return dataclasses.replace(table, queues=queues)


def _table(problem: Problem) -> _Table:
    """Families by name, members by steps left and name, options by what they are: the same for any order given."""
    families = [_with_steps_left(family) for family in sorted(problem.families, key=lambda family: family.name)]
    families = [family for family in families if family.members]
    own = {family.name: _own_options(problem.options, family.name) for family in families}
    _refuse_if_any([family for family in families if not own[family.name]], problem)
    lanes = tuple(
        Lane(queue=number, option=option, seconds=tuple(option.seconds((each.steps,)) for each in family.members))
        for number, family in enumerate(families)
        for option in own[family.name]
    )
    fastest = _least(lanes, _seconds)
    queues = tuple(
        Queue(members=family.members, fastest=fastest[number], ranks=fastest[number])
        for number, family in enumerate(families)
    )
    return _Table(cluster=problem.cluster, running=problem.running, queues=queues, lanes=lanes)


def _with_steps_left(family: Family) -> Family:
    # A member without steps left has nothing to be placed for.
    left = [member for member in family.members if member.steps > 0]
    return Family(name=family.name, members=tuple(sorted(left, key=lambda member: (-member.steps, member.task))))


def _own_options(options: Iterable[Option], family: str) -> list[Option]:
    # Gangs of several families are the joint planner's: a list of single tasks cannot weigh them.
    own = {option for option in options if option.families == (family,)}
    return sorted(own, key=lambda option: (option.technique, option.kind, option.count, repr(option)))


def _refuse_if_any(families: Sequence[Family], problem: Problem) -> None:
    if not families:
        return
    count = sum(len(family.members) for family in families)
    lines = "\n".join(_refusal(family, problem) for family in families)
    raise NoFeasiblePlan(
        f"every task must have an option that fits the cluster; {count} "
        f"{'has' if count == 1 else 'have'} none:\n{lines}\n"
        f"Leave {'it' if count == 1 else 'them'} out, allow other techniques (--techniques, "
        "techniques=), or add nodes that are large enough."
    )


def _refusal(family: Family, problem: Problem) -> str:
    """The tasks of a family and each reason why nothing holds them."""
    names = ", ".join(repr(name) for name in sorted(member.task for member in family.members))
    reasons = [
        f"{each.technique} on {each.count} × {each.kind} {each.reason}"
        for each in problem.rejections
        if each.families == (family.name,)
    ]
    if any(family.name in option.families for option in problem.options):
        reasons.append(
            "the options that fit run it in a gang with other families, which planner 'list' does not place."
        )
    if not reasons:
        reasons.append(
            f"nothing was measured of family {family.name!r} on the kinds of this cluster. Measure it first."
        )
    return f"- {names}: {' '.join(reasons)}"


def _schedule(table: _Table, found: _Found) -> Schedule:
    return Schedule(placements=tuple(_placement(table, started) for started in found.started))


def _placement(table: _Table, started: Started) -> Placement:
    lane = table.lanes[started.lane]
    member = table.queues[lane.queue].members[started.position]
    return Placement(
        tasks=(member.task,),
        steps=(member.steps,),
        option=lane.option,
        devices=tuple(table.cluster.devices[device].name for device in started.devices),
        start_seconds=started.start_seconds,
        duration_seconds=lane.seconds[started.position],
    )
