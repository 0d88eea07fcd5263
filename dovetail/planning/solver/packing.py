"""Packings in time, on CP-SAT: which activities take place and when, so that needs are covered and nothing overdrawn.

Limits are deterministic work, so the same question has the same answer on a busy machine and on an idle one.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.planning.solver.door import load

# CPU seconds that a unit of CP-SAT's deterministic time takes at most, and for each root of the number of activities
# (OR-tools 9.15 on a busy core: 2.2 with 42 of them, 3 with 72, 4.6 to 6.5 with 340).
_MOST_UNIT_SECONDS, _UNIT_SECONDS = 6.0, 0.34


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Something that may take place once, for `ticks`: what it covers, what it draws from each resource meanwhile,
    and the tick of its start in a packing known already.

    `after` is an equal activity that must be used first and start no later: of equals, any order is as good. It starts
    by `latest` at the latest."""

    ticks: int
    covers: Mapping[int, int]
    draws: Mapping[int, int]
    hint: int | None = None
    after: int | None = None
    latest: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a packing is to make small: Σ of `start_costs` × start + `used_costs` over the activities used, and Σ of
    cost × the tick by which so many things have ended over `ranks` of (how many, cost).

    `ends` says, for each activity, how long after its start each thing that it covers ends, and `ended` when others
    end that are no activity's. With `results` only so many things must be covered, whichever they are."""

    start_costs: Sequence[int] = ()
    used_costs: Sequence[int] = ()
    ranks: Sequence[tuple[int, int]] = ()
    ends: Sequence[Sequence[int]] = ()
    ended: Sequence[int] = ()
    results: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What became of a search: `starts` by activity where a packing was found; else whether there `is_none`, or
    whether it is still open because the work was used up. `bound` is what no packing's goal is below."""

    starts: Mapping[int, int] | None
    is_none: bool
    work: float
    bound: float = 0.0


def pack(
    activities: Sequence[Activity],
    *,
    needs: Sequence[int],
    capacities: Sequence[int],
    busy: Iterable[tuple[int, Mapping[int, int]]] = (),
    horizon: int,
    work: float,
    goal: Goal | None = None,
) -> Packed:
    """Choose activities that cover every need exactly, and a start for each, so that all end by the horizon and no
    resource gives more than its capacity; `busy` holds what is drawn from now until a tick whatever is chosen. With
    a `goal`, the best such choice that the work finds.

    `work` is deterministic, about a second of one core for each unit.

    >>> both = [Activity(ticks=5, covers={number: 1}, draws={0: 1}) for number in range(2)]
    >>> sorted(pack(both, needs=[1, 1], capacities=[1], horizon=10, work=1.0).starts.values())
    [0, 5]
    >>> pack(both, needs=[1, 1], capacities=[1], horizon=9, work=1.0).is_none
    True
    """
    if horizon < 0 or work <= 0:
        return Packed(starts=None, is_none=horizon < 0, work=0.0)
    if not activities:
        return Packed(starts=None if any(needs) else {}, is_none=False, work=0.0)
    module = load("ortools.sat.python.cp_model")
    model = module.CpModel()
    used, starts = _variables(model, activities, horizon)
    if goal is not None and goal.results is not None:
        _cover_some(model, activities, used, needs, goal.results)
    else:
        _cover_exactly(model, activities, used, needs)
    _hold(model, activities, used, starts, capacities, tuple(busy), horizon)
    if goal is not None:
        _minimise(model, goal, used, starts, horizon)
    solver = module.CpSolver()
    unit_seconds = min(_MOST_UNIT_SECONDS, _UNIT_SECONDS * math.sqrt(len(activities)))
    solver.parameters.max_deterministic_time = work / unit_seconds
    # One search at a time: several at once answer differently from run to run, and taking turns in lockstep
    # (`interleave_search`) with a hint ends the process (OR-tools 9.15, a failed check in QuickSolveWithHint).
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    # Ctrl-C is for whoever asks: caught here, it is left to end the process at once ever after.
    solver.parameters.catch_sigint_signal = False
    # Presolving symmetries throws `raw_hash_map<>::at` on some packings of equal nodes (OR-tools 9.15).
    solver.parameters.symmetry_level = 0
    status = solver.solve(model)
    spent = unit_seconds * solver.response_proto.deterministic_time
    if status in (module.OPTIMAL, module.FEASIBLE):
        chosen = [number for number in starts if solver.value(used[number])]
        found = {number: solver.value(starts[number]) for number in chosen}
        return Packed(starts=found, is_none=False, work=spent, bound=solver.best_objective_bound if goal else 0.0)
    assert status in (module.INFEASIBLE, module.UNKNOWN), solver.status_name(status)
    bound = solver.best_objective_bound if goal and status == module.UNKNOWN else 0.0
    return Packed(starts=None, is_none=status == module.INFEASIBLE, work=spent, bound=bound)


