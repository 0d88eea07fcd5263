"""What the joint planner is compared with in `bench/joint.py`: current practice, and what is done against it."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

from joint_drawn import STEPS

from dovetail.planning import Problem
from dovetail.vocabulary import Option, Placement, Schedule

Choice = Callable[[list[Option], random.Random], list[Option]]
Free = dict[str, list[list[tuple[float, str]]]]


def listed(problem: Problem, choice: Choice, seed: int, *, longest_first: bool = True) -> Schedule:
    """Of an option of each kind for each task the one that ends first; the longest first, or as they come."""
    dice, by_task = random.Random(seed), options_by_task(problem)
    offered = {task: choice(options, dice) for task, options in by_task.items()}
    if longest_first:
        offered = dict(sorted(offered.items(), key=lambda item: -min(o.step_seconds[0] for o in item[1])))
    free, placements = free_devices(problem), []
    for task, options in offered.items():
        ends = [(_node(free, option)[option.count - 1][0] + option.seconds((STEPS,)), option) for option in options]
        _, best = min(ends, key=lambda end: end[0])
        node = _node(free, best)
        placements.append(placed(task, best, node, node[best.count - 1][0]))
    return Schedule(placements=tuple(placements))


def _node(free: Free, option: Option) -> list[tuple[float, str]]:
    """The node of the option's kind that has enough devices free first."""
    able = [each for each in free[option.kind] if len(each) >= option.count]
    return min(able, key=lambda each: each[option.count - 1])


def placed(task: str, option: Option, node: list[tuple[float, str]], start: float) -> Placement:
    """The task on the devices of the node that are free first, which are then busy."""
    devices, seconds = node[: option.count], option.seconds((STEPS,))
    node[: option.count] = [(start + seconds, name) for _, name in devices]
    node.sort()
    return Placement(
        tasks=(task,),
        steps=(STEPS,),
        option=option,
        devices=tuple(name for _, name in devices),
        start_seconds=start,
        duration_seconds=seconds,
    )


def free_devices(problem: Problem) -> Free:
    """For each kind and node, when each device is free, soonest first."""
    free: dict[str, dict[str, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for device in problem.cluster.devices:
        free[device.kind][device.node].append((0.0, device.name))
    return {kind: list(nodes.values()) for kind, nodes in free.items()}


def options_by_task(problem: Problem) -> dict[str, list[Option]]:
    tasks = {family.name: family.members[0].task for family in problem.families}
    found: dict[str, list[Option]] = defaultdict(list)
    for option in problem.options:
        found[tasks[option.families[0]]].append(option)
    return dict(found)


def by_kind(options: list[Option]) -> list[list[Option]]:
    """The options of each kind, by count."""
    kinds = dict.fromkeys(option.kind for option in options)
    return [sorted((o for o in options if o.kind == kind), key=lambda o: o.count) for kind in kinds]


def widest(options: list[Option], dice: random.Random) -> list[Option]:
    """Current practice: as many devices as a node has."""
    return [mine[-1] for mine in by_kind(options)]


def frugal(options: list[Option], dice: random.Random) -> list[Option]:
    """The fewest devices."""
    return [mine[0] for mine in by_kind(options)]


def anything(options: list[Option], dice: random.Random) -> list[Option]:
    return [dice.choice(options)]


def equal_split(problem: Problem) -> Choice:
    """The count nearest below devices / tasks, at least what the task needs."""
    share = max(1.0, len(problem.cluster.devices) / len(problem.families))

    def nearest(mine: list[Option]) -> Option:
        return ([o for o in mine if o.count <= share] or mine[:1])[-1]

    return lambda options, dice: [nearest(mine) for mine in by_kind(options)]


def marginal_gain(problem: Problem) -> Schedule:
    """As in Optimus, without stopping anything: whenever devices fall free, the tasks that wait get their fewest, the
    longest first, and what is then left goes, a doubling at a time, to the task that gains most for a device."""
    offered = {task: by_kind(options) for task, options in options_by_task(problem).items()}
    waiting = dict(sorted(offered.items(), key=lambda item: -min(mine[0].step_seconds[0] for mine in item[1])))
    free, placements, now = free_devices(problem), [], 0.0
    while waiting:
        for task, (option, node) in _allotted(waiting, free, now).items():
            placements.append(placed(task, option, node, now))
            del waiting[task]
        later = [until for nodes in free.values() for node in nodes for until, _ in node if until > now]
        now = min(later, default=now)
    return Schedule(placements=tuple(placements))


def _allotted(
    waiting: dict[str, list[list[Option]]], free: Free, now: float
) -> dict[str, tuple[Option, list[tuple[float, str]]]]:
    """The tasks that start now, each with its option and its node."""
    idle = {id(node): sum(until <= now for until, _ in node) for nodes in free.values() for node in nodes}
    chosen: dict[str, tuple[Option, list[tuple[float, str]]]] = {}
    for task in waiting:
        if not any(idle.values()):
            break
        fits = [
            (mine[0], node) for mine in waiting[task] for node in free[mine[0].kind] if idle[id(node)] >= mine[0].count
        ]
        if fits:
            option, node = min(fits, key=lambda fit: fit[0].step_seconds[0])
            chosen[task] = option, node
            idle[id(node)] -= option.count
    while widenings := list(_widenings(waiting, chosen, idle)):
        _, task, wider = max(widenings, key=lambda each: each[:2])
        option, node = chosen[task]
        idle[id(node)] -= wider.count - option.count
        chosen[task] = wider, node
    return chosen


def _widenings(
    waiting: dict[str, list[list[Option]]],
    chosen: dict[str, tuple[Option, list[tuple[float, str]]]],
    idle: dict[int, int],
) -> Iterator[tuple[float, str, Option]]:
    for task, (now, node) in chosen.items():
        for wider in (o for mine in waiting[task] for o in mine if o.kind == now.kind and o.count == 2 * now.count):
            if idle[id(node)] >= wider.count - now.count:
                yield (now.step_seconds[0] - wider.step_seconds[0]) / (wider.count - now.count), task, wider
