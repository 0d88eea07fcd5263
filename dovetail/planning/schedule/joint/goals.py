"""Objectives in the solver's words: better schedules than the one known, and proofs, for dozens of activities.

Ends in ticks are no later than in seconds (`exact`), so what no packing's goal is below, no schedule's is. Costs are
whole numbers, rounded down, for the same reason.
"""

import math
from collections.abc import Sequence

from dovetail.planning.schedule.joint.exact import ACTIVITIES, PRECISION, READING_WORK, Question
from dovetail.planning.schedule.joint.judging import Judge
from dovetail.planning.schedule.joint.packing import Begun
from dovetail.planning.schedule.joint.search import makespan
from dovetail.planning.solver import Goal

_CLOCKS = (1 << 8, 1 << 10, 1 << 12)
_FIRST_SHARE = 0.4
# Costs are counted in so many parts of the largest.
_PARTS = 10_000
# A goal holds more variables than a question of feasibility, so fewer activities are asked about.
_GOAL_SHARE = 4


def settle(judge: Judge, begun: Sequence[Begun], *, bound: float, work: float) -> tuple[Sequence[Begun], float]:
    """A schedule at least as good as the one known, for objective `first` of some tasks only; and the best bound."""
    best, value = begun, judge.value(begun)
    for ticks in _CLOCKS:
        length = _length(judge, best, value)
        tick = length / ticks
        for round_up in (False, True) if judge.objective.name == "spend" or judge.is_due else (False,):
            question = Question(judge.table, tick, round_up=round_up)
            if question.size * _GOAL_SHARE > ACTIVITIES or work <= 0 or value - bound <= PRECISION * bound:
                return best, bound
            goal, unit = _goal(judge, question, tick)
            horizon = _horizon(judge, best, value)
            found = question.ask(horizon, best, _FIRST_SHARE * work, goal)
            work -= found.work + READING_WORK * (question.size + 25)
            if question.is_whole and not round_up and found.bound > 0:
                bound = max(bound, found.bound * unit * (1 - 1e-9) - _slack(judge, question))
            if found.starts is not None:
                decoded = question.decode(found.starts)
                if _value(judge, decoded) < value:
                    best, value = decoded, _value(judge, decoded)
    return best, bound


def _value(judge: Judge, begun: Sequence[Begun]) -> float:
    """As the judge has it; for the first results a schedule of those alone is enough."""
    if judge.objective.name != "first":
        return judge.value(begun)
    ends = sorted([*judge.running_ends, *(each.start_seconds + end for each in begun for end in judge.ends[each.mode])])
    return ends[judge.objective.results - 1]


def _length(judge: Judge, begun: Sequence[Begun], value: float) -> float:
    """The seconds that a clock divides."""
    if judge.objective.name == "spend":
        return judge.objective.deadline_seconds
    return value if judge.objective.name == "first" else makespan(judge.table, begun)


def _horizon(judge: Judge, begun: Sequence[Begun], value: float) -> float:
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


def _goal(judge: Judge, question: Question, tick: float) -> tuple[Goal, float]:
    """The goal, and what one of its units is worth of the objective."""
    table, name, modes = judge.table, judge.objective.name, question.modes
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


def _slack(judge: Judge, question: Question) -> float:
    return 0.0 if judge.objective.name == "spend" else question.slack_seconds
