"""What tasks take that train at once on one accelerator: each in a process of its own where the device can work for
several at the same moment (`Kind.mps`), else each on a stream of its own in one process.

The model, stated. A gang shares the device: where m tasks of a family, none of which kept it waiting, took it b_m
seconds a step, each takes b_m / m of it, and where only one was measured, a share of b_1: kernels of small models leave
room for others'. Of any gang these parts add up, and it takes no less than the slowest of its members alone. In one
process it shares the Python that feeds the device, too: what m tasks were measured to take there in all, s_m, stands
for b_m, and nothing can be said where nothing was measured. Bytes add up likewise; so does what starting takes, unless
each process does its own.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.techniques import fuse, resident
from dovetail.planning.techniques.base import (
    MOMENTS_AND_WEIGHTS,
    Evidence,
    TechniqueSpec,
    Trial,
    gang_beside,
    gang_sizes,
    on_its_kind,
)
from dovetail.vocabulary import Kind, Option, Profile

#: So many processes work on one device at most: a device is full with fewer, and each takes gigabytes of the host.
MOST_LANES = 6
# So many are beside each other in a trial, and at most in one process.
_TRIED, _MOST = 4, 8
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6
# What the context of one more process takes of a device.
_CONTEXT_BYTES = 1 << 29
# What is left of a step's seconds on the device where other processes use it, too, if nobody measured it (five kinds of
# models on an H200: 0.44 to 0.77); and the least share of such a prediction that a trial may show.
_OVERLAPPING, _LEAST = 0.6, 0.8


def option(profile: Profile, *, kind: Kind) -> Option:
    """The gang that was measured: `knobs["members"]` of the family in one process, and by how long they keep the device
    at work what they take in several.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.008, peak_bytes=1 << 30, technique="beside",
    ...                   knobs={"members": 4})
    >>> option(profile, kind=Kind(name="h200", processor="cuda")).families
    ('f', 'f', 'f', 'f')
    """
    found = dataclasses.replace(fuse.option(profile, kind=kind), technique="beside")
    if not kind.mps:
        return found
    members = len(found.families)
    busy = profile.busy_seconds or profile.step_seconds
    return dataclasses.replace(
        found,
        step_seconds=tuple(seconds - profile.step_seconds + busy for seconds in found.step_seconds),
        start_seconds=found.start_seconds / members,
        device_bytes=found.device_bytes + (members - 1) * _CONTEXT_BYTES,
        cores=members,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """A family as one of a gang: what it takes alone, and its part of a gang's seconds and bytes."""

    alone: Profile
    seconds: float
    bytes: int

    @staticmethod
    def of(measured: Profile, alone: Profile) -> "GangPart":
        """From a gang that was measured, and one task alone, in one process."""
        members = int(measured.knobs["members"])
        added = max(0, measured.peak_bytes - alone.peak_bytes) // max(1, members - 1)
        return GangPart(alone=alone, seconds=measured.step_seconds / members, bytes=added)

    @staticmethod
    def apart(alone: Profile, measured: Profile | None = None) -> "GangPart":
        """As a process of its own, from one task alone, and a gang where one was measured."""
        seconds = _OVERLAPPING * (alone.busy_seconds or alone.step_seconds)
        if measured is not None and measured.busy_seconds:
            seconds = measured.busy_seconds / int(measured.knobs["members"])
        return GangPart(alone=alone, seconds=seconds, bytes=alone.peak_bytes + _CONTEXT_BYTES)


