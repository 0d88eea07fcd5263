"""What a resident task takes: the whole model, its optimizer and a batch live on the devices it runs on.

Everything that `option` says was measured by a trial of the very same option, so there is nothing to extrapolate: it
only folds what a trial measures apart (steps, evaluation, building, saving) into the two figures that
planners read.

Where memory runs short there is a ladder, the same batch each time with less held at once: first the rows of each batch
in more parts, one after another (others call that accumulation), then the activations computed again in backward
instead of being kept. What comes below, sharding and spilling, are techniques of their own. `leaner` predicts the same
steps on a lower rung.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.planning.fitting import counts
from dovetail.planning.techniques.base import (
    MOMENTS_AND_WEIGHTS,
    Evidence,
    Knobs,
    Ladder,
    TechniqueSpec,
    Trial,
    on_its_kind,
)
from dovetail.vocabulary import InvalidRecord, Kind, Option, Profile

# A worker with torch and a CUDA context holds about this much host memory before the model has a byte.
CUDA_HOST_BYTES = 2 << 30
# What each further part adds to a step: its kernels have fewer rows, its gradients are added to the others', and
# dropout draws for the whole batch again. Measured 0.2 to 0.3 on one CPU thread with dropout after every layer.
PART_SECONDS = 0.2
# Backward takes about twice as long as forward, so that a second forward makes three parts four; of what forward keeps,
# about half is the inputs of blocks and what the last of them needs. Whether it fits shows when it is tried.
AGAIN_SECONDS, AGAIN_SHARE = 4 / 3, 0.5
# Batches are offered in at most so many parts. Each doubling that does not fit costs a start, and weights, gradients
# and optimizer state are as large in any number of parts.
MOST_MICROBATCHES = 64


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
        start_seconds=profile.build_seconds + profile.compile_seconds + profile.save_seconds + once,
        device_bytes=0 if cpu else profile.peak_bytes,
        host_bytes=profile.peak_bytes if cpu else _host_bytes(profile),
        cores=profile.count if cpu else 1,
        knobs=profile.knobs if profile.technique == "resident" else {},  # of a rung; other techniques have their own
    )


def leaner(profile: Profile, *, kind: Kind, knobs: Mapping[str, Any]) -> Option:
    """The option on a lower rung (see above) than the profile's own: the same steps slower, with
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


def next_rung(
    knobs: Mapping[str, Any], *, exact: bool, refused: bool = False, smallest: bool = False
) -> dict[str, Any] | None:
    """The knobs to try after these ran out of memory, or were refused; None where there are none.

    Taking rows in parts rounds otherwise than whole batches do, so with `exact` it is left out; computing again what
    was not kept gives the same bits. `smallest`: a single row did not fit, and more parts cannot help.

    >>> next_rung({}, exact=False), next_rung({"microbatches": 2}, exact=False)
    ({'microbatches': 2}, {'microbatches': 4})
    >>> next_rung({"microbatches": 4}, exact=False, smallest=True)
    {'microbatches': 4, 'recompute': True}
    >>> next_rung({"microbatches": 2}, exact=False, refused=True), next_rung({}, exact=True)
    ({'recompute': True}, {'recompute': True})
    """
    if knobs.get("recompute"):
        return None
    parts = knobs.get("microbatches", 1)
    if refused:  # batches that cannot be taken in parts are taken whole
        return {"recompute": True} if parts > 1 else None
    if not (exact or smallest) and 2 * parts <= MOST_MICROBATCHES:
        return {"microbatches": 2 * parts}
    return {"microbatches": parts, "recompute": True} if parts > 1 else {"recompute": True}


def in_words(knobs: Mapping[str, Any]) -> str:
    """How batches are taken on a rung.

    >>> in_words({"microbatches": 4, "recompute": True})
    'each batch, as large as before, in 4 parts, activations computed again in backward'
    >>> in_words({"recompute": True})
    'each batch, as large as before, activations computed again in backward'
    """
    words = ["each batch, as large as before"]
    if (parts := knobs.get("microbatches", 1)) > 1:
        words[0] += f", in {parts} parts"
    if knobs.get("recompute"):
        words.append("activations computed again in backward")
    return ", ".join(words)


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """Every family is measured resident first, on each kind, with each number of a CPU's threads."""
    for count in counts(evidence.cluster, kind):
        yield Trial(family=family, technique="resident", kind=kind.name, count=count)


def _takes_parts(knobs: Knobs) -> bool:
    return bool(knobs.get("microbatches", 1) > 1)


SPEC = TechniqueSpec(
    name="resident",
    runtime="dovetail.train.resident:RESIDENT",
    option=on_its_kind(option),
    trials=trials,
    ladder=Ladder(next_rung=next_rung, option=leaner),
    foretells=True,
    rounds=_takes_parts,  # rows taken in parts round otherwise than whole batches do
    knobs={"microbatches": tuple(2**n for n in range(MOST_MICROBATCHES.bit_length())), "recompute": (False, True)},
    approximations=(*MOMENTS_AND_WEIGHTS, "fp8"),
)
