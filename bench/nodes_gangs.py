"""Gangs of four ranks, copies and a pipeline of four stages, on one, two and four Ray nodes of this machine: what they
have learned must be the same to the bit. Which gangs are worth it is the planner's business, and not asked here.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nemesis import RayNodes
from reporting import Bar

from dovetail import describe
from dovetail.engines import MemberOrder
from dovetail.engines.base import Order
from dovetail.engines.ray import RayEngine, connected, survey
from dovetail.train import checkpoint
from dovetail.vocabulary import Event, Stop, Task

PROGRAM = f"{Path(__file__).parent / 'sweeps' / 'pipelined.py'}:tower"
TECHNIQUES = ("replicate", "pipeline")
PLACES = {
    1: ("n0:0", "n0:1", "n0:2", "n0:3"),
    2: ("n0:0", "n0:1", "n1:0", "n1:1"),
    4: ("n0:0", "n1:0", "n2:0", "n3:0"),
}


def compare_gangs(folder: Path, *, quick: bool) -> tuple[list[dict[str, Any]], list[Bar]]:
    """A row for each technique and number of nodes, and whether all are as on one node."""
    task = Task(name="tower", program=describe.program(PROGRAM), stop=Stop(steps=10 if quick else 100))
    rows = []
    with engine(folder, task) as made:
        for technique in TECHNIQUES:
            tensors, seconds = {}, {}
            for nodes, devices in PLACES.items():
                directory = folder / f"{technique}-{nodes}"
                seconds[nodes] = train(made, task, technique, devices, directory)
                state, damages = checkpoint.recover(directory)
                assert state is not None, damages
                tensors[nodes] = dict(state.tensors)
            for nodes, devices in PLACES.items():
                row = {"of": "gangs", "technique": technique, "ranks": len(devices), "nodes": nodes}
                rows.append({**row, "seconds": seconds[nodes], "differ": differing(tensors[nodes], tensors[1])})
    return rows, [
        Bar("gangs, compared with one node's", sum(row["nodes"] > 1 for row in rows), least=4),
        Bar("gangs, tensors that are not as on one node", sum(row["differ"] for row in rows), most=0),
    ]


@contextlib.contextmanager
def engine(folder: Path, task: Task) -> Iterator[RayEngine]:
    """Four nodes, each of which could hold the whole gang."""
    place = RayNodes(nodes=4, cores=4, label="number")
    try:
        with connected(place.options[-1], programs=[task.program], home=folder):
            cluster, numbers = survey(folder)
            with contextlib.closing(RayEngine(cluster, nodes=numbers, home=folder)) as made:
                yield made
    finally:
        place.close()


def train(made: RayEngine, task: Task, technique: str, devices: tuple[str, ...], directory: Path) -> float:
    """The task by four ranks on these devices, to its end; how long it took."""
    steps = task.stop.last_step(None)
    member = MemberOrder(task=task, attempt=1, until_step=steps, directory=str(directory))
    nodes = len({device.partition(":")[0] for device in devices})
    order = Order(
        name=directory.name,
        purpose="train",
        members=(member,),
        devices=devices,
        technique=technique,
        knobs={"nodes": nodes} if nodes > 1 else {},
    )
    began, events = time.monotonic(), list[Event]()
    made.start(order)
    while not any(event.kind == "released" for event in events):
        events += made.wait()
    ends = [event for event in events if event.kind in ("finished", "failed", "lost")]
    if [event.kind for event in ends] != ["finished"]:
        raise RuntimeError(f"{directory.name} must finish; found {ends}")
    return time.monotonic() - began


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> int:
    """How many tensors are not in both, with the same bits."""
    return sum(
        not (name in one and name in other and torch.equal(one[name], other[name]))
        for name in one.keys() | other.keys()
    )
