"""Pipelines over the devices of one node, where they should be clearly faster than what was measured."""

import functools
import math
from collections.abc import Iterator, Sequence

from dovetail.planning.fitting import counts, devices_per_node
from dovetail.planning.options.layers import with_layers
from dovetail.planning.options.trials import CLEARLY
from dovetail.planning.pipeline.partition import Fabric
from dovetail.planning.techniques import pipeline
from dovetail.vocabulary import Cluster, Kind, Option, Profile, Rejection


def pipelined(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option]:
    """Pipelines of families whose layers are known: of one stage for each device, with the timetable that the program
    asks for, and else with 1F1B, which is the mathematics of one device."""
    for kind in cluster.kinds:
        mine = [each for each in profiles if each.kind == kind.name]
        for profile in with_layers(each for each in mine if each.count == 1 and each.edges):
            if profile.accumulate < 2 and not profile.timetable:
                continue
            for count in counts(cluster, kind, technique="pipeline"):
                rivals = [each for each in mine if each.family == profile.family and each.count <= count]
                is_threaded = kind.processor != "cpu" or any(each.count == count for each in rivals)
                found = _pipeline(profile, kind, _neighbours(cluster, kind, count))
                least_seconds = min((each.step_seconds for each in rivals if _fits(each, kind)), default=math.inf)
                if is_threaded and isinstance(found, Option) and found.step_seconds[0] < CLEARLY * least_seconds:
                    yield found


def _fits(profile: Profile, kind: Kind) -> bool:
    """Whether a device holds it: what was measured on a larger kind may be too large for this one."""
    return kind.processor == "cpu" or not 0 < kind.memory_bytes < profile.peak_bytes


@functools.lru_cache(maxsize=1024)
def _pipeline(profile: Profile, kind: Kind, fabric: Fabric) -> Option | Rejection:
    timetable, devices = profile.timetable or "1f1b", len(fabric.places)
    made = pipeline.predict(profile, kind=kind, fabric=fabric, timetable=timetable, depth=devices, width=1)
    return made.option if isinstance(made, pipeline.Prediction) else made


def _neighbours(cluster: Cluster, kind: Kind, count: int) -> Fabric:
    """So many devices of a kind on one node that has them."""
    per_node = devices_per_node(cluster, kind.name)
    node = next(name for name, devices in per_node.items() if devices >= count)
    return Fabric.of(cluster, devices=[d.name for d in cluster.of_kind(kind.name) if d.node == node][:count])
