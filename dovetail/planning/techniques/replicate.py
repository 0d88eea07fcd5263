"""What a replicated task takes: a whole copy on each device, each with its part of every batch's rows.

A step computes 1/n of the rows, which divides the device's work and not the host's, and then waits for the mean of the
gradients: each rank sends and receives them 2(n-1)/n times over (a ring). torch begins to send while backward still
computes; that is left out, because so is what the slowest rank costs the others. Weights, gradients and optimizer state
are whole on every device, activations 1/n.

Where devices are at hand a trial decides, and only what was measured is offered. An imagined cluster has nobody to ask,
so there copies are offered as predicted.
"""

import dataclasses
import math
from collections.abc import Iterator

from dovetail.planning.fitting import Width, misfit, widths
from dovetail.planning.pipeline.partition.fabric import network_rate
from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import (
    CLEARLY,
    Evidence,
    TechniqueSpec,
    Trial,
    always,
    divided_seconds,
    on_its_kind,
)
from dovetail.vocabulary import Cluster, Kind, Option, Profile

# What a step of several ranks takes besides, to agree and to average losses: rounds of small messages.
ROUNDS_SECONDS = {"cpu": 4e-3, "cuda": 3e-4}
# Bytes a second between two ranks where nobody measured them: a slow socket, and a device's bus.
UNKNOWN_BYTES_PER_SECOND = {"cpu": 1e9, "cuda": 10e9}


def option(profile: Profile, *, kind: Kind) -> Option:
    """The replicated option that a profile stands for. Its peak is that of rank 0, and the others' is the same.

    >>> profile = Profile(family="f", kind="cpu", count=2, step_seconds=0.5, peak_bytes=1 << 30, technique="replicate")
    >>> replicated = option(profile, kind=Kind(name="cpu", processor="cpu"))
    >>> replicated.technique, replicated.cores, replicated.host_bytes >> 30
    ('replicate', 2, 2)
    """
    one = resident.option(profile, kind=kind)
    return dataclasses.replace(
        one, technique="replicate", cores=profile.count, host_bytes=profile.count * one.host_bytes, knobs=profile.knobs
    )


def predict(profile: Profile, *, kind: Kind, width: Width, bytes_per_second: float) -> Option:
    """The option of so many copies, from the profile of one that was resident on one device of the kind.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.4, peak_bytes=20 << 30,
    ...                   parameter_bytes=2 << 30, optimizer_bytes=4 << 30)
    >>> h200 = Kind(name="h200", processor="cuda")
    >>> two = predict(profile, kind=h200, width=Width(2), bytes_per_second=100e9)
    >>> two.device_bytes >> 30, round(two.step_seconds[0], 3), two.measured
    (14, 0.223, False)
    """
    seconds = step_seconds(profile, kind=kind, count=width.count, bytes_per_second=bytes_per_second)
    whole_bytes = state_bytes(profile)
    peak_bytes = whole_bytes + max(0, profile.peak_bytes - whole_bytes) // width.count
    split = dataclasses.replace(
        profile, count=width.count, step_seconds=seconds, peak_bytes=peak_bytes, knobs={**profile.knobs, **width.knobs}
    )
    return dataclasses.replace(option(split, kind=kind), measured=False)


def step_seconds(profile: Profile, *, kind: Kind, count: int, bytes_per_second: float) -> float:
    """The seconds of a step of `count` copies, without its share of evaluations.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=1.0, peak_bytes=0, parameter_bytes=10**8)
    >>> step_seconds(profile, kind=Kind(name="cpu", processor="cpu"), count=2, bytes_per_second=1e9)
    0.605
    """
    assert profile.count == 1, "a prediction of several copies is made from the profile of one"
    sent_bytes = 2 * (count - 1) / count * profile.parameter_bytes
    divided = divided_seconds(profile, kind=kind, count=count)
    return divided + sent_bytes / bytes_per_second + ROUNDS_SECONDS[kind.processor]


def state_bytes(profile: Profile) -> int:
    """Weights, their gradients and the optimizer's state.

    >>> state_bytes(Profile(family="f", kind="cpu", count=1, step_seconds=1, peak_bytes=0, parameter_bytes=1))
    2
    """
    return 2 * profile.parameter_bytes + profile.optimizer_bytes


