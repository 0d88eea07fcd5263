"""What several spilled models on one device take: measured as a gang, or simulated (`planning/streaming`)."""

import dataclasses
import itertools
from collections.abc import Iterator

from dovetail.planning.techniques import resident, spill
from dovetail.planning.techniques.base import MOMENTS_AND_WEIGHTS, Evidence, TechniqueSpec, gang_sizes
from dovetail.vocabulary import Cluster, Kind, Option, Profile

# So many of one family are offered as a gang at most: each has its share of the device.
_MOST = 8
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6


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


def offers(evidence: Evidence) -> Iterator[Option]:
    """Gangs of which not every member fits its part of the device, where they beat their members one after another."""
    for kind, able in spill.accelerators(evidence.whole, evidence.cluster):
        room, device_bytes = spill.SpillRoom.of(evidence.cluster, kind=kind), spill.budgets_of(kind)[0]
        best = evidence.least_seconds(kind.name)
        for gang in _gangs([each for each in able if evidence.members.get(each.family)], evidence):
            if all(spill.is_resident(profile, device_bytes // len(gang)) for profile in gang):
                continue
            found = spill.fastest(gang, room, device_bytes)
            one_by_one = sum(best.get(profile.family, float("inf")) for profile in gang)
            if isinstance(found, Option) and found.step_seconds[0] < one_by_one:
                yield found


def _gangs(able: list[Profile], evidence: Evidence) -> Iterator[tuple[Profile, ...]]:
    for profile in able:
        yield from ((profile,) * size for size in gang_sizes(evidence.members[profile.family], most=_MOST))
    yield from itertools.combinations(able[:_PAIRED], 2)


def _measured(profile: Profile, cluster: Cluster) -> Option:
    return spill.with_its_cores(option(profile, kind=cluster.kind(profile.kind)), cluster)


SPEC = TechniqueSpec(
    name="interleave",
    runtime="dovetail.train.interleave:INTERLEAVE",
    option=_measured,
    offers=offers,
    is_gang=True,
    on_host=True,
    slowed=spill.slowed,
    knobs=spill.KNOBS,
    approximations=MOMENTS_AND_WEIGHTS,
)
