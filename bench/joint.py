"""How short the planner's schedules are, and how far from what is proven to be the shortest.

Workloads are drawn: one-device hours log-uniform in 1 to 20, speed-up count^e with e uniform in 0.6 to 0.95, counts 1,
2, 4 and 8, every second task with at least 2 devices; nodes of 8 devices. A device of kind b works at 0.6 and one
of kind c at 0.35 of the speed of kind a. Side by side: every task on all devices of a node one after another, as they
come (current practice), equal split, random, a greedy one by marginal gain as in Optimus, and longest first; on unlike
kinds each task goes where it ends first.
`python bench/joint.py [--check] [--quick] [--seeds N] [--large-seeds N] [--only CASE]`, a case as in "40x8+4+4"
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from joint_drawn import draw
from joint_peers import anything, equal_split, frugal, listed, marginal_gain, widest
from reporting import Bar, finish

from dovetail.planning import Problem, check, plan
from dovetail.vocabulary import Plan, Schedule

# Tasks, devices of each kind, the gap at most, and the CPU seconds within which. The planner is given three fifths of
# those as work: a unit is about a second, and takes longer on a busy machine.
CASES = (
    (4, {"a": 8}, 0.01, 60.0),
    (8, {"a": 8}, 0.01, 60.0),
    (12, {"a": 8}, 0.01, 60.0),
    (12, {"a": 8, "b": 4}, 0.01, 60.0),
    (40, {"a": 8, "b": 4, "c": 4}, 0.03, 20.0),
    (100, {"a": 64}, 0.03, 60.0),
    (2000, {"a": 256, "b": 128, "c": 128}, 0.05, 120.0),
)
WORK_SHARE = 0.6
QUICK_CASES = ((4, {"a": 8}, 0.01, 60.0), (30, {"a": 16, "b": 8}, 0.1, 60.0))
QUICK_WORK = 1.0
# Five draws of what takes longest for what it shows.
FEW_SEEDS, FEW_SEEDS_TASKS = 5, 40
FIRST_SECONDS = 1.0
PRACTICE_TASKS, PRACTICE_GAIN = 12, 0.3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--large-seeds", type=int, default=None, help="seeds for 100 tasks and more")
    arguments.add_argument("--only", default="", help="one case, as in 40x8+4+4")
    chosen = arguments.parse_args()
    rows: list[dict[str, object]] = []
    bars: list[Bar] = []
    # Loading the solver takes half a second once in a process; it is no part of planning.
    plan(draw(2, {"a": 2}, seed=0), work=0.1)
    for tasks, devices, gap, seconds in QUICK_CASES if chosen.quick else CASES:
        sizes = "+".join(map(str, devices.values()))
        if chosen.only not in ("", f"{tasks}x{sizes}"):
            continue
        work = QUICK_WORK if chosen.quick else WORK_SHARE * seconds
        seeds = 1 if chosen.quick else chosen.seeds if tasks < 100 else chosen.large_seeds or chosen.seeds
        seeds = min(seeds, FEW_SEEDS) if tasks == FEW_SEEDS_TASKS else seeds
        found = [compare(draw(tasks, devices, seed=seed), seed, work) for seed in range(seeds)]
        case = f"{tasks} tasks on {sizes}"
        rows += summary(case, found)
        bars += judge(case, tasks, found, gap, seconds)
    sys.exit(finish("joint", rows, bars, check=chosen.check, quick=chosen.quick or bool(chosen.only)))


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
    """The planner's plan, and its figures."""
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


if __name__ == "__main__":
    main()
