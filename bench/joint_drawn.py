"""The workloads of `bench/joint.py`, drawn as it says."""

import math
import random

from dovetail.planning import Problem
from dovetail.vocabulary import Cluster, Device, Family, Kind, Member, Node, Option

SPEEDS = {"a": 1.0, "b": 0.6, "c": 0.35}
PER_NODE = 8
STEPS = 1000


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
