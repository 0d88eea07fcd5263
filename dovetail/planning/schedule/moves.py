"""Whether something that runs should be stopped, saved and placed anew. Knows plans; stops nothing."""

import contextlib
import dataclasses
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from dovetail.planning.problem import Problem
from dovetail.planning.schedule.judges import value_of_ends
from dovetail.planning.schedule.worth import WORKER_SECONDS, WORTH
from dovetail.vocabulary import Family, Member, NoFeasiblePlan, Objective, Option, Placement, Plan, Schedule, TaskId

# Only what ends last holds the others up, so few are worth asking about; each costs a plan.
_ASKED = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running placement that should be placed anew, and what the objective would come to with and without.

    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(0.5,))
    >>> placement = Placement(tasks=("a",), steps=(4,), option=option, devices=("n0:0",), start_seconds=0.0,
    ...                       duration_seconds=2.0)
    >>> Move(placement=placement, before=10.0, after=7.0).gain
    3.0
    """

    placement: Placement
    before: float
    after: float

    @property
    def gain(self) -> float:
        """What it saves, moving counted in: seconds, or money."""
        return self.before - self.after


def best_move(problem: Problem, *, planner: Callable[[Problem], Plan]) -> Move | None:
    """The move by which the problem's objective comes to least, if that is less by more than predictions are worth.

    Here the families' members include the tasks that run, with the steps they have left. A task that moves pays the
    start of its new option, and that of its old one again: what was measured for building, saving and loading it, and
    a new process. What takes longer than was measured where it runs does so in other ways on that kind, too.

    >>> from dovetail.planning import PLANNERS
    >>> from dovetail.vocabulary import Cluster, Kind, Member
    >>> cluster = Cluster.uniform(Kind(name="h200", processor="cuda"), devices_per_node=2)
    >>> one = Option(families=("f",), technique="resident", kind="h200", count=1, step_seconds=(4.0,),
    ...              start_seconds=5.0)
    >>> two = dataclasses.replace(one, technique="replicate", count=2, step_seconds=(2.0,))
    >>> runs = Placement(tasks=("a",), steps=(100,), option=one, devices=(cluster.devices[0].name,),
    ...                  start_seconds=-20.0, duration_seconds=420.0)
    >>> family = Family(name="f", members=(Member(task="a", steps=100),))
    >>> problem = Problem(cluster=cluster, families=(family,), options=(one, two), running=(runs,))
    >>> best_move(problem, planner=PLANNERS["list"]).after
    214.0
    """
    able = list(_with_others(problem))
    if not able:
        return None
    before, found = _value(problem, None, planner), list[Move]()
    for each in heapq.nlargest(_ASKED, able, key=lambda placement: placement.end_seconds):
        with contextlib.suppress(NoFeasiblePlan):  # with this one moved some deadline could not be kept
            found.append(Move(placement=each, before=before, after=_value(problem, each, planner)))
    best = max(found, key=lambda move: move.gain, default=None)
    return best if best is not None and best.gain > WORTH * before else None


def _with_others(problem: Problem) -> Iterator[Placement]:
    """What runs and could run in another way. What has not run for as long as it takes to start stays for now."""
    families = {member.task: family.name for family in problem.families for member in family.members}
    ways: dict[str, set[tuple[str, str, int]]] = {}
    for option in problem.options:
        for family in option.families:
            ways.setdefault(family, set()).add(_way(option))
    for placement in problem.running:
        if -placement.start_seconds <= placement.option.start_seconds:
            continue
        if any(ways.get(families.get(task, ""), set()) - {_way(placement.option)} for task in placement.tasks):
            yield placement


def _value(problem: Problem, moved: Placement | None, planner: Callable[[Problem], Plan]) -> float:
    """What the objective comes to with all that runs counted in, one placement of it placed anew."""
    left, objective = _only(problem, moved=moved), Objective.parse(problem.objective)
    schedule = planner(left).schedule if left.families else Schedule(placements=())
    assert schedule is not None
    if objective.name == "spend":
        prices = {kind.name: kind.price_per_hour / 3600 for kind in problem.cluster.kinds}
        taken = [(each.option, each.end_seconds) for each in left.running]
        taken += [(each.option, each.duration_seconds) for each in schedule.placements]
        return sum(prices[option.kind] * option.count * seconds for option, seconds in taken)
    members = {member.task: member for family in problem.families for member in family.members}
    ends = [end for each in left.running for end in _running_ends(each, members)]
    for placement in schedule.placements:
        times = zip(placement.tasks, placement.steps, placement.option.step_seconds, strict=True)
        begin = placement.start_seconds + placement.option.start_seconds
        ends += [(task, begin + steps * seconds) for task, steps, seconds in times]
    weights = [members[task].weight if task in members else 1.0 for task, _ in ends]
    return value_of_ends(objective, [end for _, end in ends], weights)


def _running_ends(placement: Placement, members: Mapping[TaskId, Member]) -> list[tuple[TaskId, float]]:
    """When each task of what runs ends that has not yet; all of them with the placement where nothing says so."""
    left = [members[task] for task in placement.tasks if task in members]
    if not left:
        return [(task, placement.end_seconds) for task in placement.tasks]
    pace, seconds = _pace(placement, left), dict(zip(placement.tasks, placement.option.step_seconds, strict=True))
    return [(member.task, pace * member.steps * seconds[member.task]) for member in left]


def _only(problem: Problem, *, moved: Placement | None) -> Problem:
    """The problem with what runs left where it is, but for one placement, whose tasks are to be placed anew."""
    running = tuple(placement for placement in problem.running if placement is not moved)
    busy = {task for placement in problem.running for task in placement.tasks}
    families: list[Family] = []
    options = list(problem.options)
    for family in problem.families:
        if staying := tuple(member for member in family.members if member.task not in busy):
            families.append(dataclasses.replace(family, members=staying))
        if moved and (moving := tuple(member for member in family.members if member.task in moved.tasks)):
            name = f"{family.name} (moved)"
            families.append(Family(name=name, members=moving))
            pace = _pace(moved, moving)
            alone = [option for option in problem.options if option.families == (family.name,)]
            others = [option for option in alone if _way(option) != _way(moved.option)]
            options += [_dearer(option, name, moved.option, pace) for option in others or alone]
    return dataclasses.replace(problem, families=tuple(families), options=tuple(options), running=running)


def _pace(moved: Placement, members: Iterable[Member]) -> float:
    """How many times longer a placement takes for what is left than its option says."""
    seconds = dict(zip(moved.tasks, moved.option.step_seconds, strict=True))
    return moved.end_seconds / max(member.steps * seconds[member.task] for member in members)


def _dearer(option: Option, family: str, old: Option, pace: float) -> Option:
    (seconds,) = option.step_seconds
    return dataclasses.replace(
        option,
        families=(family,),
        step_seconds=(seconds * pace if option.kind == old.kind else seconds,),
        start_seconds=option.start_seconds + old.start_seconds + WORKER_SECONDS,
    )


def _way(option: Option) -> tuple[str, str, int]:
    return option.technique, option.kind, option.count