def predict(gang: Sequence[GangPart], *, kind: Kind) -> Option:
    """A gang that was not measured.

    >>> alone = Profile(family="f", kind="h200", count=1, step_seconds=0.003, peak_bytes=2 << 30, technique="graph",
    ...                 busy_seconds=0.0025, build_seconds=1.0)
    >>> four = dataclasses.replace(alone, technique="beside", step_seconds=0.008, peak_bytes=5 << 30,
    ...                            knobs={"members": 4})
    >>> three = predict([GangPart.of(four, alone)] * 3, kind=Kind(name="h200", processor="cuda"))
    >>> three.step_seconds, three.device_bytes >> 30, three.start_seconds
    ((0.006, 0.006, 0.006), 4, 3.0)
    >>> three = predict([GangPart.apart(alone)] * 3, kind=Kind(name="h200", processor="cuda", mps=True))
    >>> round(three.step_seconds[0], 5), three.device_bytes >> 20, three.start_seconds, three.cores
    (0.0045, 7168, 1.0, 3)
    """
    alone = [resident.option(each.alone, kind=kind) for each in gang]
    evaluating = sum(one.step_seconds[0] - each.alone.step_seconds for one, each in zip(alone, gang, strict=True))
    seconds = max(sum(each.seconds for each in gang), *(each.alone.step_seconds for each in gang)) + evaluating
    starts = [each.start_seconds for each in alone]
    first = max(one.device_bytes - each.bytes for one, each in zip(alone, gang, strict=True))
    return Option(
        families=tuple(each.alone.family for each in gang),
        technique="beside",
        kind=kind.name,
        count=1,
        step_seconds=(seconds,) * len(gang),
        start_seconds=max(starts) if kind.mps else sum(starts),
        device_bytes=max(0, first) + sum(each.bytes for each in gang) - (_CONTEXT_BYTES if kind.mps else 0),
        host_bytes=sum(each.host_bytes for each in alone),
        cores=len(gang) if kind.mps else 1,
        measured=False,
    )


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """One of a gang of a family whose graphs were measured alone, where there is anybody to be beside."""
    others = sum(evidence.members.values()) - 1
    if _graphs(evidence, family=family, kind=kind.name) and others:
        knobs = {"members": min(_TRIED, 1 + others)}
        yield Trial(family=family, technique="beside", kind=kind.name, count=1, knobs=knobs)


def ideal(known: Option, trial: Trial, options: Iterable[Option]) -> Option:
    """The best that a trial could show: that a gang takes no longer than one task alone; where it is offered already,
    that it takes somewhat less.

    >>> one = Option(families=("f",), technique="graph", kind="h200", count=1, step_seconds=(1.0,))
    >>> trial = Trial(family="f", technique="beside", kind="h200", count=1, knobs={"members": 3})
    >>> ideal(one, trial, [one]).step_seconds
    (1.0, 1.0, 1.0)
    """
    if offered := gang_beside(trial, options):
        (least,) = known.step_seconds
        seconds = max(least, _LEAST * offered.step_seconds[0])
        return dataclasses.replace(offered, step_seconds=(seconds,) * trial.members)
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
        able = [part for part in _parts(evidence, kind) if evidence.members.get(part.alone.family)]
        best = evidence.least_seconds(kind.name)
        for gang in _gangs(able, evidence, most=MOST_LANES if kind.mps else _MOST):
            found = predict(gang, kind=kind)
            one_by_one = sum(best.get(each.alone.family, float("inf")) for each in gang)
            # Processes start at the same time: so much is won for tasks of few steps, whatever each step takes.
            if found.step_seconds[0] < one_by_one * (_AS_SLOW if kind.mps else 1.0):
                yield found


# A gang of processes may take as much longer than its members one after another: what starting takes is known by those
# who know how many steps are left.
_AS_SLOW = 1.1


def _parts(evidence: Evidence, kind: Kind) -> Iterator[GangPart]:
    gangs = {each.family: each for each in evidence.of(technique="beside", kind=kind.name)}
    for alone in evidence.of(technique="graph", kind=kind.name, count=1):
        gang = gangs.get(alone.family)
        if kind.mps:
            yield GangPart.apart(alone, gang)
        elif gang is not None:
            yield GangPart.of(gang, alone)


def _graphs(evidence: Evidence, *, family: str, kind: str) -> list[Profile]:
    return evidence.of(family=family, kind=kind, count=1, technique="graph")


def _gangs(able: list[GangPart], evidence: Evidence, *, most: int) -> Iterator[tuple[GangPart, ...]]:
    for each in able:
        yield from ((each,) * size for size in gang_sizes(evidence.members[each.alone.family], most=most))
    yield from itertools.combinations(able[:_PAIRED], 2)
    if len(able) > 2:
        yield tuple(able[:most])


SPEC = TechniqueSpec(
    name="beside",
    runtime="dovetail.train.beside:BESIDE",
    option=on_its_kind(option),
    trials=trials,
    offers=offers,
    ideal=ideal,
    is_gang=True,
    apart="graph",
    trial_knobs=("members",),
    approximations=MOMENTS_AND_WEIGHTS,
)
