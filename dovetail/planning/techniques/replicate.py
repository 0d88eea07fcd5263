"""What a replicated task takes: a whole copy on each device, each with its part of every batch's rows.

A step computes 1/n of the rows, which divides the device's work and not the host's, and then waits for the mean of the
gradients: each rank sends and receives them 2(n-1)/n times over (a ring). torch begins to send while backward still
computes; that is left out, because so is what the slowest rank costs the others. Weights, gradients and optimizer state
are whole on every device, activations 1/n.

Gradients may be exchanged in bf16 or by few dimensions, where users allow that. Whether it pays follows from the rate
of the link (Agarwal et al. 2021): the seconds that compressing takes and those of the bytes that are left, against
those of all bytes. Where it does not, that is said, and nothing is tried.

Where devices are at hand a trial decides, and only what was measured is offered. An imagined cluster has nobody to ask,
so there copies are offered as predicted.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from dovetail.planning.fitting import Width, misfit, widths
from dovetail.planning.links import NETWORK_BYTES_PER_SECOND
from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import (
    CLEARLY,
    MOMENTS,
    Evidence,
    TechniqueSpec,
    Trial,
    always,
    divided_seconds,
    on_its_kind,
)
from dovetail.vocabulary import Cluster, Kind, Option, Profile, Rejection
from dovetail.vocabulary.units import show_seconds

# What a step of several ranks takes besides, to agree and to average losses: rounds of small messages.
ROUNDS_SECONDS = {"cpu": 4e-3, "cuda": 3e-4}
# Bytes a second between two ranks where nobody measured them: a slow socket, and a device's bus.
UNKNOWN_BYTES_PER_SECOND = {"cpu": 1e9, "cuda": 10e9}
# The same of a device's memory.
UNKNOWN_MEMORY_RATE = {"cpu": 5e9, "cuda": 1e12}
ROUNDED, LOWRANK = "gradients-bf16", "gradients-lowrank"
# How often gradients pass through memory to be rounded and back; to be projected twice, put together again, and for
# what was left out to be kept and added.
PASSES = {ROUNDED: 3.0, LOWRANK: 9.0}
# Of the dimensions that a matrix is projected on (`train/compressed_gradients`).
DIMENSIONS = 4


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


def predict(profile: Profile, *, kind: Kind, width: Width, bytes_per_second: float, approximate: str = "") -> Option:
    """The option of so many copies, from the profile of one that was resident on one device of the kind.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.4, peak_bytes=20 << 30,
    ...                   parameter_bytes=2 << 30, optimizer_bytes=4 << 30)
    >>> h200 = Kind(name="h200", processor="cuda")
    >>> two = predict(profile, kind=h200, width=Width(2), bytes_per_second=100e9)
    >>> two.device_bytes >> 30, round(two.step_seconds[0], 3), two.measured
    (14, 0.223, False)
    """
    seconds = step_seconds(
        profile, kind=kind, count=width.count, bytes_per_second=bytes_per_second, approximate=approximate
    )
    whole_bytes = state_bytes(profile)
    peak_bytes = whole_bytes + max(0, profile.peak_bytes - whole_bytes) // width.count
    split = dataclasses.replace(
        profile, count=width.count, step_seconds=seconds, peak_bytes=peak_bytes, knobs={**profile.knobs, **width.knobs}
    )
    made = option(split, kind=kind)
    return dataclasses.replace(made, measured=False, link_bytes_per_second=width.link_bytes_per_second)


def step_seconds(profile: Profile, *, kind: Kind, count: int, bytes_per_second: float, approximate: str = "") -> float:
    """The seconds of a step of `count` copies, without its share of evaluations.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=1.0, peak_bytes=0, parameter_bytes=10**8)
    >>> step_seconds(profile, kind=Kind(name="cpu", processor="cpu"), count=2, bytes_per_second=1e9)
    0.605
    """
    assert profile.count == 1, "a prediction of several copies is made from the profile of one"
    spent = exchange_seconds(
        profile, kind=kind, count=count, bytes_per_second=bytes_per_second, exchange=exchange_of(approximate)
    )
    return divided_seconds(profile, kind=kind, count=count) + sum(spent) + ROUNDS_SECONDS[kind.processor]


def exchange_of(approximate: str) -> str:
    """How gradients are exchanged under these approximations; empty: exactly.

    >>> exchange_of("gradients-bf16+state-8bit"), exchange_of("state-8bit")
    ('gradients-bf16', '')
    """
    return next((name for name in PASSES if name in approximate.split("+")), "")


def exchange_seconds(
    profile: Profile, *, kind: Kind, count: int, bytes_per_second: float, exchange: str
) -> tuple[float, float]:
    """The seconds that gradients take to be compressed, and to be sent, in a step of `count` copies.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=1.0, peak_bytes=0, parameter_bytes=10**8)
    >>> how = {"kind": Kind(name="cpu", processor="cpu"), "count": 2, "bytes_per_second": 1e8}
    >>> exchange_seconds(profile, exchange="", **how), exchange_seconds(profile, exchange=ROUNDED, **how)
    ((0.0, 1.0), (0.06, 0.5))
    """
    rate = kind.memory_bytes_per_second or UNKNOWN_MEMORY_RATE[kind.processor]
    compress = PASSES.get(exchange, 0.0) * profile.parameter_bytes / rate
    left = {ROUNDED: profile.parameter_bytes / 2, LOWRANK: _lowrank_bytes(profile)}.get(exchange)
    sent_bytes = 2 * (count - 1) / count * (profile.parameter_bytes if left is None else left)
    return compress, sent_bytes / bytes_per_second


def _lowrank_bytes(profile: Profile) -> float:
    """What is left of gradients by few dimensions, each layer taken for one square matrix."""
    layers = [layer.parameter_bytes for layer in profile.layers if layer.parameter_bytes]
    sizes = layers or [profile.parameter_bytes]
    return sum(min(size, 4 * 2 * DIMENSIONS * math.sqrt(size / 4)) for size in sizes)


def refuse_exchange(
    profile: Profile, *, kind: Kind, width: Width, bytes_per_second: float, approximate: str
) -> Rejection | None:
    """Why it does not pay to exchange gradients otherwise than exactly at this rate; None where it does, or need not.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=1.0, peak_bytes=0, parameter_bytes=10**9)
    >>> refuse_exchange(profile, kind=Kind(name="h200", processor="cuda"), width=Width(2), bytes_per_second=400e9,
    ...                 approximate="gradients-bf16").reason
    'gradients-bf16 does not pay: compressing takes 3.0 ms and sending 1.2 ms, sending all 2.5 ms at 400 GB/s'
    """
    exchange = exchange_of(approximate)
    if not exchange:
        return None
    how = {"kind": kind, "count": width.count, "bytes_per_second": bytes_per_second}
    compress, send = exchange_seconds(profile, exchange=exchange, **how)  # type: ignore[arg-type]
    _, whole = exchange_seconds(profile, exchange="", **how)  # type: ignore[arg-type]
    if compress + send < whole:
        return None
    return Rejection(
        families=(profile.family,),
        technique="replicate",
        kind=kind.name,
        count=width.count,
        knobs=width.knobs,
        reason=f"{exchange} does not pay: compressing takes {show_seconds(compress)} and sending {show_seconds(send)}, "
        f"sending all {show_seconds(whole)} at {bytes_per_second / 1e9:.3g} GB/s",
    )


def state_bytes(profile: Profile) -> int:
    """Weights, their gradients and the optimizer's state.

    >>> state_bytes(Profile(family="f", kind="cpu", count=1, step_seconds=1, peak_bytes=0, parameter_bytes=1))
    2
    """
    return 2 * profile.parameter_bytes + profile.optimizer_bytes


def rate_between(cluster: Cluster, kind: Kind, *, width: Width) -> float:
    """Bytes a second between two ranks on devices of a kind, on one node, or around a ring over several.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> rate_between(Cluster.uniform(cpu), cpu, width=Width(2))
    1000000000.0
    """
    ends = ("process", "process") if kind.processor == "cpu" else (kind.name, kind.name)
    links = {(link.source, link.target): link.bytes_per_second for link in cluster.links if not link.between_nodes}
    inside = links.get(ends) or UNKNOWN_BYTES_PER_SECOND[kind.processor]
    return inside if width.nodes == 1 else min(inside, width.link_bytes_per_second or NETWORK_BYTES_PER_SECOND)


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
        least_seconds, rate = min(allowed, default=math.inf), rate_between(evidence.cluster, kind, width=width)
        how: dict[str, Any] = {"kind": kind, "bytes_per_second": rate, "approximate": evidence.approximate}
        if refuse_exchange(alone[1], width=width, **how):
            continue
        seconds = step_seconds(alone[1], count=count, **how)
        made = predict(alone[1], width=width, **how)
        if seconds < CLEARLY * least_seconds and misfit(made, evidence.cluster) is None:
            yield Trial(family=family, technique="replicate", kind=kind.name, count=count, knobs=width.knobs)


def offers(evidence: Evidence) -> Iterator[Option | Rejection]:
    """On imagined accelerators the copies that fit and are clearly faster than one, and that nobody measured; on all
    kinds, why it does not pay to exchange gradients otherwise than exactly."""
    yield from _unpaid(evidence)
    cluster = evidence.cluster
    for profile, kind in imagined(evidence):
        alone = resident.option(profile, kind=kind)
        at_most_seconds = float("inf") if misfit(alone, cluster) else CLEARLY * alone.step_seconds[0]
        for width in unmeasured(evidence, profile, kind, "replicate"):
            rate = rate_between(cluster, kind, width=width)
            how: dict[str, Any] = {"kind": kind, "bytes_per_second": rate, "approximate": evidence.approximate}
            if refuse_exchange(profile, width=width, **how):
                continue
            found = predict(profile, width=width, **how)
            if found.step_seconds[0] < at_most_seconds and misfit(found, cluster) is None:
                yield found


def _unpaid(evidence: Evidence) -> Iterator[Rejection]:
    for kind in evidence.cluster.kinds if exchange_of(evidence.approximate) else ():
        for profile in evidence.of(kind=kind.name, technique="resident", count=1):
            for width in widths(evidence.cluster, kind):
                rate = rate_between(evidence.cluster, kind, width=width)
                how: dict[str, Any] = {"kind": kind, "bytes_per_second": rate, "approximate": evidence.approximate}
                if unpaid := refuse_exchange(profile, width=width, **how):
                    yield unpaid


def imagined(evidence: Evidence) -> Iterator[tuple[Profile, Kind]]:
    """The resident profiles of one device of accelerators on which nothing can be tried.

    >>> list(imagined(Evidence(cluster=Cluster(kinds=(), nodes=(), devices=()))))
    []
    """
    for kind in evidence.cluster.kinds:
        if kind.name in evidence.imagined and kind.processor != "cpu":
            yield from ((each, kind) for each in evidence.of(kind=kind.name, technique="resident", count=1))


def unmeasured(evidence: Evidence, profile: Profile, kind: Kind, technique: str) -> Iterator[Width]:
    """The widths in which nobody measured a family split over ranks by this technique, once for each speed of links.

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
    approximations=(*MOMENTS, "gradients-bf16", "gradients-lowrank"),
)
