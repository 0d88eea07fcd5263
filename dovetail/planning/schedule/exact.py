"""Better schedules than the incumbent, and proofs that there are none, by CP-SAT; for dozens of activities.

Asked to minimise a makespan, CP-SAT stalls from a hundred tasks on; asked whether everything can end by a target
between what is proven and what is known to be possible, it answers: so makespans are bisected. Other objectives are
goals to minimise. Ends in ticks are no later than in seconds (`packing_model`), so what no packing's goal is below, no
schedule's is. Costs are whole numbers, rounded down, for the same reason.
"""

import math
from collections.abc import Sequence

from dovetail.planning.schedule.first_results import complete
from dovetail.planning.schedule.judges import Incumbent, Judge
from dovetail.planning.schedule.packing_model import PackingModel
from dovetail.planning.schedule.table import Start, makespan
from dovetail.planning.solver import Goal

# Ticks in a schedule. Propagation moves bounds by ticks, so a finer clock makes proofs longer (2^18: six tasks took
# minutes); a coarse one rounds more away. The first settles most of it, the others what it rounded away.
_CLOCKS = (1 << 9, 1 << 11, 1 << 13)
_GOAL_CLOCKS = (1 << 8, 1 << 10, 1 << 12)
# What reading one optional interval takes, in seconds.
READING_WORK = 2e-4
# Closer than this to the bound nothing is worth looking for; a prediction is off by more.
PRECISION = 5e-4
# Above this many optional intervals a minute of searching found nothing that fitting had not (100 tasks on 8 nodes).
ACTIVITIES = 1_000
# A goal holds more variables than a question of feasibility, so fewer activities are asked about.
_GOAL_SHARE = 4
_FIRST_SLICE = 1 / 16
_FIRST_SHARE = 0.4
# Costs are counted in so many parts of the largest.
_PARTS = 10_000


def close_gap(judge: Judge, known: Incumbent, *, work: float) -> Incumbent:
    """The incumbent with the gap between it and its bound closed from both sides, as far as the work allows."""
    if not judge.table.groups or work <= 0 or known.gap <= PRECISION:
        return known
    if judge.objective.name == "makespan" and not judge.is_due:
        return _close_makespan(judge, known, work) if known.bound > 0 else known
    return _close_goal(judge, known, work)


def _close_makespan(judge: Judge, known: Incumbent, work: float) -> Incumbent:
    for number, ticks in enumerate(_CLOCKS):
        model = PackingModel(judge.table, known.value / ticks)
        if model.size > ACTIVITIES or work <= 0:
            break
        # A coarse clock proves most for its work and a fine one finds the shortest, so each has half of what is left.
        share = work if number == len(_CLOCKS) - 1 else work / 2
        known, spent = _bisect(judge, model, known, share, precision=max(PRECISION, 1 / ticks))
        work -= spent
    return known


def _bisect(
    judge: Judge, model: PackingModel, known: Incumbent, work: float, *, precision: float
) -> tuple[Incumbent, float]:
    """Narrow what is between the longest time refuted and the shortest that this clock can pack: the incumbent, and the
    work it took.

    Questions are hardest where the answer changes. So a target that stays open is left for what is below it, which may
    be refuted, and above it, which may be packed, in turn; and comes back with more work once both are narrow."""
    starts, best, proven = known.starts, known.value, known.bound
    low, high, spent, share = proven, best, 0.0, work * _FIRST_SLICE
    opened: list[float] = []
    while spent < work and high - low > precision * low:
        sides = [(low, opened[0]), (opened[-1], high)] if opened else [(low, high)]
        below, above = max(sides, key=lambda side: side[1] - side[0])
        if above - below <= precision * low / 2:
            opened, share = [], 4 * share
            continue
        target = (below + above) / 2
        found = model.ask(target, starts, min(share, work - spent))
        # A question costs something to read, however soon it is answered.
        spent += found.work + READING_WORK * (model.size + 25)
        if found.starts is not None:
            # In seconds it may be longer than what is known; a finer clock will tell.
            high, decoded = target, model.decode(found.starts)
            starts, best = (decoded, judge.value(decoded)) if judge.value(decoded) < best else (starts, best)
        elif found.is_none:
            low, proven = target, max(proven, model.refuted(target))
        else:
            opened = sorted([*opened, target])
        opened = [each for each in opened if low < each < high]
    return Incumbent(starts=starts, value=best, bound=min(proven, best)), spent


def _close_goal(judge: Judge, known: Incumbent, work: float) -> Incumbent:
    best, bound = _minimise(judge, known.starts, known.bound, work)
    # For the first results a schedule of those alone was enough.
    return judge.incumbent(judge.best([known.starts, complete(judge, best)]), bound=max(known.bound, bound))


