"""What a resident task takes: the whole model, its optimizer and a batch live on the devices it runs on.

Everything that `option` says was measured by a trial of the very same option, so there is nothing to extrapolate: it
only folds what a trial measures apart (steps, evaluation, building, saving) into the two figures that
planners read. `leaner` predicts the same steps on a lower rung of the ladder. Neither knows the cluster, nor whether
the option fits it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dovetail.vocabulary import InvalidRecord, Kind, Option, Profile

# A worker with torch and a CUDA context holds about this much host memory before the model has a byte.
CUDA_HOST_BYTES = 2 << 30
# What each further part adds to a step: its kernels have fewer rows, its gradients are added to the others', and
# dropout draws for the whole batch again. Measured 0.2 to 0.3 on one CPU thread with dropout after every layer.
PART_SECONDS = 0.2
# Backward takes about twice as long as forward, so that a second forward makes three parts four; of what forward keeps,
# about half is the inputs of blocks and what the last of them needs. Whether it fits shows when it is tried.
AGAIN_SECONDS, AGAIN_SHARE = 4 / 3, 0.5


def option(profile: Profile, *, kind: Kind) -> Option:
    """The resident option that a profile stands for.

    A step pays for its share of the evaluations; building and the save at the end are paid once for each
    placement. On a CPU, `count` is a number of threads, each on a core, and all bytes are the host's.

    >>> profile = Profile(family="f", kind="cpu", count=2, step_seconds=0.5, peak_bytes=1 << 30,
    ...                   evaluate_seconds=10.0, evaluate_every=100, build_seconds=3.0, save_seconds=1.0)
    >>> resident = option(profile, kind=Kind(name="cpu", processor="cpu"))
    >>> resident.step_seconds, resident.start_seconds, resident.cores, resident.host_bytes == 1 << 30
    ((0.6,), 4.0, 2, True)
    """
    if kind.name != profile.kind:
        raise InvalidRecord(
            f"a profile must be read with the kind it was measured on, {profile.kind!r}, got {kind.name!r}."
        )
    share, once = _evaluation_seconds(profile)
    cpu = kind.processor == "cpu"
    return Option(
        families=(profile.family,),
        technique="resident",
        kind=kind.name,
        count=profile.count,
        step_seconds=(profile.step_seconds + share,),
        start_seconds=profile.build_seconds + profile.save_seconds + once,
        device_bytes=0 if cpu else profile.peak_bytes,
        host_bytes=profile.peak_bytes if cpu else _host_bytes(profile),
        cores=profile.count if cpu else 1,
        knobs=profile.knobs if profile.technique == "resident" else {},  # of a rung; other techniques have their own
    )


def leaner(profile: Profile, *, kind: Kind, knobs: Mapping[str, Any]) -> Option:
    """The option on a lower rung (`planning/options/ladder.py`) than the profile's own: the same steps slower, with
    less kept of each at a time. Weights, gradients and optimizer state stay what they are.

    >>> profile = Profile(family="f", kind="v100", count=1, step_seconds=1.0, peak_bytes=14 << 30,
    ...                   parameter_bytes=2 << 30, optimizer_bytes=4 << 30)
    >>> halves = leaner(profile, kind=Kind(name="v100", processor="cuda"), knobs={"microbatches": 2})
    >>> halves.device_bytes >> 30, halves.step_seconds, dict(halves.knobs)
    (11, (1.2,), {'microbatches': 2})
    """
    before, parts = profile.knobs.get("microbatches", 1), knobs.get("microbatches", 1)
    again = bool(knobs.get("recompute")) and not profile.knobs.get("recompute")
    kept = min(profile.peak_bytes, 2 * profile.parameter_bytes + profile.optimizer_bytes)
    share = before / parts * (AGAIN_SHARE if again else 1.0)
    seconds = (1 + PART_SECONDS * (parts - 1)) / (1 + PART_SECONDS * (before - 1)) * (AGAIN_SECONDS if again else 1.0)
    changed = dataclasses.replace(
        profile,
        peak_bytes=kept + math.ceil((profile.peak_bytes - kept) * share),
        step_seconds=profile.step_seconds * seconds,
        knobs=knobs,
    )
    return dataclasses.replace(option(changed, kind=kind), measured=False)


def _evaluation_seconds(profile: Profile) -> tuple[float, float]:
    """Seconds of evaluation for each step, and for each placement."""
    every = profile.evaluate_every or profile.steps_per_epoch
    if every:
        return profile.evaluate_seconds / every, 0.0
    # Batches without a length and no evaluate_every: training evaluates once, at the end.
    return 0.0, profile.evaluate_seconds


def _host_bytes(profile: Profile) -> int:
    # A save copies parameters and optimizer state to the host before it writes them; batches wait there too.
    return CUDA_HOST_BYTES + profile.parameter_bytes + profile.optimizer_bytes + profile.batch_bytes
