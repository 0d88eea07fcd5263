"""Schedules for the objectives other than the makespan, each with what is proven of it.

Each starts from a relaxation that says which modes to prefer and when (`rents` where the ends of all tasks count, a
linear program where money does, the cheapest tasks where the first results do), goes on with list schedules and
small changes, and where there are few enough activities ends with CP-SAT, asked to minimise (`goals`).
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from dovetail.planning.schedule.joint.earliest import earliest
from dovetail.planning.schedule.joint.exact import PRECISION, narrow
from dovetail.planning.schedule.joint.fitting import Fitting
from dovetail.planning.schedule.joint.goals import settle
from dovetail.planning.schedule.joint.judging import Judge
from dovetail.planning.schedule.joint.modes import Table
from dovetail.planning.schedule.joint.packing import Begun, InTurn, as_room_is
from dovetail.planning.schedule.joint.parts import parts, whole
from dovetail.planning.schedule.joint.relaxation import relax, relax_money
from dovetail.planning.schedule.joint.search import from_amounts, heuristic, improve, list_schedule, makespan
from dovetail.vocabulary import NoFeasiblePlan, Objective
from dovetail.vocabulary.units import show_seconds

# An item is judged in about 60 microseconds.
_TRIED_ITEMS, _MOST_TRIES, _MOST_WORK, _FEW = 5_000, 2_000, 10.0, 200
_TURNS, _MOST_TURNS = 40, 300
# Which of the tasks get more devices than the fewest, from those that matter most to all.
_WIDE_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
# In a table of so many modes a turn takes a tenth of a second.
_SOME_MODES, _MANY_MODES = 300, 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Aimed:
    """The best schedule known for an objective, what it comes to and what is proven of that; `bound` zero: nothing.

    >>> Aimed(begun=(), value=1.0, bound=0.5).bound
    0.5
    """

    begun: tuple[Begun, ...]
    value: float
    bound: float


def aim(table: Table, objective: Objective, *, work: float) -> Aimed:
    """The best schedule for an objective that `work` finds, and its bound.

    >>> from dovetail.vocabulary import Cluster
    >>> nothing = Table(cluster=Cluster(kinds=(), nodes=(), devices=()), running=(), groups=(), modes=(), shapes=())
    >>> aim(nothing, Objective(name="mean"), work=1.0).value
    0.0
    """
    judge = Judge(table, objective)
    if not table.groups:
        return Aimed(begun=(), value=0.0, bound=0.0)
    begin = {"first": _first_results, "spend": _spending}.get(objective.name, _all_ends)
    found = begin(judge, work)
    if work > 0 and found.value - found.bound > PRECISION * found.bound:
        begun, bound = settle(judge, found.begun, bound=found.bound, work=work)
        begun = whole(judge, begun)
        if judge.value(begun) < found.value:
            found = dataclasses.replace(found, begun=tuple(begun), value=judge.value(begun))
        found = dataclasses.replace(found, bound=max(found.bound, bound))
    return dataclasses.replace(found, bound=min(found.bound, found.value))


def _all_ends(judge: Judge, work: float) -> Aimed:
    """Mean and weighted ends, and the expected time to a target: starts that rents suggest, then small changes."""
    # Here, because it loads NumPy, which only these objectives need and not whoever imports planning.
    from dovetail.planning.schedule.joint.rents import rent

    table = judge.table
    frugal = from_amounts(table, [0.0] * len(table.modes))
    best = _best(judge, [list_schedule(table, frugal), _scheduled(judge, _by_weight(judge, frugal))])
    horizon, known = makespan(table, best), _sum_of_ends(judge, best)
    turns = _TURNS if len(table.modes) > _MANY_MODES else min(_MOST_TURNS, int(_TURNS * (1 + work)))
    rented = rent(judge, horizon_seconds=horizon, known=known, turns=turns)
    candidates = [best, _scheduled(judge, _by_choice(judge, rented.choices)), *_shortest_first(judge)]
    # The best two: small changes lead to other places from each.
    best = _best(judge, [changed(judge, each, work) for each in sorted(candidates, key=judge.value)[:2]])
    if judge.objective.name == "target":
        bound = _target_bound(judge)
    else:
        bound = rented.bound / judge.weight
    return Aimed(begun=tuple(best), value=judge.value(best), bound=bound)


def _shortest_first(judge: Judge) -> Iterator[Sequence[Begun]]:
    """Tasks by their seconds, the first of them on up to so many devices each and the others on the fewest."""
    table = judge.table
    alone: dict[int, list[int]] = defaultdict(list)
    for number in sorted(range(len(table.modes)), key=lambda n: (table.modes[n].seconds, n)):
        if len(table.modes[number].groups) == 1:
            alone[table.modes[number].groups[0]].append(number)
    if len(alone) < len(table.groups):
        return
    frugal = {group: min(modes, key=lambda n: (table.modes[n].area, n)) for group, modes in alone.items()}
    for most in sorted({mode.option.count for mode in table.modes}):
        fastest = {
            group: next((n for n in modes if table.modes[n].option.count <= most), frugal[group])
            for group, modes in alone.items()
        }
        order = sorted(
            fastest,
            key=lambda group: (
                table.modes[fastest[group]].seconds / table.groups[group].weight
                if table.groups[group].weight
                else math.inf,
                group,
            ),
        )
        tasks = [group for group in order for _ in table.groups[group].tasks]
        for share in _WIDE_SHARES:
            wide = math.ceil(share * len(tasks))
            chosen = [fastest[group] for group in tasks[:wide]] + [frugal[group] for group in tasks[wide:]]
            yield InTurn(table).schedule(chosen) if InTurn.applies(table) else as_room_is(table, chosen)


def _first_results(judge: Judge, work: float) -> Aimed:
    """The tasks that take least, as short as they can be, and then the others."""
    table, wanted = judge.table, judge.objective.results - len(judge.running_ends)
    candidates = [
        whole(judge, heuristic(part, relax(part, low_seconds=0.0), work=min(work, 2.0)), numbers)
        for part, numbers in parts(table, max(1, min(wanted, table.tasks)))
    ]
    best = changed(judge, _best(judge, candidates), work)
    return Aimed(begun=tuple(best), value=judge.value(best), bound=_rank_bound(judge, judge.objective.results))


def _target_bound(judge: Judge) -> float:
    """The sum over ranks of what is proven of each; in large tables of a few, since no later rank is sooner."""
    ranks = [each for each in judge.ranks(judge.table.tasks + len(judge.running_ends)) if each[1] > 1e-9]
    step = 1.5 if len(judge.table.modes) > _SOME_MODES else 1.0
    bound = proven = 0.0
    due = 1
    for rank, share in ranks:
        if rank >= due:
            proven, due = max(proven, _rank_bound(judge, rank)), max(rank + 1, math.ceil(step * rank))
        bound += share * proven
    return bound


def _rank_bound(judge: Judge, rank: int) -> float:
    """When so many have ended at the earliest, what runs now counted in."""
    table, fastest = judge.table, [math.inf] * len(judge.table.groups)
    for number, mode in enumerate(table.modes):
        for group, end in zip(mode.groups, judge.ends[number], strict=True):
            fastest[group] = min(fastest[group], end)
    alone = [end for end, need in zip(fastest, table.needs, strict=True) for _ in range(need)]
    ends = sorted([*judge.running_ends, *alone])
    return max(ends[rank - 1], earliest(table, rank - len(judge.running_ends)))


def _spending(judge: Judge, work: float) -> Aimed:
    """The cheapest modes that fit by the deadline; the shortest schedule where that is all that does."""
    table, deadline = judge.table, judge.objective.deadline_seconds
    relaxed = relax_money(table, judge.spends, deadline_seconds=deadline)
    candidates: list[Sequence[Begun]] = []
    order = from_amounts(table, relaxed.amounts or [0.0] * len(table.modes))
    candidates.append(list_schedule(table, order))
    if InTurn.applies(table):
        fitting = Fitting(table, prices=judge.spends)
        tries = min(_MOST_TRIES, int(_TRIED_ITEMS * (1 + min(work, _MOST_WORK))) // len(order) + 5)
        met = fitting.meet(fitting.by_area(order), target_seconds=deadline, changes=tries)
        candidates += [met] if met is not None else []
    if all(judge.value(each) == math.inf for each in candidates):
        candidates.append(_in_time(judge, work))
    best = changed(judge, _best(judge, candidates), work)
    return Aimed(begun=tuple(best), value=judge.value(best), bound=relaxed.bound_seconds)


def _in_time(judge: Judge, work: float) -> Sequence[Begun]:
    """A schedule that ends by the deadline, found by making it short; the refusal where none is."""
    table, deadline = judge.table, judge.objective.deadline_seconds
    relaxed = relax(table, low_seconds=0.0)
    found = narrow(
        table, heuristic(table, relaxed, work=work), bound_seconds=relaxed.bound_seconds, work=max(work, 1.0)
    )
    shortest = makespan(table, found.begun)
    if shortest <= deadline * (1 + 1e-9):
        return found.begun
    proof = "no schedule does" if found.bound_seconds > deadline else "none was found"
    raise NoFeasiblePlan(
        f"everything must end by the deadline of {show_seconds(deadline)}, and {proof}: the shortest found takes "
        f"{show_seconds(shortest)} and none takes less than {show_seconds(found.bound_seconds)}. "
        "Give a later deadline, fewer tasks or more devices."
    )


def _best(judge: Judge, candidates: Sequence[Sequence[Begun]]) -> Sequence[Begun]:
    return min(candidates, key=judge.value)


def _scheduled(judge: Judge, order: Sequence[int]) -> Sequence[Begun]:
    found: list[Sequence[Begun]] = [as_room_is(judge.table, order)]
    if InTurn.applies(judge.table):
        found.append(InTurn(judge.table).schedule(order))
    return _best(judge, found)


def changed(judge: Judge, begun: Sequence[Begun], work: float) -> Sequence[Begun]:
    """The best of many small changes, for lists in which they can be seen."""
    table = judge.table
    order = [each.mode for each in sorted(begun, key=lambda each: (each.start_seconds, each.devices))]
    if len(order) > _FEW or judge.value(begun) == math.inf:
        return begun
    tries = min(_MOST_TRIES, int(_TRIED_ITEMS * (1 + min(work, _MOST_WORK))) // len(order))
    in_turn = InTurn(table) if InTurn.applies(table) else None

    def measure(order: Sequence[int]) -> float:
        return judge.value(in_turn.schedule(order) if in_turn is not None else as_room_is(table, order))

    better = improve(table, order, changes=tries, enough_seconds=0.0, measure=measure)
    return _best(judge, [begun, _scheduled(judge, better)])


def _by_weight(judge: Judge, order: Sequence[int]) -> list[int]:
    """Smith's rule: the least device-seconds for each unit of weight first."""
    return sorted(order, key=lambda n: (judge.table.modes[n].area / max(judge.weights[n], 1e-300), n))


def _by_choice(judge: Judge, choices: Sequence[tuple[int, float]]) -> list[int]:
    """The modes that groups chose, in the order of their starts; what they leave uncovered is covered frugally."""
    table = judge.table
    amounts, starts = [0.0] * len(table.modes), dict.fromkeys(range(len(table.modes)), math.inf)
    for group, (mode, start) in enumerate(choices):
        amounts[mode] = max(amounts[mode], len(table.groups[group].tasks) / table.modes[mode].covers[group])
        starts[mode] = min(starts[mode], start)
    order = from_amounts(table, amounts)
    return sorted(order, key=lambda n: (starts[n], judge.table.modes[n].area / max(judge.weights[n], 1e-300), n))


def _sum_of_ends(judge: Judge, begun: Sequence[Begun]) -> float:
    groups = judge.table.groups
    return sum(
        groups[group].weight * (each.start_seconds + end)
        for each in begun
        for group, end in zip(judge.table.modes[each.mode].groups, judge.ends[each.mode], strict=True)
    )
