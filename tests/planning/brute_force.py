"""Slow and true: the shortest makespan of a problem of a few tasks, by trying everything.

In the order of its starts, the tasks of a best schedule can each be started at the earliest time at which
their devices and what they draw from their node are free; so the best over all orders, options and
device sets of that rule is the best there is. Shares nothing with the planners or the checker.
"""

import itertools
import math
from collections.abc import Callable, Iterator

from dovetail.planning.problem import Problem
from dovetail.vocabulary import Member, Option, Placement


def shortest_makespan(problem: Problem, *, at_most: float = math.inf) -> float:
    """The best makespan of schedules in time, or `at_most` where that is better than any."""
    members = [(family.name, member) for family in problem.families for member in family.members]
    return _search(problem, tuple(members), (), at_most)


def _search(
    problem: Problem, left: tuple[tuple[str, Member], ...], placed: tuple[Placement, ...], best: float
) -> float:
    if not left:
        return max((placement.end_seconds for placement in placed), default=0.0)
    for index, (family, member) in enumerate(left):
        rest = left[:index] + left[index + 1 :]
        for option, devices in _choices(problem, family):
            placement = _earliest(problem, member, option, devices, placed)
            if placement.end_seconds < best and placement.end_seconds <= member.deadline_seconds:
                best = min(best, _search(problem, rest, (*placed, placement), best))
    return best


def _choices(problem: Problem, family: str) -> Iterator[tuple[Option, tuple[str, ...]]]:
    for option in (each for each in problem.options if each.families == (family,)):
        spread = option.nodes
        for nodes in itertools.combinations(problem.cluster.nodes, spread):
            if all(_needs(option)[0] <= node.memory_bytes and _needs(option)[1] <= node.cores for node in nodes):
                names = [
                    [d.name for d in problem.cluster.of_kind(option.kind) if d.node == node.name] for node in nodes
                ]
                each = [itertools.combinations(found, option.count // spread) for found in names]
                for devices in itertools.product(*each):
                    yield option, tuple(itertools.chain(*devices))


def _needs(option: Option) -> tuple[int, int]:
    """Memory and cores on each of its nodes."""
    return math.ceil(option.host_bytes / option.nodes), math.ceil(option.cores / option.nodes)


def _earliest(
    problem: Problem, member: Member, option: Option, devices: tuple[str, ...], placed: tuple[Placement, ...]
) -> Placement:
    others = (*problem.running, *placed)
    for start in sorted({0.0, *(max(0.0, other.end_seconds) for other in others)}):
        placement = Placement(
            tasks=(member.task,),
            steps=(member.steps,),
            option=option,
            devices=devices,
            start_seconds=start,
            duration_seconds=option.seconds((member.steps,)),
        )
        if _fits(problem, placement, others):
            return placement
    raise AssertionError("after the last end everything fits")


def _fits(problem: Problem, placement: Placement, others: tuple[Placement, ...]) -> bool:
    beside = [o for o in others if o.start_seconds < placement.end_seconds and placement.start_seconds < o.end_seconds]
    if any(set(other.devices) & set(placement.devices) for other in beside):
        return False
    return all(_fits_on(problem, node, placement, beside) for node in _nodes(problem, placement))


def _nodes(problem: Problem, placement: Placement) -> set[str]:
    return {problem.cluster.device(device).node for device in placement.devices}


def _fits_on(problem: Problem, name: str, placement: Placement, beside: list[Placement]) -> bool:
    node = problem.cluster.node(name)
    here = [other for other in beside if name in _nodes(problem, other)]
    for moment in (placement.start_seconds, *(other.start_seconds for other in here)):
        now = [placement, *(other for other in here if other.start_seconds <= moment < other.end_seconds)]
        if moment < placement.start_seconds:
            continue
        if sum(_needs(other.option)[0] for other in now) > node.memory_bytes:
            return False
        if sum(_needs(other.option)[1] for other in now) > node.cores:
            return False
    return True


def least_value(
    problem: Problem, value: Callable[[list[tuple[float, float, float]]], float], *, at_most: float
) -> float:
    """The least `value` of any schedule, or `at_most` where that is better than any; `value` is given the end, weight
    and device-hours × price of each task, and never falls where one of them ends later."""
    members = [(family.name, member) for family in problem.families for member in family.members]
    fastest = {
        (family, member.task): min(option.seconds((member.steps,)) for option, _ in _choices(problem, family))
        for family, member in members
    }

    def search(left: tuple[tuple[str, Member], ...], placed: tuple[Placement, ...], best: float) -> float:
        ends = [(p.end_seconds, _weight(problem, p.tasks[0]), _spend(problem, p)) for p in placed]
        hoped = [(fastest[family, member.task], member.weight, 0.0) for family, member in left]
        if value(ends + hoped) >= best or not left:
            return min(best, value(ends + hoped))
        for index, (family, member) in enumerate(left):
            for option, devices in _choices(problem, family):
                placement = _earliest(problem, member, option, devices, placed)
                best = search(left[:index] + left[index + 1 :], (*placed, placement), best)
        return best

    return search(tuple(members), (), at_most)


def _weight(problem: Problem, task: str) -> float:
    return next(member.weight for family in problem.families for member in family.members if member.task == task)


def _spend(problem: Problem, placement: Placement) -> float:
    price = problem.cluster.kind(placement.option.kind).price_per_hour
    return price * placement.duration_seconds * len(placement.devices) / 3600
