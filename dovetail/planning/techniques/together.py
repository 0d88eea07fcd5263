"""What tasks of any models take that read the same batches, which are read once for all of them.

They train one after another on one device, so a step of the gang is the sum of their steps, less what reading takes for
all but one. Bytes add up: all models are there at once.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from dovetail.planning.techniques import fuse, resident
from dovetail.planning.techniques.base import MOMENTS_AND_WEIGHTS, Evidence, TechniqueSpec, gang_sizes, on_its_kind
from dovetail.vocabulary import Kind, Option, Profile

# Reading batches once must save this share of the steps of those that share them, for at most so many tasks.
_SAVED, _MOST = 0.05, 8
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6


def option(profile: Profile, *, kind: Kind) -> Option:
    """The gang that was measured: `knobs["members"]` of the family.

    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.1, peak_bytes=0, technique="together",
    ...                   knobs={"members": 2})
    >>> option(profile, kind=Kind(name="cpu", processor="cpu")).families
    ('f', 'f')
    """
    return dataclasses.replace(fuse.option(profile, kind=kind), technique="together")


def predict(gang: Sequence[Profile], *, kind: Kind) -> Option:
    """The option of several families, from what each takes alone on as many devices of the kind.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> narrow, wide = (Profile(family=name, kind="cpu", count=1, step_seconds=seconds, peak_bytes=1 << 30,
    ...                         batch_seconds=0.02) for name, seconds in [("narrow", 0.03), ("wide", 0.06)])
    >>> both = predict([narrow, wide], kind=cpu)
    >>> both.families, [round(seconds, 3) for seconds in both.step_seconds], both.measured
    (('narrow', 'wide'), [0.07, 0.07], False)
    """
    alone = [resident.option(profile, kind=kind) for profile in gang]
    seconds = sum(each.step_seconds[0] for each in alone) - saved_seconds(gang)
    return Option(
        families=tuple(profile.family for profile in gang),
        technique="together",
        kind=kind.name,
        count=alone[0].count,
        step_seconds=(seconds,) * len(gang),
        start_seconds=sum(each.start_seconds for each in alone),
        device_bytes=sum(each.device_bytes for each in alone),
        host_bytes=sum(each.host_bytes for each in alone),
        cores=max(each.cores for each in alone),
        measured=False,
    )


def saved_seconds(gang: Sequence[Profile]) -> float:
    """What reading once saves a step of the gang.

    >>> one = Profile(family="f", kind="cpu", count=1, step_seconds=0.03, peak_bytes=0, batch_seconds=0.02)
    >>> round(saved_seconds([one, one, one]), 3)
    0.04
    """
    # What a step is seen to take bounds what it can spend on reading: a loader's processes read ahead.
    reading = [min(profile.accumulate * profile.batch_seconds, profile.step_seconds) for profile in gang]
    return sum(reading) - max(reading)


def offers(evidence: Evidence) -> Iterator[Option]:
    """Gangs that read the same batches, where reading them once saves a good part of their steps."""
    groups: dict[tuple[str, int, str], list[Profile]] = {}
    for profile in evidence.whole:
        if profile.shares and profile.technique == "resident" and evidence.members.get(profile.family):
            groups.setdefault((profile.kind, profile.count, profile.shares), []).append(profile)
    for (kind, _, _), group in groups.items():
        for gang in _gangs(group, evidence):
            total = sum(profile.step_seconds for profile in gang)
            if len({profile.accumulate for profile in gang}) == 1 and saved_seconds(gang) >= _SAVED * total:
                yield predict(gang, kind=evidence.cluster.kind(kind))


def _gangs(group: list[Profile], evidence: Evidence) -> Iterator[tuple[Profile, ...]]:
    """Several of one family, two of different ones, and one of each."""
    for profile in group:
        yield from ((profile,) * size for size in gang_sizes(evidence.members[profile.family], most=_MOST))
    yield from itertools.combinations(group[:_PAIRED], 2)
    if len(group) > 2:
        yield tuple(group[:_MOST])


SPEC = TechniqueSpec(
    name="together",
    runtime="dovetail.train.together:TOGETHER",
    option=on_its_kind(option),
    offers=offers,
    is_gang=True,
    shares_batches=True,
    approximations=MOMENTS_AND_WEIGHTS,
)
