"""What a task takes whose gradients are replayed from a CUDA graph: what a trial of it measures.

It pays where an accelerator waits for Python, as it does with small models, and costs the memory of one more step's
activations. So it is tried wherever a task fits an accelerator resident and could end sooner by it.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import MOMENTS, Evidence, TechniqueSpec, Trial, on_its_kind
from dovetail.vocabulary import Kind, Option, Profile

# The least share of a step that is left of it (GPT-2 of 6 layers on an H200: 3.0 ms instead of 21.6).
_LEFT = 0.15


def option(profile: Profile, *, kind: Kind) -> Option:
    """What was measured.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.003, peak_bytes=1 << 30, technique="graph")
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).step_seconds
    (0.003,)
    """
    return dataclasses.replace(resident.option(profile, kind=kind), technique="graph")


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """One, on an accelerator, of a family that was measured resident there with whole batches."""
    alone = evidence.of(family=family, kind=kind.name, count=1, technique="resident")
    if kind.processor == "cuda" and alone and not evidence.is_too_large(family, kind.name):
        yield Trial(family=family, technique="graph", kind=kind.name, count=1)


def ideal(known: Option, trial: Trial, options: Iterable[Option]) -> Option:
    """The best that a trial could show: that the device waited for Python nearly all the time.

    >>> one = Option(families=("f",), technique="resident", kind="h200", count=1, step_seconds=(1.0,))
    >>> ideal(one, Trial(family="f", technique="graph", kind="h200", count=1), [one]).step_seconds
    (0.15,)
    """
    return dataclasses.replace(known, technique="graph", step_seconds=(known.step_seconds[0] * _LEFT,))


SPEC = TechniqueSpec(
    name="graph",
    runtime="dovetail.train.graph:GRAPH",
    option=on_its_kind(option),
    trials=trials,
    ideal=ideal,
    approximations=(*MOMENTS, "fp8"),
)
