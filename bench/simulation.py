"""How fast the control loop is without anything to wait for: 10,000 tasks on 1,000 simulated devices.

Runs the very loop that runs real work, on the simulated engine, and lets `check` judge what really happened.
`python bench/simulation.py [--check] [--quick]`
"""

import argparse
import random
import sys
import time

from reporting import Bar, finish

from dovetail.control import Controller
from dovetail.engines import SimulatedEngine, World
from dovetail.planning import check
from dovetail.store import Store
from dovetail.vocabulary import (
    Cluster,
    Fingerprint,
    Kind,
    Placement,
    Profile,
    Program,
    Schedule,
    Stop,
    Task,
    Workload,
)

BAR_SECONDS, BAR_SECONDS_A_TASK = 5.0, 0.0025
FAMILIES = 40


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    chosen = arguments.parse_args()
    sizes = [(300, 4, 8)] if chosen.quick else [(1_000, 16, 8), (10_000, 125, 8)]
    rows, bars = [], []
    for tasks, nodes, each in sizes:
        runs = [simulate(tasks, nodes, each, noise=noise) for noise in (0.0, 0.3)]
        for noise, (wall, cpu, makespan, bound, plans) in zip((0.0, 0.3), runs, strict=True):
            row = {"tasks": tasks, "devices": nodes * each, "noise": noise, "wall_seconds": wall, "cpu_seconds": cpu}
            rows.append({**row, "makespan_hours": makespan / 3600, "over_bound": makespan / bound, "plans": plans})
        most = BAR_SECONDS + tasks * BAR_SECONDS_A_TASK
        bars.append(Bar(f"{tasks} tasks on {nodes * each} devices, wall seconds", runs[0][0], most=most))
    sys.exit(finish("simulation", rows, bars, check=chosen.check, quick=chosen.quick))


def simulate(tasks: int, nodes: int, each: int, *, noise: float) -> tuple[float, float, float, float, int]:
    """Wall and CPU seconds of one simulation, its makespan, the bound, and how often it planned."""
    cluster = Cluster.uniform(Kind(name="sim", processor="cpu"), nodes=nodes, devices_per_node=each)
    generator = random.Random(0)
    seconds = {f"f{n}": generator.uniform(0.1, 2.0) for n in range(FAMILIES)}
    workload = Workload(
        name="simulated",
        tasks=tuple(
            Task(name=f"t{n}", program=Program(reference="a.py:f"), stop=Stop(steps=generator.randrange(100, 5_000)))
            for n in range(tasks)
        ),
    )
    factors = random.Random(1)
    world = World(
        fingerprint=lambda task: Fingerprint(family=f"f{int(task.name[1:]) % FAMILIES}"),
        profile=lambda family, kind, count: Profile(
            family=family, kind=kind, count=count, step_seconds=seconds[family] / count**0.7, peak_bytes=1 << 30
        ),
        slowness=lambda order: factors.uniform(1 - noise, 1 + noise),
    )
    wall, cpu = time.perf_counter(), time.process_time()
    with Store(None, write=True) as store:
        engine = SimulatedEngine(world, kind_of=lambda device: "sim")
        controller = Controller(workload, cluster=cluster, store=store, engine=engine)
        controller.reconcile()
        controller.measure()
        began = engine.now()
        controller.run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert all(one.status == "finished" for one in controller.progress.values())
        check(happened(store, began), cluster)
        bound = controller.plans[0][1].bound_seconds
        return wall, cpu, engine.now() - began, bound, len(store.plans())


def happened(store: Store, began: float) -> Schedule:
    """The schedule that really ran, from the events alone."""
    started, placements = {}, []
    for _, event in store.events():
        if event.kind == "started":
            started[event.placement] = event
        elif event.kind == "released" and (start := started.get(event.placement)):
            placements.append(
                Placement(
                    tasks=(start.task,),
                    steps=(start.until,),
                    option=start.option,
                    devices=tuple(start.devices),
                    start_seconds=start.at_seconds - began,
                    duration_seconds=event.at_seconds - start.at_seconds,
                )
            )
    return Schedule(placements=tuple(placements))


if __name__ == "__main__":
    main()
