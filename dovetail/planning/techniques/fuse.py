"""What a fused gang takes: K tasks of one family in step with each other on one device.

The model, stated: beyond what launching its operations takes, which all members share, each member adds the same
seconds and the same bytes. So both are lines in K, through what one task takes alone and what a measured gang took:

    seconds(K) = s_m + (K − m) · max((s_m − s_1) / (m − 1), traffic)  for K > m     bytes(K) likewise, without traffic

where m is the size of the gang that was measured, s_m its step and s_1 that of one task alone. `traffic` is what the
updates of one more member move (parameters, gradients and optimizer state, once each way) at the memory rate of the
kind: a small gang can take no longer than one task, and without that bound a large one would be free. Below m the
slope is `traffic` alone: s_1 is of a program that is not fused, and what fusing itself takes does not shrink with the
gang (on a CPU two of a family took 11.6 ms where four took 18.0 and one alone 4.9; the line would have said 9.2). A
frozen base that all share is in the bytes of one task and not in the slope, so it is counted once without anybody
saying so.
"""

import dataclasses

from dovetail.planning.techniques import resident
from dovetail.vocabulary import Kind, Option, Profile

# So many of a family are fused in a trial.
TRIED = 4
# Bytes a second of a memory that nobody measured: one channel of a host, and a small device.
_UNKNOWN = {"cpu": 10e9, "cuda": 300e9}


def option(profile: Profile, *, kind: Kind) -> Option:
    """The gang that was measured: `knobs["members"]` of the family.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.002, peak_bytes=1 << 30, technique="fuse",
    ...                   knobs={"members": 4})
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).step_seconds
    (0.002, 0.002, 0.002, 0.002)
    """
    members = int(profile.knobs.get("members", TRIED))
    one = resident.option(dataclasses.replace(profile, evaluate_seconds=0.0), kind=kind)
    evaluating = resident.option(profile, kind=kind)
    # Members are evaluated one after another, while the others wait.
    share = evaluating.step_seconds[0] - one.step_seconds[0]
    once = evaluating.start_seconds - one.start_seconds
    return dataclasses.replace(
        one,
        families=one.families * members,
        technique="fuse",
        step_seconds=(profile.step_seconds + members * share,) * members,
        start_seconds=members * (one.start_seconds + once),
        knobs={name: value for name, value in profile.knobs.items() if name != "members"},
        host_bytes=one.host_bytes if kind.processor == "cpu" else members * one.host_bytes,
    )


def predict(measured: Profile, *, alone: Profile, kind: Kind, members: int) -> Option:
    """A gang of another size, from a measured one and one task alone on the same device.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> alone = Profile(family="f", kind="cpu", count=1, step_seconds=0.01, peak_bytes=100 << 20)
    >>> four = Profile(family="f", kind="cpu", count=1, step_seconds=0.016, peak_bytes=130 << 20, technique="fuse",
    ...                knobs={"members": 4})
    >>> ten = predict(four, alone=alone, kind=cpu, members=10)
    >>> len(ten.families), round(ten.step_seconds[0], 6), ten.host_bytes >> 20, ten.measured
    (10, 0.028, 190, False)
    """
    size = int(measured.knobs.get("members", TRIED))
    more = members - size
    seconds = measured.step_seconds + more * _slope_seconds(measured, alone, kind, size, grows=more > 0)
    each_bytes = max(0, measured.peak_bytes - alone.peak_bytes) // max(1, size - 1)
    sized = dataclasses.replace(
        measured,
        # A smaller gang takes no less than one task alone, nor than nothing.
        step_seconds=max(seconds, alone.step_seconds / size),
        peak_bytes=max(measured.peak_bytes + more * each_bytes, alone.peak_bytes),
        knobs={**measured.knobs, "members": members},
    )
    return dataclasses.replace(option(sized, kind=kind), measured=False)


def _slope_seconds(measured: Profile, alone: Profile, kind: Kind, size: int, *, grows: bool) -> float:
    traffic = 2 * (2 * measured.parameter_bytes + measured.optimizer_bytes)
    rate = kind.memory_bytes_per_second or _UNKNOWN[kind.processor]
    line = (measured.step_seconds - alone.step_seconds) / max(1, size - 1) if grows else 0.0
    return max(line, traffic / rate)
