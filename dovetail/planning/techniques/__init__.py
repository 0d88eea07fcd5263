"""One descriptor a technique: `TECHNIQUES` lists them all, and what is installed under the entry point group
`dovetail.techniques` joins them. CONTRIBUTING.md says how to add one.
"""

import functools
from collections.abc import Mapping

from dovetail.planning.techniques import (
    beside,
    fuse,
    graph,
    hop,
    interleave,
    pipeline,
    replicate,
    resident,
    shard,
    spill,
    together,
)
from dovetail.planning.techniques.base import Evidence, Ladder, May, TechniqueSpec, Trial, allow_all
from dovetail.vocabulary import DovetailError, Profile, Rejection
from dovetail.vocabulary.approximations import KNOB

#: The techniques that come along, in the order in which they are tried.
TECHNIQUES: dict[str, TechniqueSpec] = {
    "resident": resident.SPEC,
    "graph": graph.SPEC,
    "replicate": replicate.SPEC,
    "shard": shard.SPEC,
    "spill": spill.SPEC,
    "pipeline": pipeline.SPEC,
    "fuse": fuse.SPEC,
    "interleave": interleave.SPEC,
    "together": together.SPEC,
    "beside": beside.SPEC,
    "hop": hop.SPEC,
}

GROUP = "dovetail.techniques"
"""The entry point group of installed techniques: each entry names a `TechniqueSpec`."""


@functools.cache
def techniques() -> Mapping[str, TechniqueSpec]:
    """All techniques there are by name: those that come along, then installed ones. Every process of an installation
    finds the same, workers included.

    >>> list(techniques())[:2]
    ['resident', 'graph']
    """
    # It loads half of the standard library's mail reader, which `dovetail --help` should not.
    from importlib.metadata import entry_points

    found = dict(TECHNIQUES)
    for entry in entry_points(group=GROUP):
        spec = entry.load()
        if not isinstance(spec, TechniqueSpec) or spec.name != entry.name or entry.name in TECHNIQUES:
            raise DovetailError(
                f"an entry point of {GROUP!r} must name a TechniqueSpec with the entry's own, new name; "
                f"{entry.name} = {entry.value!r} does not. Correct it, or uninstall what it came with."
            )
        found[entry.name] = spec
    return found


def spec_of(technique: str) -> TechniqueSpec:
    """The descriptor of the technique of that name.

    >>> spec_of("pipeline").ranked
    True
    """
    if technique not in techniques():
        raise DovetailError(
            f"a technique must be one of {sorted(techniques())}, got {technique!r}. Install what it came with."
        )
    return techniques()[technique]


def trial_of(found: Profile | Rejection) -> Trial:
    """The trial that a profile or a rejection answers.

    >>> trial_of(Profile(family="f", kind="cpu", count=2, step_seconds=1.0, peak_bytes=0, knobs={"recompute": True}))
    Trial(family='f', technique='resident', kind='cpu', count=2, knobs={})
    """
    names = (*(techniques()[found.technique].trial_knobs if found.technique in techniques() else ()), KNOB)
    return Trial(
        family=found.family if isinstance(found, Profile) else found.families[0],
        technique=found.technique,
        kind=found.kind,
        count=found.count,
        knobs={name: found.knobs[name] for name in names if name in found.knobs},
    )


__all__ = [
    "GROUP",
    "TECHNIQUES",
    "Evidence",
    "Ladder",
    "May",
    "TechniqueSpec",
    "Trial",
    "allow_all",
    "spec_of",
    "techniques",
    "trial_of",
]
