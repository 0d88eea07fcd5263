"""Which options are worth a short measured run, given what was measured before. Offers none itself."""

import dataclasses
from collections.abc import Iterable, Sequence

from dovetail.planning.fitting import counts, misfit
from dovetail.planning.techniques import replicate
from dovetail.vocabulary import Cluster, Kind, Profile

# Copies must be predicted to take at most this share of the time to be worth a trial: it costs seconds on all devices.
CLEARLY = 0.85
# Steps on a CPU are tried fused only where they are shorter than this.
_SHORT_SECONDS = 0.005


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A short measured run that planning asks for.

    >>> Trial(family="f", technique="resident", kind="cpu", count=2).count
    2
    """

    family: str
    technique: str
    kind: str
    count: int


def trials(
    families: Iterable[str],
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    failed: Iterable[Trial] = (),
    fused: Iterable[str] = (),
) -> tuple[Trial, ...]:
    """What has not been measured yet of these families, in the order of families, techniques, kinds and counts.

    `failed` trials are not asked for again. Spilling is slower than being resident, so it is worth a trial only on an
    accelerator on which being resident failed, or took more memory than the device has; so is sharding. Replicating is
    worth one where it should be clearly faster than being resident with as many threads. Of families in `fused`, those
    with several tasks for a planner that places gangs, one fused gang is tried on each kind on which one task was
    measured; other gangs are predicted, not tried.

    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> known = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> trials(["f"], [known], cluster)
    (Trial(family='f', technique='resident', kind='cpu', count=2),)
    """
    known, failed = tuple(profiles), tuple(failed)
    done = {*map(trial_of, known), *failed}
    too_large = {(each.family, each.kind) for each in failed if each.technique == "resident"}
    too_large |= {(each.family, each.kind) for each in known if _is_too_large(each, cluster)}
    able = {(each.family, each.kind) for each in known if _is_fusable(each, cluster)}
    gangs = {place for place in able - too_large if place[0] in set(fused)}
    wanted = (
        Trial(family=family, technique=technique, kind=kind.name, count=count)
        for family in dict.fromkeys(families)
        for technique in ("resident", "replicate", "shard", "spill", "fuse")
        for kind in cluster.kinds
        for count in counts(cluster, kind, technique=technique)
        if technique == "resident"
        or (technique == "replicate" and _copies_pay(family, kind, count, known, cluster))
        or (technique == "fuse" and count == 1 and (family, kind.name) in gangs)
        or (technique in ("shard", "spill") and kind.processor == "cuda" and (family, kind.name) in too_large)
    )
    return tuple(trial for trial in wanted if trial not in done)


def _is_fusable(profile: Profile, cluster: Cluster) -> bool:
    """Whether fusing could pay: it saves the time between operations, which on a CPU is little of a long step."""
    processors = {kind.name: kind.processor for kind in cluster.kinds}
    is_short = processors.get(profile.kind) != "cpu" or profile.step_seconds < _SHORT_SECONDS
    return profile.technique == "resident" and profile.count == 1 and is_short


def _copies_pay(family: str, kind: Kind, count: int, known: Sequence[Profile], cluster: Cluster) -> bool:
    """Whether copies on so many devices should be clearly faster than what was measured on as many at most. On a CPU
    that includes as many threads: if those are worth no trial, copies are worth none."""
    mine = [each for each in known if (each.family, each.kind, each.technique) == (family, kind.name, "resident")]
    alone = {each.count: each for each in mine if each.count <= count}
    if 1 not in alone or (kind.processor == "cpu" and count not in alone):
        return False
    rate = replicate.rate_between(cluster, kind)
    if misfit(replicate.predict(alone[1], kind=kind, count=count, bytes_per_second=rate), cluster):
        return False
    least_seconds = min(each.step_seconds for each in alone.values())
    return replicate.step_seconds(alone[1], kind=kind, count=count, bytes_per_second=rate) < CLEARLY * least_seconds


def _is_too_large(profile: Profile, cluster: Cluster) -> bool:
    sizes = [kind.memory_bytes for kind in cluster.kinds if kind.name == profile.kind and kind.memory_bytes]
    # One with knobs is on a lower rung: whole batches did not fit.
    return profile.technique == "resident" and (bool(profile.knobs) or any(profile.peak_bytes > size for size in sizes))


def trial_of(profile: Profile) -> Trial:
    """The trial that a profile answers."""
    return Trial(family=profile.family, technique=profile.technique, kind=profile.kind, count=profile.count)
