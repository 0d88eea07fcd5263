"""What each objective brings to the pipeline: the relaxation that bounds it, and the list schedules to begin with.

| objective | bound | lists |
|---|---|---|
| makespan | linear program over the modes, or prices (`relaxation`) | its modes, each task where it ends first |
| mean, weighted | Lagrangian over time (`lagrangian`) | the starts that it suggests, Smith's rule, shortest first |
| target | the cheapest tasks, rank by rank (`first_results`) | as for the mean |
| first | the cheapest tasks (`first_results`) | those that take least as short as they can be, then the others |
| spend | linear program over money (`relaxation`) | the cheapest modes that fit by the deadline |
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from dovetail.planning.schedule.exact import PRECISION, close_gap
from dovetail.planning.schedule.first_results import complete, rank_bound, restrict_to_first, target_bound
from dovetail.planning.schedule.improve import IMPROVE_SECONDS, IMPROVE_SHARE, improve
from dovetail.planning.schedule.judges import Judge
from dovetail.planning.schedule.list_schedule import (
    SerialList,
    frugal_modes,
    greedy_list,
    list_schedules,
    round_amounts,
    shortest_list,
)
from dovetail.planning.schedule.multifit import Multifit, shorten
from dovetail.planning.schedule.relaxation import Relaxed, relax, relax_money
from dovetail.planning.schedule.table import Start, makespan
from dovetail.vocabulary import NoFeasiblePlan, Objective
from dovetail.vocabulary.units import show_seconds

_TURNS, _MOST_TURNS = 40, 300
# Which of the tasks get more devices than the fewest, from those that matter most to all.
_WIDE_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
# In a table of so many modes a turn takes a tenth of a second.
_MANY_MODES = 5_000
# In such a table a list this close to the bound is as good as predictions are.
_CLOSE = 0.01
# An item is fitted towards a deadline in about so many seconds, and at most so often.
_FIT_SECONDS, _MOST_FITS = 40e-6, 2_000

_Schedule = Sequence[Start]


def bound(judge: Judge, *, known: float, work: float) -> Relaxed:
    """What no schedule is below by the judge's objective, at least what is known of a makespan, and what the relaxation
    that proves it would take."""
    if judge.objective.name == "makespan":
        return relax(judge.table, low_seconds=known, work=work)
    return _BOUNDS[judge.objective.name](judge, work)


def list_candidates(judge: Judge, relaxed: Relaxed, *, work: float) -> list[_Schedule]:
    """Schedules to begin with, without search."""
    return list(_LISTS[judge.objective.name](judge, relaxed, work))


def _makespan_lists(judge: Judge, relaxed: Relaxed, work: float) -> Iterator[_Schedule]:
    table = judge.table
    order = round_amounts(table, relaxed.amounts or [0.0] * len(table.modes))
    if table.only_devices_bind:
        yield (first := Multifit(table).finish_first(order))
        if len(table.modes) > _MANY_MODES and makespan(table, first) <= (1 + _CLOSE) * relaxed.bound:
            return
        yield SerialList(table).schedule(order)
    yield greedy_list(table, order)


def _ends_bound(judge: Judge, work: float) -> Relaxed:
    # Here, because it loads NumPy, which only these objectives need and not whoever imports planning.
    from dovetail.planning.schedule.lagrangian import relax_ends

    table = judge.table
    best = judge.best(_frugal_lists(judge))
    turns = _TURNS if len(table.modes) > _MANY_MODES else min(_MOST_TURNS, int(_TURNS * (1 + work)))
    found = relax_ends(judge, horizon_seconds=makespan(table, best), known=_sum_of_ends(judge, best), turns=turns)
    value = target_bound(judge) if judge.objective.name == "target" else found.bound / judge.weight
    return Relaxed(bound=value, choices=found.choices)


def _ends_lists(judge: Judge, relaxed: Relaxed, work: float) -> Iterator[_Schedule]:
    yield judge.best(_frugal_lists(judge))
    yield judge.best(list_schedules(judge.table, _by_choice(judge, relaxed.choices)))
    yield from _shortest_first(judge)


def _frugal_lists(judge: Judge) -> list[_Schedule]:
    frugal = frugal_modes(judge.table)
    return [shortest_list(judge.table, frugal), *list_schedules(judge.table, _by_weight(judge, frugal))]


def _shortest_first(judge: Judge) -> Iterator[_Schedule]:
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
            yield SerialList(table).schedule(chosen) if table.only_devices_bind else greedy_list(table, chosen)


def _first_bound(judge: Judge, work: float) -> Relaxed:
    return Relaxed(bound=rank_bound(judge, judge.objective.results))


def _first_lists(judge: Judge, relaxed: Relaxed, work: float) -> Iterator[_Schedule]:
    """The tasks that take least, as short as they can be, and then the others."""
    table, wanted = judge.table, judge.objective.results - len(judge.running_ends)
    for part, numbers in restrict_to_first(table, max(1, min(wanted, table.tasks))):
        of_part = Judge(part, Objective(name="makespan"))
        yield complete(judge, shortest(of_part, relax(part, low_seconds=0.0, work=work), work=min(work, 2.0)), numbers)


def _spend_bound(judge: Judge, work: float) -> Relaxed:
    return relax_money(judge.table, judge.spends, deadline_seconds=judge.objective.deadline_seconds)


def _spend_lists(judge: Judge, relaxed: Relaxed, work: float) -> Iterator[_Schedule]:
    """The cheapest modes that fit by the deadline; the shortest schedule where that is all that does."""
    table, deadline = judge.table, judge.objective.deadline_seconds
    order = round_amounts(table, relaxed.amounts or [0.0] * len(table.modes))
    candidates: list[_Schedule] = [shortest_list(table, order)]
    if table.only_devices_bind:
        multifit = Multifit(table, prices=judge.spends)
        tries = 5 + int((IMPROVE_SECONDS + IMPROVE_SHARE * work) / (_FIT_SECONDS * len(order)))
        met = multifit.meet(multifit.by_area(order), target_seconds=deadline, changes=min(_MOST_FITS, tries))
        candidates += [met] if met is not None else []
    if all(judge.value(each) == math.inf for each in candidates):
        candidates.append(_in_time(judge, work))
    yield from candidates


def _in_time(judge: Judge, work: float) -> _Schedule:
    """A schedule that ends by the deadline, found by making it short; the refusal where none is."""
    deadline = judge.objective.deadline_seconds
    shortness = Judge(judge.table, Objective(name="makespan"))
    relaxed = relax(judge.table, low_seconds=0.0, work=work)
    starts = shortest(shortness, relaxed, work=work)
    found = close_gap(shortness, shortness.incumbent(starts, bound=relaxed.bound), work=max(work, 1.0))
    if found.value <= deadline * (1 + 1e-9):
        return found.starts
    proof = "no schedule does" if found.bound > deadline else "none was found"
    raise NoFeasiblePlan(
        f"everything must end by the deadline of {show_seconds(deadline)}, and {proof}: the shortest found takes "
        f"{show_seconds(found.value)} and none takes less than {show_seconds(found.bound)}. "
        "Give a later deadline, fewer tasks or more devices."
    )


def shortest(judge: Judge, relaxed: Relaxed, *, work: float) -> _Schedule:
    """The shortest of list schedules, of fitting them towards the bound, and of small changes to them."""
    best = judge.best(list_candidates(judge, relaxed, work=work))
    # First what would be tried without work: with it a plan is then never worse.
    for seconds in dict.fromkeys([IMPROVE_SECONDS, IMPROVE_SECONDS + IMPROVE_SHARE * work]):
        if judge.value(best) <= relaxed.bound * (1 + PRECISION):
            break
        best = shorten(judge, best, low=relaxed.bound, seconds=seconds)
        best = improve(judge, best, seconds=seconds, enough=relaxed.bound)
    return best


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
    order = round_amounts(table, amounts)
    return sorted(order, key=lambda n: (starts[n], judge.table.modes[n].area / max(judge.weights[n], 1e-300), n))


def _sum_of_ends(judge: Judge, starts: Sequence[Start]) -> float:
    groups = judge.table.groups
    return sum(
        groups[group].weight * (each.start_seconds + end)
        for each in starts
        for group, end in zip(judge.table.modes[each.mode].groups, judge.ends[each.mode], strict=True)
    )


_BOUNDS: Mapping[str, Callable[[Judge, float], Relaxed]] = {
    "mean": _ends_bound,
    "weighted": _ends_bound,
    "target": _ends_bound,
    "first": _first_bound,
    "spend": _spend_bound,
}
_LISTS: Mapping[str, Callable[[Judge, Relaxed, float], Iterator[_Schedule]]] = {
    "makespan": _makespan_lists,
    "mean": _ends_lists,
    "weighted": _ends_lists,
    "target": _ends_lists,
    "first": _first_lists,
    "spend": _spend_lists,
}
