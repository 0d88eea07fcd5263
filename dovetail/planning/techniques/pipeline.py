"""What a pipelined task takes: stages from the partition of its profile, a step from simulating their timetable.

A step's microbatches are the batches it accumulates, or a division of them; seconds and activations of layers are
scaled with their size. What a measured step takes besides its layers (the optimizer, as a rule) is divided among stages
by their parameters. The partition with the fastest slowest stage need not have the shortest step where the pipeline
fills and drains, so every depth is simulated. Bytes are those of the timetable's microbatches in flight and weight
versions. Does not know which options a cluster can hold, nor what else runs.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.planning.fitting import Width, linked_nodes, widths
from dovetail.planning.pipeline.partition import Fabric, Graph, Partition, Stage, Terms, appraise, partition
from dovetail.planning.pipeline.partition.terms import stage_bytes
from dovetail.planning.pipeline.timetables import (
    SPARING,
    TIMETABLES,
    Durations,
    Simulated,
    Timetable,
    one_step,
    simulate,
    versions_kept,
)
from dovetail.planning.pipeline.timetables.timing import held_at
from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import CLEARLY, MOMENTS, Evidence, TechniqueSpec, on_its_kind, with_layers
from dovetail.vocabulary import Cluster, InvalidRecord, Kind, NoFeasiblePlan, Option, Profile, Rejection

_WEIGHTS = {"stashing": "stashing", "vertical_sync": "stashing", "2bw": "double_buffered"}
_SINGLE = ("zero_bubble", "interleaved")  # one rank for each stage
# Timetables that are one device's mathematics, so that planners may choose among them, with their chunks a rank.
_SYNCHRONOUS = (("1f1b", 1), ("zero_bubble", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4))
# Timetables that never flush: so many steps are simulated, and the last ones counted.
_STEPS = 4
# So many microbatches are in flight beyond what a timetable needs, unless memory is short: the makers' own default.
_SPARE = 1
# Where the first timetable idles for less than this share, others are not looked at.
_BUBBLE = 0.05
# Between a device's name and the number of one of its chunks.
_CHUNK = "\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An option with what it came from: the stages, and when each rank does what in a step (in several, where there is
    no flush)."""

    option: Option
    partition: Partition
    simulated: Simulated


def option(profile: Profile, *, kind: Kind) -> Option:
    """The option that was measured as a pipelined one, with the knobs it was measured with.

    >>> profile = Profile(family="f", kind="h200", count=4, step_seconds=1.5, peak_bytes=23 << 30,
    ...                   technique="pipeline", knobs={"timetable": "1f1b"})
    >>> made = option(profile, kind=Kind(name="h200", processor="cuda"))
    >>> made.technique, made.count, made.step_seconds, dict(made.knobs)
    ('pipeline', 4, (1.5,), {'timetable': '1f1b'})
    """
    made = dataclasses.replace(resident.option(profile, kind=kind), technique="pipeline", knobs=profile.knobs)
    # One rank a device, each with a core and, on an accelerator, a context of its own.
    extra = 0 if kind.processor == "cpu" else (profile.count - 1) * resident.CUDA_HOST_BYTES
    return dataclasses.replace(made, cores=profile.count, host_bytes=profile.host_bytes or made.host_bytes + extra)