def _minimise(judge: Judge, starts: Sequence[Start], bound: float, work: float) -> tuple[Sequence[Start], float]:
    """A schedule at least as good as the one known, for objective `first` of some tasks only; and the best bound."""
    best, value = starts, judge.value(starts)
    for ticks in _GOAL_CLOCKS:
        length = _length(judge, best, value)
        tick = length / ticks
        for round_up in (False, True) if judge.objective.name == "spend" or judge.is_due else (False,):
            model = PackingModel(judge.table, tick, round_up=round_up)
            if model.size * _GOAL_SHARE > ACTIVITIES or work <= 0 or value - bound <= PRECISION * bound:
                return best, bound
            goal, unit = _goal(judge, model, tick)
            horizon = _horizon(judge, best, value)
            found = model.ask(horizon, best, _FIRST_SHARE * work, goal)
            work -= found.work + READING_WORK * (model.size + 25)
            if model.is_whole and not round_up and found.bound > 0:
                bound = max(bound, found.bound * unit * (1 - 1e-9) - _slack(judge, model))
            if found.starts is not None:
                decoded = model.decode(found.starts)
                if _value(judge, decoded) < value:
                    best, value = decoded, _value(judge, decoded)
    return best, bound


def _value(judge: Judge, starts: Sequence[Start]) -> float:
    """As the judge has it; for the first results a schedule of those alone is enough."""
    if judge.objective.name != "first":
        return judge.value(starts)
    ends = sorted(
        [*judge.running_ends, *(each.start_seconds + end for each in starts for end in judge.ends[each.mode])]
    )
    return ends[judge.objective.results - 1]


def _length(judge: Judge, starts: Sequence[Start], value: float) -> float:
    """The seconds that a clock divides."""
    if judge.objective.name == "spend":
        return judge.objective.deadline_seconds
    return value if judge.objective.name == "first" else makespan(judge.table, starts)


def _horizon(judge: Judge, starts: Sequence[Start], value: float) -> float:
    """The seconds by which some best schedule ends."""
    name, table = judge.objective.name, judge.table
    if name == "spend":
        return judge.objective.deadline_seconds
    if name == "first":
        return value
    serial = serial_seconds(judge)
    if name not in ("mean", "weighted"):
        return serial
    fastest = [math.inf] * len(table.groups)
    for number, mode in enumerate(table.modes):
        for group, end in zip(mode.groups, judge.ends[number], strict=True):
            fastest[group] = min(fastest[group], end)
    weights = [group.weight for group in table.groups]
    least = sum(w * f * n for w, f, n in zip(weights, fastest, table.needs, strict=True))
    if min(weights) <= 0 or any(len(mode.groups) > 1 for mode in table.modes):
        return serial
    # A task that ends later than this, with all others as soon as they can be, is worse than what is known.
    latest = max((value * judge.weight - least) / w + f for w, f in zip(weights, fastest, strict=True))
    return min(serial, latest * (1 + 1e-9))


def serial_seconds(judge: Judge) -> float:
    """The seconds of everything one after another: no schedule that leaves nothing idle for a while takes longer, and
    none that does is better than without."""
    table, slowest = judge.table, [0.0] * len(judge.table.groups)
    for mode in table.modes:
        for group in mode.groups:
            slowest[group] = max(slowest[group], mode.seconds)
    return sum(s * n for s, n in zip(slowest, table.needs, strict=True)) + max([0.0, *judge.running_ends])


def _goal(judge: Judge, model: PackingModel, tick: float) -> tuple[Goal, float]:
    """The goal, and what one of its units is worth of the objective."""
    table, name, modes = judge.table, judge.objective.name, model.modes
    if name == "spend":
        part = max(judge.spends) / _PARTS
        return Goal(used_costs=[math.floor(judge.spends[mode] / part) for mode in modes]), part
    ends = [tuple(math.floor(end / tick) for end in judge.ends[mode]) for mode in modes]
    if name in ("mean", "weighted"):
        weights, part = _whole_weights([group.weight for group in table.groups])
        sums = [sum(weights[group] for group in table.modes[mode].groups) for mode in modes]
        used = [
            sum(weights[group] * end for group, end in zip(table.modes[mode].groups, each, strict=True))
            for mode, each in zip(modes, ends, strict=True)
        ]
        return Goal(start_costs=sums, used_costs=used), part * tick / judge.weight
    ranks = judge.ranks(table.tasks + len(judge.running_ends))
    whole = [(rank, math.floor(share * _PARTS)) for rank, share in ranks]
    return (
        Goal(
            ranks=[(rank, share) for rank, share in whole if share > 0],
            ends=ends,
            ended=[math.floor(end / tick) for end in judge.running_ends],
            results=max(0, judge.objective.results - len(judge.running_ends)) if name == "first" else None,
        ),
        tick / _PARTS,
    )


def _whole_weights(weights: Sequence[float]) -> tuple[list[int], float]:
    """Weights as whole numbers of a part, rounded down."""
    if all(weight == round(weight) and weight <= _PARTS for weight in weights):
        return [round(weight) for weight in weights], 1.0
    part = max(weights) / _PARTS
    return [math.floor(weight / part) for weight in weights], part


def _slack(judge: Judge, model: PackingModel) -> float:
    return 0.0 if judge.objective.name == "spend" else model.slack_seconds
