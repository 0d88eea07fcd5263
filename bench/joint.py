"""How short the joint planner's schedules are, and how far from what is proven to be the shortest.

Workloads are drawn: one-device hours log-uniform in 1 to 20, speed-up count^e with e uniform in 0.6 to 0.95, counts 1,
2, 4 and 8, every second task with at least 2 devices; nodes of 8 devices. A device of kind b works at 0.6 and one
of kind c at 0.35 of the speed of kind a. Side by side: every task on all devices of a node one after another
(current practice), equal split, random, a greedy one by marginal gain as in Optimus, and longest first.
`python bench/joint.py [--check] [--quick] [--seeds N] [--large-seeds N] [--work W]`
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable

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

Choice = Callable[[list[Option], random.Random], Option]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--large-seeds", type=int, default=None, help="seeds for 100 tasks and more")
    arguments.add_argument("--work", type=float, default=30.0)
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
        Bar(f"{case}, longest planning, seconds", max(each["joint"]["wall"] for each in found), most=seconds),
        Bar(f"{case}, seconds to a first plan", max(each["first"]["wall"] for each in found), most=FIRST_SECONDS),
    ]
    if tasks == PRACTICE_TASKS:
        ours, practice = (
            statistics.mean(each[name]["makespan"] for each in found) for name in ("joint", "one at a time")
        )
        bars.append(Bar(f"{case}, shorter than current practice by", 1 - ours / practice, least=PRACTICE_GAIN))
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
        "one at a time": lambda: listed(problem, widest, seed),
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
        families.append(Family(name=f"f{number}", members=(Member(task=f"t{number}", steps=1000),)))
        options += [
            Option(
                families=(f"f{number}",),
                technique="replicate",
                kind=kind,
                count=count,
                step_seconds=(hours * 3.6 / count**exponent / SPEEDS[kind],),
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


def listed(problem: Problem, choice: Choice, seed: int) -> Schedule:
    """An option for each task, the longest first, each where it ends first."""
    dice, by_task = random.Random(seed), options_by_task(problem)
    chosen = {task: choice(options, dice) for task, options in by_task.items()}
    return placed(problem, chosen)


def placed(problem: Problem, chosen: dict[str, Option]) -> Schedule:
    """The chosen options, longest first, each on the node of its kind that is free first."""
    free = free_devices(problem)
    placements = []
    for task, option in sorted(chosen.items(), key=lambda item: -item[1].step_seconds[0]):
        node = min(
            (each for each in free[option.kind] if len(each) >= option.count), key=lambda each: each[option.count - 1]
        )
        devices, seconds = node[: option.count], option.seconds((1000,))
        start = devices[-1][0]
        node[: option.count] = [(start + seconds, name) for _, name in devices]
        node.sort()
        placements.append(
            Placement(
                tasks=(task,),
                steps=(1000,),
                option=option,
                devices=tuple(name for _, name in devices),
                start_seconds=start,
                duration_seconds=seconds,
            )
        )
    return Schedule(placements=tuple(placements))


def free_devices(problem: Problem) -> dict[str, list[list[tuple[float, str]]]]:
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


def widest(options: list[Option], dice: random.Random) -> Option:
    """Current practice: as many devices as a node has. A kind is drawn by what its devices can do together."""
    return of_drawn_kind(options, dice, lambda mine: max(mine, key=lambda option: option.count))


def frugal(options: list[Option], dice: random.Random) -> Option:
    """The fewest devices."""
    return of_drawn_kind(options, dice, lambda mine: min(mine, key=lambda option: option.count))


def anything(options: list[Option], dice: random.Random) -> Option:
    return dice.choice(options)


def equal_split(problem: Problem) -> Choice:
    """The count nearest below devices / tasks, at least what the task needs."""
    share = max(1.0, len(problem.cluster.devices) / len(problem.families))

    def nearest(mine: list[Option]) -> Option:
        within = [option for option in mine if option.count <= share]
        return max(within, key=lambda o: o.count) if within else min(mine, key=lambda o: o.count)

    return lambda options, dice: of_drawn_kind(options, dice, nearest)


def of_drawn_kind(options: list[Option], dice: random.Random, pick: Callable[[list[Option]], Option]) -> Option:
    """Pick among the options of one kind, kinds being drawn in proportion to devices × speed."""
    kinds = sorted({option.kind for option in options})
    kind = dice.choices(kinds, [CAPACITY.get(each, 1.0) for each in kinds])[0] if len(kinds) > 1 else kinds[0]
    return pick([option for option in options if option.kind == kind])


CAPACITY = {kind: speed * count for (kind, speed), count in zip(SPEEDS.items(), (256, 128, 128), strict=True)}


def marginal_gain(problem: Problem) -> Schedule:
    """As in Optimus: every task its fewest devices, then one doubling at a time to the task that gains most seconds for
    each device, while the devices last; a list schedule of that."""
    by_task = options_by_task(problem)
    dice = random.Random(0)
    chosen = {task: frugal(options, dice) for task, options in by_task.items()}
    left = len(problem.cluster.devices) - sum(option.count for option in chosen.values())
    while steps := [step for step in _widenings(by_task, chosen) if step[2].count - chosen[step[1]].count <= left]:
        _, task, wider = max(steps, key=lambda step: (step[0], step[1]))
        left -= wider.count - chosen[task].count
        chosen[task] = wider
    return placed(problem, chosen)


def _widenings(by_task: dict[str, list[Option]], chosen: dict[str, Option]) -> list[tuple[float, str, Option]]:
    found = []
    for task, now in chosen.items():
        wider = [o for o in by_task[task] if o.kind == now.kind and o.count == 2 * now.count]
        found += [((now.step_seconds[0] - o.step_seconds[0]) / (o.count - now.count), task, o) for o in wider]
    return found


if __name__ == "__main__":
    main()
