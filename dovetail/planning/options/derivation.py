"""The one route from profiles to options: what each technique offers, less what does not fit and what no planner would
choose, since another is at least as good in everything; and which options are worth a trial.

Names no technique: each is asked through its descriptor.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dovetail.planning.fitting import misfit
from dovetail.planning.options.feed_cores import with_feed_cores
from dovetail.planning.techniques import Evidence, May, Trial, allow_all, spec_of, techniques, trial_of
from dovetail.vocabulary import Cluster, FrozenDict, Option, Profile, Rejection


def derive_options(
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    members: Mapping[str, int] = FrozenDict(),
    divided: Iterable[tuple[Profile, Mapping[str, Any]]] = (),
    rejected: Iterable[Rejection] = (),
    imagined: Collection[str] = (),
    may: May = allow_all,
) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """The options that fit this cluster, less the dominated ones; and why the others do not fit.

    Offered are what was measured, and what techniques predict from that. Gangs are offered of families with `members`,
    at most as many as there are tasks. `divided` are profiles that ran out of memory, with the knobs of the lower rung
    on which they are offered now; what was `rejected` when it was tried is not offered again. On `imagined` kinds,
    where nothing can be tried, more is predicted. What users `may` not have is neither offered nor rejected, and
    nothing else need be faster than it.

    Of two profiles of the same thing the later one counts. Profiles of kinds that this cluster does not
    have were measured elsewhere; they are neither options nor rejections here.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), memory_bytes=8 << 30)
    >>> small = Profile(family="small", kind="cpu", count=1, step_seconds=0.5, peak_bytes=1 << 30)
    >>> large = Profile(family="large", kind="cpu", count=1, step_seconds=0.5, peak_bytes=9 << 30)
    >>> fitting, rejected = derive_options([small, large], cluster)
    >>> [option.families for option in fitting], [rejection.families for rejection in rejected]
    ([('small',)], [('large',)])
    """
    present = {kind.name for kind, count in cluster.counts() if count}
    known = [each for each in profiles if each.kind in present and each.technique in techniques()]
    latest = tuple({(trial_of(each), each.knobs): each for each in known}.values())
    evidence = Evidence(cluster=cluster, profiles=latest, members=members, imagined=frozenset(imagined), may=may)
    alone = _judged(_offered(evidence, gangs=False), evidence, rejected)
    alone += [each for each in _rungs(divided, cluster, present) if isinstance(each, Option)]
    fitting = [each for each in alone if isinstance(each, Option)]
    ganged = dataclasses.replace(evidence, alone=tuple(fitting))
    fitting += [each for each in _judged(_offered(ganged, gangs=True), evidence, rejected) if isinstance(each, Option)]
    fitting = [fed for each in fitting for fed in with_feed_cores(each, evidence) if misfit(fed, cluster) is None]
    return tuple(undominated(fitting)), tuple(each for each in alone if isinstance(each, Rejection))


def _offered(evidence: Evidence, *, gangs: bool) -> Iterable[Option | Rejection]:
    """What was measured of techniques that train gangs, or of the others, then what they predict."""
    for profile in evidence.profiles:
        if (spec := spec_of(profile.technique)).is_gang == gangs:
            yield spec.option(profile, evidence.cluster)
    for spec in techniques().values():
        if spec.is_gang == gangs:
            yield from spec.offers(evidence)


def _judged(
    offered: Iterable[Option | Rejection], evidence: Evidence, rejected: Iterable[Rejection]
) -> list[Option | Rejection]:
    """Each option, or why it does not fit; without those that have too many members, or were rejected before."""
    by_place: dict[tuple[str, str, int], list[Rejection]] = {}
    for each in rejected:
        by_place.setdefault((each.technique, each.kind, each.count), []).append(each)
    return [
        each if isinstance(each, Rejection) else misfit(each, evidence.cluster) or each
        for each in offered
        if evidence.may(each.technique, each.knobs)
        and (
            isinstance(each, Rejection)
            or (
                _has_members(each, evidence)
                and not any(_says_no(no, each) for no in by_place.get((each.technique, each.kind, each.count), ()))
            )
        )
    ]


def _has_members(option: Option, evidence: Evidence) -> bool:
    if len(option.families) == 1:
        return True
    return all(count <= evidence.members.get(family, 0) for family, count in Counter(option.families).items())


def _says_no(rejection: Rejection, option: Option) -> bool:
    """Whether an option was tried with these very knobs and rejected: a gang also where a smaller one of the same
    families was. A single task's that was measured since, fits."""
    tried = {name: value for name, value in rejection.knobs.items() if name != "members"}
    if set(rejection.families) != set(option.families) or len(rejection.families) > len(option.families):
        return False
    return option.knobs == tried and (len(option.families) > 1 or not option.measured)


def _rungs(
    divided: Iterable[tuple[Profile, Mapping[str, Any]]], cluster: Cluster, present: Collection[str]
) -> Iterable[Option | Rejection]:
    for profile, knobs in divided:
        ladder = spec_of(profile.technique).ladder
        if ladder is not None and profile.kind in present:
            option = ladder.option(profile, kind=cluster.kind(profile.kind), knobs=knobs)
            yield misfit(option, cluster) or option


def undominated(options: list[Option]) -> list[Option]:
    """Options that no other one of the same families on the same kind beats or equals in everything; what is only
    predicted beats nothing that was measured.

    Which of two good options is better depends on the other tasks, so only a planner may choose there.
    """
    kept: list[Option] = []
    # In this order an option comes after every one that could dominate it, and of equals the first stays: `sorted` is
    # stable, and what was measured comes before what was predicted.
    for option in sorted(options, key=_taken):
        if not any(_dominates(other, option) for other in kept):
            kept.append(option)
    return [option for option in options if any(option is other for other in kept)]


def _taken(option: Option) -> tuple[float, ...]:
    memory = (option.device_bytes, option.host_bytes, option.disk_bytes)
    return (option.count, option.start_seconds, *option.step_seconds, *memory, option.cores)


def _dominates(better: Option, worse: Option) -> bool:
    if (better.families, better.kind) != (worse.families, worse.kind) or worse.measured > better.measured:
        return False
    return all(low <= high for low, high in zip(_taken(better), _taken(worse), strict=True))


def trials(
    families: Iterable[str],
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    failed: Iterable[Trial] = (),
    members: Mapping[str, int] = FrozenDict(),
    may: May = allow_all,
) -> tuple[Trial, ...]:
    """What techniques want measured of these families and was not yet, in the order of families and techniques.

    `failed` trials are not asked for again. `members` says how many tasks of each family there are, for gangs. What
    users `may` not have is not tried, unless others are predicted from it.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> known = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> [(trial.technique, trial.count) for trial in trials(["f"], [known], cluster)]
    [('resident', 2)]
    """
    known, failed = tuple(profiles), frozenset(failed)
    evidence = Evidence(cluster=cluster, profiles=known, members=members, failed=failed, may=may)
    done = {*map(trial_of, known), *failed}
    wanted = (
        trial
        for family in dict.fromkeys(families)
        for spec in techniques().values()
        for kind in cluster.kinds
        for trial in spec.trials(evidence, family, kind)
    )
    allowed = (each for each in wanted if techniques()[each.technique].foretells or may(each.technique, each.knobs))
    return tuple(trial for trial in allowed if trial not in done)