def predict(
    profile: Profile,
    *,
    kind: Kind,
    fabric: Fabric,
    timetable: str = "1f1b",
    microbatches: int | None = None,
    recompute: bool = False,
    depth: int | None = None,
    width: int | None = None,
    chunks: int = 1,
) -> Prediction | Rejection:
    """The option of a family on all devices of a fabric of one kind, from a resident profile with layers; or why not.

    `microbatches` of a step must be a multiple of the batches it accumulates; left out, they are just those. `depth` is
    over how many ranks the model is cut; left out, the number with the shortest step. `width` is how many replicas each
    stage has; left out, any number. `chunks` are the stages on each rank, where they are interleaved.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = tuple(LayerProfile(name=n, operation="Linear", forward_seconds=0.01, backward_seconds=0.02)
    ...                for n in "abcd")
    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.96, peak_bytes=1 << 20, layers=layers,
    ...                   edges=(("a", "b"), ("b", "c"), ("c", "d")), accumulate=8)
    >>> fabric = Fabric.uniform(sizes=(2,), bytes_per_second=(1e9,), kind="cpu")
    >>> found = predict(profile, kind=Kind(name="cpu", processor="cpu"), fabric=fabric, depth=2)
    >>> round(found.option.step_seconds[0], 3), round(found.simulated.bubble_share, 3)
    (0.54, 0.111)
    """
    if timetable not in TIMETABLES:
        raise InvalidRecord(f"timetable must be one of {sorted(TIMETABLES)}, got {timetable!r}.")
    count = profile.accumulate if microbatches is None else microbatches
    if count < 1 or count % profile.accumulate:
        raise InvalidRecord(
            f"a step's microbatches must be a multiple of the {profile.accumulate} batches it accumulates, got {count}."
        )
    if {place.kind for place in fabric.places} != {kind.name}:
        raise InvalidRecord(f"an option is for one kind; the fabric must have devices of {kind.name!r} only.")
    graph = Graph.of(profile).scaled(profile.accumulate / count)
    terms = _terms(profile, timetable, count, recompute=recompute)
    row, rooms = _chunked(fabric, chunks), {place.name: place.memory_bytes for place in fabric.places}
    found: list[tuple[float, Partition, Simulated, int]] = []
    reasons: list[str] = []
    for ranks in range(1, len(fabric.places) + 1) if depth is None else (depth,):
        try:
            made = _partition(graph, row, terms, ranks * chunks, 1 if timetable in _SINGLE else width)
            made, run, spare = _roomy(made, graph, row, profile, terms, timetable, count, chunks, rooms)
        except (InvalidRecord, NoFeasiblePlan) as error:
            reasons.append(str(error))
            continue
        if len(set(_ranks_on_nodes(made, fabric).values())) > 1:
            reasons.append(f"as many ranks must be on each node; of {ranks} stages there are not.")
            continue
        # The simulation knows messages, and not that a device's, and stages of a node, share a port.
        found.append((max(_step_seconds(run, timetable), made.seconds * count), made, run, spare))
    if not found:
        return _rejection(profile, kind, fabric, reasons[0])
    seconds, made, run, spare = min(found, key=lambda one: one[0])
    knobs = {"timetable": timetable, "microbatches": count, "recompute": recompute} | _where(made, chunks)
    knobs |= _across(made, fabric, chunks)
    if spare != _SPARE:
        knobs["spare"] = spare
    return Prediction(option=_option(profile, kind, made, seconds, knobs), partition=made, simulated=run)


def _ranks_on_nodes(made: Partition, fabric: Fabric) -> Counter[tuple[str, ...]]:
    nodes = {place.name: place.address for place in fabric.places}
    return Counter(nodes[device] for device in _bytes_by_device(made))