def _variables(model: Any, activities: Sequence[Activity], horizon: int) -> tuple[dict[int, Any], dict[int, Any]]:
    """Whether and when each activity that can end in time takes place."""
    used, starts = {}, {}
    for number, activity in enumerate(activities):
        last = horizon - activity.ticks if activity.latest is None else min(horizon - activity.ticks, activity.latest)
        if last < 0:
            continue
        used[number] = model.new_bool_var("")
        starts[number] = model.new_int_var(0, last, "")
        if activity.after in used:
            model.add_implication(used[number], used[activity.after])
            model.add(starts[activity.after] <= starts[number]).only_enforce_if(used[number])
        model.add_hint(used[number], activity.hint is not None)
        if activity.hint is not None:
            model.add_hint(starts[number], min(activity.hint, last))
    return used, starts


def _cover_exactly(model: Any, activities: Sequence[Activity], used: Mapping[int, Any], needs: Sequence[int]) -> None:
    covering: list[list[Any]] = [[] for _ in needs]
    plain = [True] * len(needs)
    for number, variable in used.items():
        for need, times in activities[number].covers.items():
            covering[need].append(times * variable if times > 1 else variable)
            plain[need] &= times == 1
    for need, amount in enumerate(needs):
        if amount == 1 and plain[need]:
            model.add_exactly_one(covering[need])
        else:
            model.add(sum(covering[need]) == amount)


def _cover_some(
    model: Any, activities: Sequence[Activity], used: Mapping[int, Any], needs: Sequence[int], results: int
) -> None:
    covering: list[list[Any]] = [[] for _ in needs]
    for number, variable in used.items():
        for need, times in activities[number].covers.items():
            covering[need].append(times * variable)
    for need, amount in enumerate(needs):
        model.add(sum(covering[need]) <= amount)
    model.add(sum(sum(each) for each in covering) >= results)


def _minimise(model: Any, goal: Goal, used: Mapping[int, Any], starts: Mapping[int, Any], horizon: int) -> None:
    terms: list[Any] = []
    for number, variable in used.items():
        if goal.used_costs and goal.used_costs[number]:
            terms.append(goal.used_costs[number] * variable)
        if goal.start_costs and goal.start_costs[number]:
            # The start where it is used, else nothing.
            start = model.new_int_var(0, horizon, "")
            model.add(start >= starts[number]).only_enforce_if(variable)
            terms.append(goal.start_costs[number] * start)
    for rank, cost in goal.ranks:
        until = model.new_int_var(0, max([horizon, *goal.ended]), "")
        terms.append(cost * until)
        counted = []
        for number, variable in used.items():
            for end in goal.ends[number]:
                is_in = model.new_bool_var("")
                model.add_implication(is_in, variable)
                model.add(starts[number] + end <= until).only_enforce_if(is_in)
                counted.append(is_in)
        for end in goal.ended:
            is_in = model.new_bool_var("")
            model.add(until >= end).only_enforce_if(is_in)
            counted.append(is_in)
        model.add(sum(counted) >= rank)
    model.minimize(sum(terms))


def _hold(
    model: Any,
    activities: Sequence[Activity],
    used: Mapping[int, Any],
    starts: Mapping[int, Any],
    capacities: Sequence[int],
    busy: Sequence[tuple[int, Mapping[int, int]]],
    horizon: int,
) -> None:
    """No resource gives more than it has at any time, nor, in sum, more than its capacity times the horizon."""
    intervals = {
        number: model.new_optional_fixed_size_interval_var(starts[number], activities[number].ticks, used[number], "")
        for number in used
    }
    for resource, capacity in enumerate(capacities):
        drawing = [number for number in used if activities[number].draws.get(resource, 0) > 0]
        held = [(until, draws[resource]) for until, draws in busy if draws.get(resource, 0) > 0 and until > 0]
        fixed = [model.new_fixed_size_interval_var(0, until, "") for until, _ in held]
        amounts = [activities[number].draws[resource] for number in drawing]
        # What is under way may hold more than there is; that is not for a plan to refuse.
        size = max(capacity, sum(amount for _, amount in held))
        model.add_cumulative(
            [*(intervals[number] for number in drawing), *fixed],
            [*amounts, *(amount for _, amount in held)],
            size,
        )
        # Without this cut the solver's own bound is worthless: it adds up no areas across activities it has not fixed.
        room = size * horizon - sum(min(until, horizon) * amount for until, amount in held)
        areas = [activities[number].ticks * amount for number, amount in zip(drawing, amounts, strict=True)]
        if areas and sum(areas) > room:
            scale = _scale(sum(areas))
            terms = [(area // scale) * used[number] for number, area in zip(drawing, areas, strict=True)]
            model.add(sum(terms) <= max(0, room) // scale)


def _scale(total: int) -> int:
    # Sums must stay well within 64 bits; areas are rounded down, so the cut only eases.
    return max(1, math.ceil(total / (1 << 60)))
