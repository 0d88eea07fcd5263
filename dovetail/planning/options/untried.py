"""Copies and parts on accelerators that cannot be tried from here: predicted, where elsewhere a trial would decide.

Where devices are at hand, `trials` asks for replicating and sharding and only what was measured is offered. An imagined
cluster has nobody to ask, and without these a model too large for one of its devices would be refused.
"""

from collections.abc import Collection, Iterator, Sequence

from dovetail.planning.fitting import counts, misfit
from dovetail.planning.options.trials import CLEARLY, Trial, trial_of
from dovetail.planning.techniques import replicate, resident, shard
from dovetail.vocabulary import Cluster, Kind, Option, Profile, Rejection


def untried(profiles: Sequence[Profile], cluster: Cluster, kinds: Collection[str]) -> Iterator[Option | Rejection]:
    """For each family with a resident profile on one device of these kinds: the copies that fit and are clearly faster
    than one, and, where one does not fit, the parts that do; the widest cut's refusal where none does."""
    known = {trial_of(each) for each in profiles}
    for kind in cluster.kinds:
        if kind.name in kinds and kind.processor != "cpu":
            for profile in profiles:
                if (profile.kind, profile.technique, profile.count) == (kind.name, "resident", 1):
                    yield from _copies(profile, cluster, kind, known)
                    yield from _parts(profile, cluster, kind, known)


def _copies(profile: Profile, cluster: Cluster, kind: Kind, known: Collection[Trial]) -> Iterator[Option]:
    alone = resident.option(profile, kind=kind)
    at_most_seconds = float("inf") if misfit(alone, cluster) else CLEARLY * alone.step_seconds[0]
    rate = replicate.rate_between(cluster, kind)
    for count in _counts(profile, cluster, kind, "replicate", known):
        found = replicate.predict(profile, kind=kind, count=count, bytes_per_second=rate)
        if found.step_seconds[0] < at_most_seconds and misfit(found, cluster) is None:
            yield found


def _parts(profile: Profile, cluster: Cluster, kind: Kind, known: Collection[Trial]) -> Iterator[Option | Rejection]:
    if misfit(resident.option(profile, kind=kind), cluster) is None:
        return
    rate, refusal = replicate.rate_between(cluster, kind), None
    for count in _counts(profile, cluster, kind, "shard", known):
        found = shard.predict(profile, kind=kind, count=count, bytes_per_second=rate)
        refusal = misfit(found, cluster)
        if refusal is None:
            yield found
    if refusal is not None:
        yield refusal


def _counts(profile: Profile, cluster: Cluster, kind: Kind, technique: str, known: Collection[Trial]) -> Iterator[int]:
    """The counts that nobody measured."""
    for count in counts(cluster, kind, technique=technique):
        if Trial(family=profile.family, technique=technique, kind=kind.name, count=count) not in known:
            yield count
