"""What a family would take on a kind that nobody measured it on, from what it took on one that somebody did.

The model, stated: a layer takes the longer of its arithmetic and its memory traffic. Its arithmetic takes the measured
seconds × the ratio of the kinds' matrix rates, so what share of its rate a kind reaches is taken to be the same on
both; its traffic is three times its parameters and outputs (forward once, backward twice) at the memory rate of the new
kind. The optimizer reads and writes parameters, gradients and its state at that rate. No step takes less than the host
needs to launch its kernels, which it does while the device computes. What is left of the measured step is the host's
(reading batches, Python) and stays, whatever the device. Bytes stay as measured.

Wrong by tens of percent where kernels differ, so options made from this are never marked as measured.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from dovetail.planning.options.kinds import SHEETS
from dovetail.planning.techniques.base import device_seconds, host_seconds, launch_seconds
from dovetail.vocabulary import InvalidRecord, Kind, LayerProfile, Profile
from dovetail.vocabulary.approximations import KNOB

_PASSES = 3


def predict_profiles(
    profiles: Iterable[Profile], *, at_hand: Iterable[Kind], kinds: Iterable[Kind]
) -> tuple[Profile, ...]:
    """For each family and each of the `kinds` on which it was not measured, what one device of it would take.

    Of the profiles of a family one is used: resident, with layers where there is one, on the fewest devices.

    >>> cpu = Kind(name="cpu", processor="cpu", matrix_flops_per_second=5e10, memory_bytes_per_second=1e10)
    >>> t4 = Kind(name="t4", processor="cuda", matrix_flops_per_second=65e12, memory_bytes_per_second=3.2e11)
    >>> known = Profile(family="f", kind="cpu", count=1, step_seconds=1.62, peak_bytes=1 << 30)
    >>> [(each.kind, round(each.step_seconds, 3)) for each in predict_profiles([known], at_hand=[cpu], kinds=[t4])]
    [('t4', 0.012)]
    """
    measured = {kind.name: kind for kind in at_hand}
    by_family: dict[tuple[str, Any], list[Profile]] = {}
    for profile in profiles:
        by_family.setdefault((profile.family, profile.knobs.get(KNOB)), []).append(profile)
    found = []
    for known in by_family.values():
        usable = [each for each in known if each.technique == "resident" and each.kind in measured]
        done = {each.kind for each in known}
        for kind in kinds:
            if usable and kind.name not in done:
                best = min(usable, key=lambda each: (not each.layers, each.count))
                found.append(predicted(best, source=measured[best.kind], target=kind))
    return tuple(found)


def predicted(profile: Profile, *, source: Kind, target: Kind) -> Profile:
    """The profile as it would be on one device of the target kind.

    >>> slow = Kind(name="t4", processor="cuda", matrix_flops_per_second=65e12, memory_bytes_per_second=3.2e11)
    >>> fast = Kind(name="l4", processor="cuda", matrix_flops_per_second=121e12, memory_bytes_per_second=3e11)
    >>> layer = LayerProfile(name="0", operation="Linear", forward_seconds=0.1, backward_seconds=0.2)
    >>> known = Profile(family="f", kind="t4", count=1, step_seconds=0.35, peak_bytes=0, layers=(layer,),
    ...                 precision="bf16")
    >>> round(predicted(known, source=slow, target=fast).step_seconds, 4)
    0.2112
    """
    for kind in (source, target):
        if not (kind.matrix_flops_per_second > 0 and kind.memory_bytes_per_second > 0):
            raise InvalidRecord(
                f"a kind must have its matrix and memory rates to predict from or for it; {kind.name!r} has not. "
                "Run 'dovetail cluster --measure'."
            )
    ratio = _rate(source, profile) * profile.count / _rate(target, profile)
    layers = tuple(_layer(layer, ratio, target) for layer in profile.layers)
    before, after = (
        sum(each.forward_seconds + each.backward_seconds for each in some) for some in (profile.layers, layers)
    )
    scale = profile.accumulate
    traffic = 3 * profile.parameter_bytes + 2 * profile.optimizer_bytes
    updating = traffic / target.memory_bytes_per_second
    if before > 0:
        busy = max(scale * after + updating, launch_seconds(profile, kind=target))
        seconds = host_seconds(profile, kind=source) + busy
    else:
        unseen = device_seconds(profile, kind=source)
        seconds = profile.step_seconds - unseen + unseen * ratio + updating
    return dataclasses.replace(
        profile,
        kind=target.name,
        count=1,
        step_seconds=seconds,
        evaluate_seconds=profile.evaluate_seconds * seconds / profile.step_seconds,
        layers=layers,
    )


def _layer(layer: LayerProfile, ratio: float, target: Kind) -> LayerProfile:
    traffic = (layer.parameter_bytes + layer.activation_bytes) / target.memory_bytes_per_second
    return dataclasses.replace(
        layer,
        forward_seconds=max(layer.forward_seconds * ratio, traffic),
        backward_seconds=max(layer.backward_seconds * ratio, (_PASSES - 1) * traffic),
    )


def _rate(kind: Kind, profile: Profile) -> float:
    """A device's matrix rate in the profile's precision: of accelerators the rate in half precision is known."""
    if profile.precision != "fp32" or kind.name not in SHEETS:
        return kind.matrix_flops_per_second
    sheet = SHEETS[kind.name]
    return kind.matrix_flops_per_second * sheet.single_flops / sheet.half_flops
