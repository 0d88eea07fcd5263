"""What several spilled models on one device take: measured as a gang, or simulated (`planning/streaming`)."""

import dataclasses

from dovetail.planning.techniques import resident
from dovetail.vocabulary import Kind, Option, Profile


def option(profile: Profile, *, kind: Kind) -> Option:
    """The option of a gang of equal members that was measured together: `knobs["members"]` of them, two if not said.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=2.0, peak_bytes=8 << 30,
    ...                   technique="interleave", knobs={"members": 3})
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).step_seconds
    (2.0, 2.0, 2.0)
    """
    one = resident.option(profile, kind=kind)
    members = int(profile.knobs.get("members", 2))
    return dataclasses.replace(
        one,
        families=one.families * members,
        technique="interleave",
        step_seconds=one.step_seconds * members,
        knobs={name: value for name, value in profile.knobs.items() if name != "members"},
        host_bytes=profile.host_bytes or members * one.host_bytes,
        disk_bytes=profile.disk_bytes,
    )