def rate_between(cluster: Cluster, kind: Kind, *, nodes: int = 1) -> float:
    """Bytes a second between two ranks on devices of a kind, on one node, or around a ring over several.

    >>> rate_between(Cluster.uniform(Kind(name="cpu", processor="cpu")), Kind(name="cpu", processor="cpu"))
    1000000000.0
    """
    ends = ("process", "process") if kind.processor == "cpu" else (kind.name, kind.name)
    links = {(link.source, link.target): link.bytes_per_second for link in cluster.links if not link.between_nodes}
    inside = links.get(ends) or UNKNOWN_BYTES_PER_SECOND[kind.processor]
    return inside if nodes == 1 else min(inside, network_rate(cluster.links))


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """Copies that should be clearly faster than what was measured on as many devices at most. On a CPU that includes as
    many threads: if those are worth no trial, copies are worth none."""
    alone = {each.count: each for each in evidence.of(family=family, kind=kind.name, technique="resident")}
    copied = evidence.of(family=family, kind=kind.name, technique="replicate")
    for width in widths(evidence.cluster, kind):
        count = width.count
        if 1 not in alone or (kind.processor == "cpu" and width.nodes == 1 and count not in alone):
            continue
        rivals = [each for each in alone.values() if each.count <= count]
        if width.nodes > 1:  # the copies that one node holds are measured first
            rivals += [each for each in copied if each.count < count]
        allowed = (each.step_seconds for each in rivals if evidence.may(each.technique, each.knobs))
        least_seconds, rate = min(allowed, default=math.inf), rate_between(evidence.cluster, kind, nodes=width.nodes)
        seconds = step_seconds(alone[1], kind=kind, count=count, bytes_per_second=rate)
        made = predict(alone[1], kind=kind, width=width, bytes_per_second=rate)
        if seconds < CLEARLY * least_seconds and misfit(made, evidence.cluster) is None:
            yield Trial(family=family, technique="replicate", kind=kind.name, count=count, knobs=width.knobs)


def offers(evidence: Evidence) -> Iterator[Option]:
    """On imagined accelerators: the copies that fit and are clearly faster than one, and that nobody measured."""
    cluster = evidence.cluster
    for profile, kind in imagined(evidence):
        alone = resident.option(profile, kind=kind)
        at_most_seconds = float("inf") if misfit(alone, cluster) else CLEARLY * alone.step_seconds[0]
        for width in unmeasured(evidence, profile, kind, "replicate"):
            rate = rate_between(cluster, kind, nodes=width.nodes)
            found = predict(profile, kind=kind, width=width, bytes_per_second=rate)
            if found.step_seconds[0] < at_most_seconds and misfit(found, cluster) is None:
                yield found


def imagined(evidence: Evidence) -> Iterator[tuple[Profile, Kind]]:
    """The resident profiles of one device of accelerators on which nothing can be tried.

    >>> list(imagined(Evidence(cluster=Cluster(kinds=(), nodes=(), devices=()))))
    []
    """
    for kind in evidence.cluster.kinds:
        if kind.name in evidence.imagined and kind.processor != "cpu":
            yield from ((each, kind) for each in evidence.of(kind=kind.name, technique="resident", count=1))


def unmeasured(evidence: Evidence, profile: Profile, kind: Kind, technique: str) -> Iterator[Width]:
    """The widths in which nobody measured a family split over ranks by this technique.

    >>> v100 = Kind(name="v100", processor="cuda")
    >>> profile = Profile(family="f", kind="v100", count=1, step_seconds=1.0, peak_bytes=0)
    >>> cluster = Cluster.uniform(v100, devices_per_node=4)
    >>> [width.count for width in unmeasured(Evidence(cluster=cluster), profile, v100, "shard")]
    [2, 4]
    """
    known = {each.count for each in evidence.of(family=profile.family, kind=kind.name, technique=technique)}
    yield from (width for width in widths(evidence.cluster, kind) if width.count not in known)


SPEC = TechniqueSpec(
    name="replicate",
    runtime="dovetail.train.replicate:REPLICATE",
    option=on_its_kind(option),
    trials=trials,
    offers=offers,
    ranked=True,
    rounds=always,
    knobs={"nodes": ()},
    trial_knobs=("nodes",),
)
