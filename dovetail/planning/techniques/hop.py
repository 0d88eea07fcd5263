"""What a task takes that goes where its data lies: on each shard as much as it would resident, one sub-epoch a visit.

It is neither tried nor offered by itself: which visits there are, on which nodes, is for `planning/hopping` to say,
from what `resident` was measured to take.
"""

import dataclasses

from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import TechniqueSpec, on_its_kind
from dovetail.vocabulary import Kind, Option, Profile


def option(profile: Profile, *, kind: Kind) -> Option:
    """What was measured.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.003, peak_bytes=1 << 30, technique="hop")
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).technique
    'hop'
    """
    return dataclasses.replace(resident.option(profile, kind=kind), technique="hop")


SPEC = TechniqueSpec(name="hop", runtime="dovetail.train.hop:HOP", option=on_its_kind(option), visits=True)
