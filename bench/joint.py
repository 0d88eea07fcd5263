"""How short the joint planner's schedules are, and how far from what is proven to be the shortest.

Workloads are drawn: one-device hours log-uniform in 1 to 20, speed-up count^e with e uniform in 0.6 to 0.95, counts 1,
2, 4 and 8, every second task with at least 2 devices; nodes of 8 devices. A device of kind b works at 0.6 and one
of kind c at 0.35 of the speed of kind a. Side by side: every task on all devices of a node one after another, as they
come (current practice), equal split, random, a greedy one by marginal gain as in Optimus, and longest first; on unlike
kinds each task goes where it ends first.
`python bench/joint.py [--check] [--quick] [--seeds N] [--large-seeds N] [--work W]`
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from reporting import Bar, finish

from dovetail.plan import Problem, check
from dovetail.plan.joint import plan
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option, Placement, Plan, Schedule

SPEEDS = {"a": 1.0, "b": 0.6, "c": 0.35}
PER_NODE = 8
# Tasks, devices of each kind, the gap at most, and the seconds within which.
CASES = (
    (4, {"a": 8}, 0.01, 60.0),
    (8, {"a": 8}, 0.01, 60.0),
    (12, {"a": 8}, 0.01, 60.0),
    (12, {"a": 8, "b": 4}, 0.01, 60.0),
    (100, {"a": 64}, 0.03, 60.0),
    (2000, {"a": 256, "b": 128, "c": 128}, 0.05, 120.0),
)
QUICK_CASES = ((4, {"a": 8}, 0.01, 60.0), (30, {"a": 16, "b": 8}, 0.1, 60.0))
QUICK_WORK = 1.0
FIRST_SECONDS = 1.0
PRACTICE_TASKS, PRACTICE_GAIN = 12, 0.3

STEPS = 1000

Choice = Callable[[list[Option], random.Random], list[Option]]
Free = dict[str, list[list[tuple[float, str]]]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--large-seeds", type=int, default=None, help="seeds for 100 tasks and more")
    arguments.add_argument("--work", type=float, default=12.0)
    chosen = arguments.parse_args()
    work = QUICK_WORK if chosen.quick else chosen.work
    rows: list[dict[str, object]] = []
    bars: list[Bar] = []
    # Loading the solver takes half a second once in a process; it is no part of planning.
    plan(draw(2, {"a": 2}, seed=0), work=0.1)
    for tasks, devices, gap, seconds in QUICK_CASES if chosen.quick else CASES:
        seeds = 1 if chosen.quick else chosen.seeds if tasks < 100 else chosen.large_seeds or chosen.seeds
        found = [compare(draw(tasks, devices, seed=seed), seed, work) for seed in range(seeds)]
        case = f"{tasks} tasks on {'+'.join(map(str, devices.values()))}"
        rows += summary(case, found)
        bars += judge(case, tasks, found, gap, seconds)
    sys.exit(finish("joint", rows, bars, check=chosen.check, quick=chosen.quick))


def judge(case: str, tasks: int, found: list[dict[str, dict[str, float]]], gap: float, seconds: float) -> list[Bar]:
    """The bars of a case, each over its worst seed."""
    bars = [
        Bar(f"{case}, largest proven gap", max(each["joint"]["gap"] for each in found), most=gap),
        Bar(f"{case}, longest planning, CPU seconds", max(each["joint"]["cpu"] for each in found), most=seconds),
        Bar(
            f"{case}, median CPU seconds to a first plan",
            statistics.median(each["first"]["cpu"] for each in found),
            most=FIRST_SECONDS,
        ),
    ]
    if tasks == PRACTICE_TASKS:
        ours, practice = (
            statistics.mean(each[name]["makespan"] for each in found) for name in ("joint", "one at a time")
        )
        # No schedule is shorter than the bound, so no planner gains more than this on these workloads.
        bound = statistics.mean(each["joint"]["makespan"] / (1 + each["joint"]["gap"]) for each in found)
        name = f"{case}, shorter than current practice by (no planner more than {1 - bound / practice:.1%})"
        bars.append(Bar(name, 1 - ours / practice, least=PRACTICE_GAIN))
    return bars


def summary(case: str, found: list[dict[str, dict[str, float]]]) -> list[dict[str, object]]:
    """A row for each planner: means over the seeds, and the worst gap."""
    rows: list[dict[str, object]] = []
    for name in found[0]:
        each = [one[name] for one in found]
        rows.append(
            {
                "case": case,
                "seeds": len(found),
                "planner": name,
                "makespan_hours": statistics.mean(one["makespan"] for one in each) / 3600,
                "mean_gap": statistics.mean(one["gap"] for one in each),
                "largest_gap": max(one["gap"] for one in each),
                "cpu_seconds": statistics.mean(one["cpu"] for one in each),
                "wall_seconds": statistics.mean(one["wall"] for one in each),
            }
        )
    return rows


def compare(problem: Problem, seed: int, work: float) -> dict[str, dict[str, float]]:
    """Every planner on one problem; gaps are from the best bound proven."""
    planners: dict[str, Callable[[], Schedule]] = {
        "one at a time": lambda: listed(problem, widest, seed, longest_first=False),
        "equal split": lambda: listed(problem, equal_split(problem), seed),
        "random": lambda: listed(problem, anything, seed),
        "marginal gain": lambda: marginal_gain(problem),
        "longest first": lambda: listed(problem, frugal, seed),
    }
    timed = {name: measure(problem, planner) for name, planner in planners.items()}
    first, timed["first"] = plan_timed(problem, 0.0)
    made, timed["joint"] = plan_timed(problem, work)
    bound = max(first.bound_seconds, made.bound_seconds)
    return {name: {**figures, "gap": figures["makespan"] / bound - 1} for name, figures in timed.items()}


def plan_timed(problem: Problem, work: float) -> tuple[Plan, dict[str, float]]:
    """The joint planner's plan, and its figures."""
    made: list[Plan] = []

    def planner() -> Schedule:
        made.append(plan(problem, work=work))
        assert made[0].schedule is not None
        return made[0].schedule

    figures = measure(problem, planner)
    return made[0], figures