def _across(made: Partition, fabric: Fabric, chunks: int) -> dict[str, object]:
    """Over how many nodes the ranks go, and, where they are not in the order of the nodes' devices, which of these each
    has."""
    nodes = len(_ranks_on_nodes(made, fabric))
    if nodes == 1:
        return {}
    places = {place.name: number for number, place in enumerate(fabric.places)}
    ranks = [device for stage in made.stages[: len(made.stages) // chunks] for device in stage.devices]
    row = tuple(places[_device(device)] for device in ranks)
    return {"nodes": nodes} | ({"row": row} if list(row) != sorted(row) else {})


def foreseen(profile: Profile, knobs: Mapping[str, Any], *, fabric: Fabric) -> Simulated | None:
    """When each rank of a pipeline with these knobs should do what, in one step; None where they do not say which
    layers are where.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = tuple(LayerProfile(name=n, operation="Linear", forward_seconds=0.01, backward_seconds=0.02)
    ...                for n in "ab")
    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.12, peak_bytes=1 << 20, layers=layers,
    ...                   edges=(("a", "b"),), accumulate=2)
    >>> fabric = Fabric.uniform(sizes=(2,), bytes_per_second=(1e9,), kind="cpu")
    >>> round(foreseen(profile, {"stages": ["a", "b"]}, fabric=fabric).seconds, 3)
    0.09
    """
    timetable, stages = knobs.get("timetable", "1f1b"), knobs.get("stages")
    if timetable not in TIMETABLES or not stages:
        return None
    count, copies = knobs.get("microbatches", profile.accumulate), knobs.get("copies", 1)
    chunks = knobs.get("chunks", 1)
    fabric = _chunked(fabric, chunks)
    graph = Graph.of(profile).scaled(profile.accumulate / count)
    terms = _terms(profile, timetable, count, recompute=knobs.get("recompute", False))
    widths = (knobs.get("replicas") or (1,) * (len(stages) // chunks)) * chunks
    made = appraise(graph, fabric, layers=stages, widths=widths, copies=copies, terms=terms)
    table = _timetable(made, timetable, count, spare=knobs.get("spare", _SPARE), chunks=chunks)
    run = simulate(table, _durations(made, graph, fabric, profile, count))
    return one_step(run, microbatches=count, step=_STEPS // 2) if timetable in _WEIGHTS else run


# Timetables of one mathematics share their stages.
@functools.lru_cache(maxsize=256)
def _partition(graph: Graph, fabric: Fabric, terms: Terms, depth: int, width: int | None) -> Partition:
    return partition(graph, fabric, terms=terms, depth=depth, width=width)


def _chunked(fabric: Fabric, chunks: int) -> Fabric:
    """The row with a place for each of a device's chunks: stage s of d ranks is on rank s modulo d. What the chunks of
    a device take together is seen to afterwards."""
    if chunks == 1:
        return fabric
    places = [
        dataclasses.replace(place, name=f"{place.name}{_CHUNK}{chunk}", memory_bytes=0)
        for chunk in range(chunks)
        for place in fabric.places
    ]
    return dataclasses.replace(fabric, places=tuple(places))


def _roomy(
    made: Partition,
    graph: Graph,
    fabric: Fabric,
    profile: Profile,
    terms: Terms,
    timetable: str,
    microbatches: int,
    chunks: int,
    rooms: Mapping[str, int],
) -> tuple[Partition, Simulated, int]:
    """The partition with the bytes that its timetable takes, that timetable's times, and how many microbatches it has
    to spare, where it can have any: none if memory is short."""
    for spare in (_SPARE, 0) if timetable in SPARING else (_SPARE,):
        table = _timetable(made, timetable, microbatches, spare=spare, chunks=chunks)
        exact = _with_bytes(made, graph, terms, table)
        if not _short(exact, rooms):
            break
    if short := _short(exact, rooms):
        device, missing = max(short.items(), key=lambda item: item[1])
        number = next(n for n, stage in enumerate(exact.stages) if device in map(_device, stage.devices))
        raise NoFeasiblePlan(
            f"stage {number} of {len(exact.stages)} must fit its devices; with {exact.stages[number].in_flight} "
            f"microbatches in flight, as {timetable!r} has them, it is {missing} bytes too few."
        )
    return exact, simulate(table, _durations(exact, graph, fabric, profile, microbatches)), spare


def _timetable(made: Partition, timetable: str, microbatches: int, *, spare: int, chunks: int) -> Timetable:
    knobs = {"spare": spare} if timetable in SPARING else {}
    if timetable == "interleaved":
        knobs["chunks"] = chunks
    if timetable == "2bw":
        knobs["steps"] = _STEPS
    count = microbatches * _STEPS if timetable in ("stashing", "vertical_sync") else microbatches
    replicas = [stage.replicas for stage in made.stages[: len(made.stages) // chunks]]
    return TIMETABLES[timetable](replicas, microbatches=count, **knobs)


def _with_bytes(made: Partition, graph: Graph, terms: Terms, table: Timetable) -> Partition:
    by_name, arriving = {layer.name: layer for layer in graph.layers}, 0
    held, versions = held_at(table), versions_kept(table)
    stages: list[Stage] = []
    for number, stage in enumerate(made.stages):
        ranks = table.holders[number]
        layers = [by_name[name] for name in stage.layers]
        needed = stage_bytes(
            terms,
            held=held[number],
            versions=max(versions[rank] for rank in ranks),
            parameters=sum(layer.parameter_bytes for layer in layers),
            activations=sum(layer.activation_bytes for layer in layers),
            arriving=arriving,
        )
        stages.append(dataclasses.replace(stage, device_bytes=round(needed), in_flight=held[number]))
        arriving = stage.crossing_bytes
    return dataclasses.replace(made, stages=tuple(stages))


def _short(made: Partition, rooms: Mapping[str, int]) -> dict[str, int]:
    """By how many bytes each device that does not hold its stages is short."""
    found = {device: needed - rooms[device] for device, needed in _bytes_by_device(made).items() if rooms[device]}
    return {device: missing for device, missing in found.items() if missing > 0}


def _bytes_by_device(made: Partition) -> Counter[str]:
    """What the stages on each device take there; several, where they are chunks."""
    found = Counter[str]()
    for stage in made.stages:
        for place in stage.devices:
            found[_device(place)] += stage.device_bytes
    return found


def _device(place: str) -> str:
    return place.partition(_CHUNK)[0]


def _where(made: Partition, chunks: int) -> dict[str, object]:
    """What a session needs to build the stages."""
    ranked = made.stages[: len(made.stages) // chunks]
    return {
        "stages": tuple(stage.layers for stage in made.stages),
        "replicas": tuple(stage.replicas // made.copies for stage in ranked),
        "copies": made.copies,
    } | ({"chunks": chunks} if chunks > 1 else {})


def _rejection(profile: Profile, kind: Kind, fabric: Fabric, reason: str) -> Rejection:
    return Rejection(
        families=(profile.family,), technique="pipeline", kind=kind.name, count=len(fabric.places), reason=reason
    )


def _terms(profile: Profile, timetable: str, microbatches: int, *, recompute: bool) -> Terms:
    weights = _WEIGHTS.get(timetable, "flush")
    return Terms(
        weights=weights,
        microbatches=None if weights == "stashing" else microbatches,
        state_bytes_per_parameter_byte=profile.optimizer_bytes / max(profile.parameter_bytes, 1),
        recompute=recompute,
    )


def _durations(made: Partition, graph: Graph, fabric: Fabric, profile: Profile, microbatches: int) -> Durations:
    by_name = {layer.name: layer for layer in graph.layers}
    forward = tuple(sum(by_name[name].forward_seconds for name in stage.layers) for stage in made.stages)
    # With recomputation a stage computes more than its layers: its forward again.
    backward = tuple(stage.compute_seconds - f for stage, f in zip(made.stages, forward, strict=True))
    besides = max(profile.step_seconds - graph.seconds * microbatches, 0.0)
    parameters = [sum(by_name[name].parameter_bytes for name in stage.layers) for stage in made.stages]
    whole = sum(parameters)
    update = tuple(besides * (each / whole if whole else 1 / len(parameters)) for each in parameters)
    return Durations(forward=forward, backward=backward, transfer=_transfers(made, fabric), update=update)


def _transfers(made: Partition, fabric: Fabric) -> tuple[float, ...]:
    """A message over each cut, by the slowest level between its ends."""
    addresses = {place.name: place.address for place in fabric.places}
    return tuple(
        stage.crossing_bytes / fabric.bytes_per_second[_level(stage, following, addresses)]
        for stage, following in zip(made.stages, made.stages[1:], strict=False)
    )


def _level(stage: Stage, following: Stage, addresses: dict[str, tuple[str, ...]]) -> int:
    found = {addresses[device] for device in (*stage.devices, *following.devices)}
    depth = len(next(iter(found)))
    return next((level for level in range(depth) if len({a[: depth - level] for a in found}) == 1), depth)


def _step_seconds(simulated: Simulated, timetable: str) -> float:
    if timetable not in _WEIGHTS:
        return simulated.seconds
    # Steady: from the end of the first step's share of the work to the last's.
    return simulated.seconds / _STEPS if len(simulated.ranks) == 1 else _steady(simulated)


def _steady(simulated: Simulated) -> float:
    """Seconds of a step once the pipeline is full: between the first and last quarter of the first rank's backwards."""
    ends: Sequence[float] = [t.end for t in simulated.ranks[0] if t.action.operation == "backward"]
    quarter = len(ends) // _STEPS
    return (ends[-1 - quarter] - ends[quarter - 1]) / (_STEPS - 2) if quarter else simulated.seconds


def _option(profile: Profile, kind: Kind, made: Partition, seconds: float, knobs: dict[str, object]) -> Option:
    alone = resident.option(dataclasses.replace(profile, count=1), kind=kind)
    held = _bytes_by_device(made)
    cpu, count = kind.processor == "cpu", len(held)
    evaluation = alone.step_seconds[0] - profile.step_seconds
    return Option(
        families=(profile.family,),
        technique="pipeline",
        kind=kind.name,
        count=count,
        step_seconds=(seconds + evaluation,),
        knobs=knobs,
        start_seconds=alone.start_seconds,
        device_bytes=0 if cpu else max(held.values()),
        host_bytes=held.total() if cpu else alone.host_bytes + (count - 1) * resident.CUDA_HOST_BYTES,
        cores=count,
        measured=False,
    )


def offers(evidence: Evidence) -> Iterator[Option]:
    """Pipelines over the devices of one node, or of several, of families whose layers are known, where they should be
    clearly faster than what was measured on as many devices."""
    cluster = evidence.cluster
    for kind in cluster.kinds:
        mine = evidence.of(kind=kind.name)
        for profile in with_layers(each for each in mine if each.count == 1 and each.edges):
            if profile.accumulate < 2 and not profile.timetable:
                continue
            for width in widths(cluster, kind):
                count = width.count
                rivals = [each for each in mine if each.family == profile.family and each.count <= count]
                threaded = kind.processor == "cpu" and width.nodes == 1
                is_threaded = not threaded or any(each.count == count for each in rivals)
                able = [each for each in rivals if _fits(each, kind) and evidence.may(each.technique, each.knobs)]
                least_seconds = min((each.step_seconds for each in able), default=math.inf)
                # Not even without a bubble: then nothing is simulated.
                if is_threaded and profile.step_seconds / count < CLEARLY * least_seconds:
                    found = _variants(profile, kind, _neighbours(cluster, kind, width))
                    rate = width.link_bytes_per_second
                    faster = (each for each in found if each.step_seconds[0] < CLEARLY * least_seconds)
                    yield from (
                        dataclasses.replace(each, link_bytes_per_second=rate) if rate else each for each in faster
                    )


def _fits(profile: Profile, kind: Kind) -> bool:
    """Whether a device holds it: what was measured on a larger kind may be too large for this one."""
    return kind.processor == "cpu" or not 0 < kind.memory_bytes < profile.peak_bytes


# Planners ask again and again as tasks come and go, with the same profiles.
@functools.lru_cache(maxsize=1024)
def _variants(profile: Profile, kind: Kind, fabric: Fabric) -> tuple[Option, ...]:
    """The pipelines over all devices of a fabric, each timetable in its best depth and widths: the one that the program
    asks for, or else all that are the mathematics of one device. Computed again is only what does not fit otherwise.
    Which is best is seen where options are compared; where that is refused when it is tried, the next is there."""
    found: list[Prediction] = []
    for timetable, chunks in ((profile.timetable, 1),) if profile.timetable else _SYNCHRONOUS:
        if chunks > 2 and not (found and _is_better(found[-1], found[0])):
            continue  # if two chunks a rank win nothing, more do not either
        for recompute in (False, True):
            made = _quickest(profile, kind, fabric, timetable=timetable, chunks=chunks, recompute=recompute)
            if made is not None:
                found.append(made)
                break
        if found and found[0].simulated.bubble_share < _BUBBLE and not found[0].option.knobs["recompute"]:
            break  # all that another could win is what the first one idles
    return tuple(each.option for each in found)


def _is_better(made: Prediction, first: Prediction) -> bool:
    return "chunks" in made.option.knobs and made.option.step_seconds < first.option.step_seconds


def _quickest(profile: Profile, kind: Kind, fabric: Fabric, *, timetable: str, **how: Any) -> Prediction | None:
    """The quickest of a timetable's shapes on all devices: from two wide stages to a narrow one for each device."""
    devices = len(fabric.places)
    depths = {devices} if timetable in _SINGLE else {2, max(2, devices // 2), devices}
    made = [predict(profile, kind=kind, fabric=fabric, timetable=timetable, depth=d, **how) for d in sorted(depths)]
    found = [each for each in made if isinstance(each, Prediction) and each.option.count == devices]
    return min(found, key=lambda each: each.option.step_seconds, default=None)


def _neighbours(cluster: Cluster, kind: Kind, width: Width) -> Fabric:
    """So many devices of a kind, on the first nodes that have them, linked as well as all others on which they may run:
    as the width says, and no better."""
    each = width.count // width.nodes
    nodes = linked_nodes(cluster, kind, width)
    mine = [[device.name for device in cluster.of_kind(kind.name) if device.node == node][:each] for node in nodes]
    fabric = Fabric.of(cluster, devices=[device for devices in mine for device in devices])
    if not width.link_bytes_per_second:
        return fabric
    return dataclasses.replace(fabric, bytes_per_second=(fabric.bytes_per_second[0], width.link_bytes_per_second))


SPEC = TechniqueSpec(
    name="pipeline",
    runtime="dovetail.train.pipeline:PIPELINE",
    option=on_its_kind(option),
    offers=offers,
    ranked=True,
    knobs={
        "timetable": tuple(TIMETABLES),
        "microbatches": (),
        "stages": (),
        "replicas": (),
        "copies": (),
        "recompute": (False, True),
        "chunks": (2, 4),
        "spare": (),
        "nodes": (),
        "row": (),
    },
    approximations=MOMENTS,
)
