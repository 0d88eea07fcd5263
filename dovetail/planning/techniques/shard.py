"""What a sharded task takes: 1/n of weights, gradients and optimizer state on each device, and of every batch's rows.

Each microbatch gathers the weights twice, for forward and for backward, and gives its gradients away once: each time
(n-1)/n of them, a block at a time. So a device holds its part, the block at hand with its gradient, and activations.
"""

import dataclasses
from collections.abc import Iterator

from dovetail.planning.fitting import Width, misfit, widths
from dovetail.planning.techniques import replicate, resident
from dovetail.planning.techniques.base import (
    MOMENTS,
    Evidence,
    TechniqueSpec,
    Trial,
    always,
    divided_seconds,
    on_its_kind,
)
from dovetail.vocabulary import Kind, Option, Profile, Rejection

# A step of small blocks waits for messages and not for bytes; more of them than when gradients alone are averaged.
_ROUNDS = 4


def option(profile: Profile, *, kind: Kind) -> Option:
    """The sharded option that a profile stands for. Its peak is that of rank 0, which is the others' too, but for the
    checkpoint that rank 0 gathers on the host.

    >>> profile = Profile(family="f", kind="h200", count=2, step_seconds=0.5, peak_bytes=9 << 30, technique="shard")
    >>> sharded = option(profile, kind=Kind(name="h200", processor="cuda"))
    >>> sharded.technique, sharded.cores, sharded.device_bytes >> 30, sharded.host_bytes >> 30
    ('shard', 2, 9, 4)
    """
    one = resident.option(profile, kind=kind)
    others = profile.peak_bytes if kind.processor == "cpu" else resident.CUDA_HOST_BYTES + profile.batch_bytes
    host_bytes = one.host_bytes + (profile.count - 1) * others
    return dataclasses.replace(one, technique="shard", cores=profile.count, host_bytes=host_bytes, knobs=profile.knobs)


def predict(profile: Profile, *, kind: Kind, width: Width, bytes_per_second: float) -> Option:
    """The option of so many parts, from the profile of a whole one, with layers, on one device of the kind.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = tuple(LayerProfile(name=name, operation="Linear", forward_seconds=0.1, backward_seconds=0.2,
    ...                             parameter_bytes=1 << 30) for name in "ab")
    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.4, peak_bytes=20 << 30, layers=layers,
    ...                   parameter_bytes=2 << 30, optimizer_bytes=4 << 30)
    >>> two = predict(profile, kind=Kind(name="h200", processor="cuda"), width=Width(2), bytes_per_second=100e9)
    >>> two.device_bytes >> 30, round(two.step_seconds[0], 3)
    (12, 0.233)
    """
    assert profile.count == 1, "a prediction of several parts is made from the profile of a whole one"
    count = width.count
    sent_bytes = 3 * profile.accumulate * (count - 1) / count * profile.parameter_bytes
    rounds_seconds = _ROUNDS * replicate.ROUNDS_SECONDS[kind.processor]
    divided = divided_seconds(profile, kind=kind, count=count)
    step_seconds = divided + sent_bytes / bytes_per_second + rounds_seconds
    whole_bytes = replicate.state_bytes(profile)
    block_bytes = max((layer.parameter_bytes for layer in profile.layers), default=profile.parameter_bytes)
    activation_bytes = max(0, profile.peak_bytes - whole_bytes)
    peak_bytes = (whole_bytes + activation_bytes) // count + 2 * block_bytes
    split = dataclasses.replace(
        profile, count=count, step_seconds=step_seconds, peak_bytes=peak_bytes, knobs={**profile.knobs, **width.knobs}
    )
    made = option(split, kind=kind)
    return dataclasses.replace(made, measured=False, link_bytes_per_second=width.link_bytes_per_second)


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """Sharding is slower than being resident, so it is tried only on accelerators that do not hold the whole model."""
    if kind.processor == "cuda" and evidence.must_be_split(family, kind.name):
        for width in widths(evidence.cluster, kind):
            yield Trial(family=family, technique="shard", kind=kind.name, count=width.count, knobs=width.knobs)


def offers(evidence: Evidence) -> Iterator[Option | Rejection]:
    """On imagined accelerators that do not hold the whole model: the parts that fit and nobody measured, or why even
    the smallest do not."""
    cluster = evidence.cluster
    for profile, kind in replicate.imagined(evidence):
        if misfit(resident.option(profile, kind=kind), cluster) is None:
            continue
        refusal = None
        for width in replicate.unmeasured(evidence, profile, kind, "shard"):
            rate = replicate.rate_between(cluster, kind, width=width)
            found = predict(profile, kind=kind, width=width, bytes_per_second=rate)
            refusal = misfit(found, cluster)
            if refusal is None:
                yield found
        if refusal is not None:
            yield refusal


SPEC = TechniqueSpec(
    name="shard",
    runtime="dovetail.train.shard:SHARD",
    option=on_its_kind(option),
    trials=trials,
    offers=offers,
    ranked=True,
    rounds=always,
    knobs={"nodes": ()},
    trial_knobs=("nodes",),
    approximations=MOMENTS,
)