def measure(problem: Problem, planner: Callable[[], Schedule]) -> dict[str, float]:
    """The makespan of what a planner makes, which passes the check, with its wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    schedule = planner()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    check(schedule, problem.cluster)
    return {"makespan": schedule.makespan_seconds, "wall": wall, "cpu": cpu}


def draw(tasks: int, devices: dict[str, int], *, seed: int) -> Problem:
    """A workload of the issue's distribution."""
    dice = random.Random(seed)
    families, options = [], []
    for number in range(tasks):
        hours, exponent = math.exp(dice.uniform(0.0, math.log(20.0))), dice.uniform(0.6, 0.95)
        families.append(Family(name=f"f{number}", members=(Member(task=f"t{number}", steps=STEPS),)))
        options += [
            Option(
                families=(f"f{number}",),
                technique="replicate",
                kind=kind,
                count=count,
                step_seconds=(hours * 3600 / STEPS / count**exponent / SPEEDS[kind],),
            )
            for kind in devices
            for count in (1, 2, 4, 8)
            if 1 + number % 2 <= count <= devices[kind]
        ]
    return Problem(cluster=cluster_of(devices), families=tuple(families), options=tuple(options))


def cluster_of(devices: dict[str, int]) -> Cluster:
    """Nodes of up to 8 devices of one kind."""
    nodes = [(kind, first // PER_NODE, first) for kind, count in devices.items() for first in range(0, count, PER_NODE)]
    return Cluster(
        kinds=tuple(Kind(name=kind, processor="cuda") for kind in devices),
        nodes=tuple(Node(name=f"{kind}{number}", cores=64, memory_bytes=1 << 40) for kind, number, _ in nodes),
        devices=tuple(
            Device(name=f"{kind}{number}:{index}", kind=kind, node=f"{kind}{number}", index=index)
            for kind, number, first in nodes
            for index in range(min(PER_NODE, devices[kind] - first))
        ),
    )


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


if __name__ == "__main__":
    main()
