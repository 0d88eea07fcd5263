"""What tasks take that train at once on one accelerator, each on a stream of its own.

The model, stated: where m tasks of a family were measured beside each other in s_m seconds a step, each takes s_m / m
of what they share, the device and the Python that feeds it. Of any gang these shares add up, and it takes no less than
the slowest of its members alone. Bytes add up likewise.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.techniques import fuse, resident
from dovetail.planning.techniques.base import Evidence, TechniqueSpec, Trial, gang_sizes, on_its_kind
from dovetail.vocabulary import Kind, Option, Profile

# So many are beside each other in a trial, and at most.
_TRIED, _MOST = 4, 8
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6


def option(profile: Profile, *, kind: Kind) -> Option:
    """The gang that was measured: `knobs["members"]` of the family.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.008, peak_bytes=1 << 30, technique="beside",
    ...                   knobs={"members": 4})
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).families
    ('f', 'f', 'f', 'f')
    """
    return dataclasses.replace(fuse.option(profile, kind=kind), technique="beside")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """A family as one of a gang: what it takes alone, and its part of a gang's seconds and bytes."""

    alone: Profile
    seconds: float
    bytes: int

    @staticmethod
    def of(measured: Profile, alone: Profile) -> "GangPart":
        """From a gang that was measured, and one task alone."""
        members = int(measured.knobs["members"])
        added = max(0, measured.peak_bytes - alone.peak_bytes) // max(1, members - 1)
        return GangPart(alone=alone, seconds=measured.step_seconds / members, bytes=added)


def predict(gang: Sequence[GangPart], *, kind: Kind) -> Option:
    """A gang that was not measured.

    >>> alone = Profile(family="f", kind="h200", count=1, step_seconds=0.003, peak_bytes=2 << 30, technique="graph")
    >>> four = dataclasses.replace(alone, technique="beside", step_seconds=0.008, peak_bytes=5 << 30,
    ...                            knobs={"members": 4})
    >>> three = predict([GangPart.of(four, alone)] * 3, kind=Kind(name="h200", processor="cuda"))
    >>> three.step_seconds, three.device_bytes >> 30
    ((0.006, 0.006, 0.006), 4)
    """
    alone = [resident.option(each.alone, kind=kind) for each in gang]
    evaluating = sum(one.step_seconds[0] - each.alone.step_seconds for one, each in zip(alone, gang, strict=True))
    seconds = max(sum(each.seconds for each in gang), *(each.alone.step_seconds for each in gang)) + evaluating
    most = max(range(len(gang)), key=lambda number: alone[number].device_bytes - gang[number].bytes)
    return Option(
        families=tuple(each.alone.family for each in gang),
        technique="beside",
        kind=kind.name,
        count=1,
        step_seconds=(seconds,) * len(gang),
        start_seconds=sum(each.start_seconds for each in alone),
        device_bytes=alone[most].device_bytes - gang[most].bytes + sum(each.bytes for each in gang),
        host_bytes=sum(each.host_bytes for each in alone),
        cores=1,
        measured=False,
    )


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """One of a gang of a family whose graphs were measured alone, where there is anybody to be beside."""
    others = sum(evidence.members.values()) - 1
    if _graphs(evidence, family=family, kind=kind.name) and others:
        knobs = {"members": min(_TRIED, 1 + others)}
        yield Trial(family=family, technique="beside", kind=kind.name, count=1, knobs=knobs)


def ideal(known: Option, trial: Trial, options: Iterable[Option]) -> Option:
    """The best that a trial could show: that a gang takes no longer than one task alone.

    >>> one = Option(families=("f",), technique="graph", kind="h200", count=1, step_seconds=(1.0,))
    >>> trial = Trial(family="f", technique="beside", kind="h200", count=1, knobs={"members": 3})
    >>> ideal(one, trial, [one]).step_seconds
    (1.0, 1.0, 1.0)
    """
    return dataclasses.replace(
        known,
        families=known.families[:1] * trial.members,
        technique="beside",
        step_seconds=known.step_seconds[:1] * trial.members,
        start_seconds=trial.members * known.start_seconds,
    )


def offers(evidence: Evidence) -> Iterator[Option]:
    """Gangs of one family, of two, and of one task of each, where they beat their members one after another."""
    for kind in evidence.cluster.kinds:
        able = [
            GangPart.of(measured, alone)
            for measured in evidence.of(technique="beside", kind=kind.name)
            for alone in _graphs(evidence, family=measured.family, kind=kind.name)
            if evidence.members.get(measured.family)
        ]
        best = evidence.least_seconds(kind.name)
        for gang in _gangs(able, evidence):
            found = predict(gang, kind=kind)
            if found.step_seconds[0] < sum(best.get(each.alone.family, float("inf")) for each in gang):
                yield found


def _graphs(evidence: Evidence, *, family: str, kind: str) -> list[Profile]:
    return evidence.of(family=family, kind=kind, count=1, technique="graph")


def _gangs(able: list[GangPart], evidence: Evidence) -> Iterator[tuple[GangPart, ...]]:
    for each in able:
        yield from ((each,) * size for size in gang_sizes(evidence.members[each.alone.family], most=_MOST))
    yield from itertools.combinations(able[:_PAIRED], 2)
    if len(able) > 2:
        yield tuple(able[:_MOST])


SPEC = TechniqueSpec(
    name="beside",
    runtime="dovetail.train.beside:BESIDE",
    option=on_its_kind(option),
    trials=trials,
    offers=offers,
    ideal=ideal,
    is_gang=True,
    trial_knobs=("members",),
)
