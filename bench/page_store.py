"""A store of thousands of tasks with a thousand points each, as a controller would have left it, written in one go."""

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.store import Store
from dovetail.store.checksums import checksum
from dovetail.vocabulary import (
    Cluster,
    Kind,
    Option,
    Placement,
    Plan,
    Program,
    Schedule,
    Stop,
    Task,
    read_event,
    to_json,
)

START = 1_790_000_000.0
DEVICES = 64
SECONDS = 50.0


def fill(home: Path, *, tasks: int, points: int) -> None:
    """Write it. Of every hundred tasks one has failed, and the last few run or wait."""
    made = [
        Task(
            name=f"net width={32 << (n % 5)} rate={10 ** -(1 + n % 4):g} seed={n}",
            program=Program(reference="sweeps/nets.py:net", source="9f2c"),
            parameters={"width": 32 << (n % 5), "rate": 10 ** -(1 + n % 4), "seed": n},
            stop=Stop(steps=points),
        )
        for n in range(tasks)
    ]
    kind = Kind(name="h100", processor="cuda", memory_bytes=80 << 30, price_per_hour=2.5)
    cluster = Cluster.uniform(kind, nodes=DEVICES // 8, devices_per_node=8, cores=64)
    names = [device.name for device in cluster.devices]
    option = Option(families=("f",), technique="resident", kind="h100", count=1, step_seconds=(SECONDS / points,),
                    device_bytes=11 << 30)  # fmt: skip
    placements = [
        Placement(
            tasks=(task.identity,), steps=(points,), option=option, devices=(names[n % DEVICES],),
            start_seconds=SECONDS * (n // DEVICES), duration_seconds=SECONDS,
        )
        for n, task in enumerate(made)
    ]  # fmt: skip
    with Store(home, write=True) as store:
        store.add(tasks=[("load", task) for task in made], hardware=[("cluster", cluster)])
        plan = Plan(schedule=Schedule(placements=tuple(placements)), explanation=("all: resident on 1 × h100",))
        number = store.add_plan(plan, workload="load", at_seconds=START)
        said = {"plan": number, "workload": "load", "because": "the run began", "bound_seconds": 1.0}
        said["makespan_seconds"] = placements[-1].end_seconds
        store.add(events=[read_event("planned", at_seconds=START, data=said)])
        for n, placement in enumerate(placements):
            store.add(events=_events(n, placement, points, running=n >= tasks - DEVICES))
    _write_points(home, sorted(placements, key=lambda each: each.tasks[0]), points)


def _events(n: int, placement: Placement, points: int, *, running: bool) -> list[Any]:
    task, at = placement.tasks[0], START + placement.start_seconds
    started = {
        "placement": f"p{n}", "devices": list(placement.devices), "step": 0, "until": points,
        "predicted_seconds": placement.duration_seconds, "option": to_json(placement.option),
    }  # fmt: skip
    found = [
        read_event("described", task=task, at_seconds=START),
        read_event("fingerprinted", task=task, at_seconds=START, data={"family": f"family{n % 20}"}),
        read_event("started", task=task, attempt=1, at_seconds=at, data=started),
    ]
    if running:
        return found
    end = {"task": task, "attempt": 1, "at_seconds": at + 0.97 * placement.duration_seconds}
    if n % 100 == 0:
        return [
            *found,
            read_event("failed", **end, data={"reason": f"the loss was nan at step {n}", "log": "Traceback"}),
        ]
    saved = read_event("saved", **end, data={"step": points, "path": f"{task}/{points}"})
    return [*found, saved, read_event("finished", **end, data={"step": points, "metrics": {"loss": 1.0}})]


def _write_points(home: Path, placements: list[Placement], points: int) -> None:
    """All points, in the order of their key; a store's own way syncs what a bench can make again."""
    connection = sqlite3.connect(home / "store.sqlite", isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)", _rows(placements, points))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _rows(placements: list[Placement], points: int) -> Iterator[tuple[Any, ...]]:
    for placement in placements:
        task, at = placement.tasks[0], START + placement.start_seconds
        floor = 1.0 + int(task[:4], 16) / 65536
        for step in range(points):
            row = (task, "loss", step, floor + 2.0 * math.exp(-step / 200), at + SECONDS * step / points)
            yield (*row, checksum(*row))
