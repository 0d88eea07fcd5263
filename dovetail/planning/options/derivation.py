"""The one route from profiles to options: what each technique offers, less what does not fit and what no planner would
choose, since another is at least as good in everything; and which options are worth a trial.

Names no technique: each is asked through its descriptor.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from dovetail.planning.fitting import misfit, widths
from dovetail.planning.options.feed_cores import with_feed_cores
from dovetail.planning.techniques import Evidence, May, Trial, allow_all, spec_of, techniques, trial_of
from dovetail.vocabulary import Cluster, FrozenDict, Option, Profile, Rejection
from dovetail.vocabulary.approximations import Approximate, join_knobs, split_knobs

Allowed = Mapping[str, Collection[Approximate]]
"""By family, the approximations with which its tasks may be trained beside exactly."""
NOTHING_ALLOWED: Allowed = FrozenDict()
Derived = TypeVar("Derived", Profile, Option, Rejection)


def derive_options(
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    members: Mapping[str, int] = FrozenDict(),
    divided: Iterable[tuple[Profile, Mapping[str, Any]]] = (),
    rejected: Iterable[Rejection] = (),
    imagined: Collection[str] = (),
    may: May = allow_all,
    allowed: Allowed = NOTHING_ALLOWED,
) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """The options that fit this cluster, less the dominated ones; and why the others do not fit.

    Offered are what was measured, and what techniques predict from that. Gangs are offered of families with `members`,
    at most as many as there are tasks. `divided` are profiles that ran out of memory, with the knobs of the lower rung
    on which they are offered now; what was `rejected` when it was tried is not offered again. On `imagined` kinds,
    where nothing can be tried, more is predicted. What users `may` not have is neither offered nor rejected, and
    nothing else need be faster than it. What was measured with an approximation counts for families that are `allowed`
    it, beside what was measured exactly: everything is derived of each by itself.

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
    found, told = list[Option](), list[Rejection]()
    everything, unfit, lower = tuple(profiles), tuple(rejected), tuple(divided)
    for approximate in ("", *sorted({way for ways in allowed.values() for way in ways})):
        fitting, rejections = _derive(
            (*_foretelling(everything, approximate, allowed), *_exactly(everything, approximate, allowed)),
            cluster,
            approximate=approximate,
            members=members,
            divided=[(one, knobs) for profile, knobs in lower for one in _exactly([profile], approximate, allowed)],
            rejected=tuple(_exactly(unfit, approximate, allowed)),
            imagined=imagined,
            may=_able(may, approximate),
        )
        found += [_approximately(each, approximate) for each in fitting]
        told += [_approximately(each, approximate) for each in rejections]
    return tuple(found), tuple(told)


def _exactly(found: Iterable[Derived], approximate: Approximate, allowed: Allowed) -> Iterator[Derived]:
    """Of these, what was measured with the approximations, as if it were exact."""
    for each in found:
        own, knobs = split_knobs(each.knobs)
        if own == approximate and all(not own or own in allowed.get(family, ()) for family in _families(each)):
            yield dataclasses.replace(each, knobs=knobs) if own else each


def _foretelling(found: Iterable[Profile], approximate: Approximate, allowed: Allowed) -> Iterator[Profile]:
    """Of what was measured exactly, what others are predicted from and cannot be trained so itself: it stays so."""
    for each in found if approximate else ():
        spec = techniques().get(each.technique)
        stays_exact = spec is not None and spec.foretells and not spec.can_train(approximate)
        if stays_exact and not split_knobs(each.knobs)[0] and approximate in allowed.get(each.family, ()):
            yield each


def _families(derived: Profile | Option | Rejection) -> tuple[str, ...]:
    return (derived.family,) if isinstance(derived, Profile) else derived.families


def _approximately(derived: Derived, approximate: Approximate) -> Derived:
    if not approximate:
        return derived
    return dataclasses.replace(derived, knobs=join_knobs(approximate, derived.knobs))


def _able(may: May, approximate: Approximate) -> May:
    if not approximate:
        return may
    return lambda technique, knobs: spec_of(technique).can_train(approximate) and may(technique, knobs)


def _derive(
    profiles: tuple[Profile, ...],
    cluster: Cluster,
    *,
    approximate: Approximate,
    members: Mapping[str, int],
    divided: Iterable[tuple[Profile, Mapping[str, Any]]],
    rejected: Iterable[Rejection],
    imagined: Collection[str],
    may: May,
) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """All that is derived of profiles of one mathematics."""
    present = {kind.name for kind, count in cluster.counts() if count}
    known = [each for each in profiles if each.kind in present and each.technique in techniques()]
    latest = tuple({(trial_of(each), each.knobs): each for each in known}.values())
    evidence = Evidence(
        cluster=cluster,
        profiles=latest,
        members=members,
        imagined=frozenset(imagined),
        may=may,
        approximate=approximate,
    )
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
            yield _linked(spec.option(profile, evidence.cluster), evidence.cluster)
    for spec in techniques().values():
        if spec.is_gang == gangs:
            yield from spec.offers(evidence)


def _linked(option: Option, cluster: Cluster) -> Option:
    """What was measured over several nodes, which were those that were linked best, on such."""
    rates = (
        width.link_bytes_per_second
        for width in (widths(cluster, cluster.kind(option.kind)) if option.nodes > 1 else ())
        if (width.count, width.nodes) == (option.count, option.nodes)
    )
    rate = next(rates, 0.0)
    return dataclasses.replace(option, link_bytes_per_second=rate) if rate else option


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
    return (
        option.count,
        option.start_seconds,
        *option.step_seconds,
        *memory,
        option.cores,
        option.link_bytes_per_second,
    )


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
    allowed: Allowed = NOTHING_ALLOWED,
) -> tuple[Trial, ...]:
    """What techniques want measured of these families and was not yet, in the order of families and techniques.

    `failed` trials are not asked for again. `members` says how many tasks of each family there are, for gangs. What
    users `may` not have is not tried, unless others are predicted from it. What families are `allowed` to have
    approximated is tried after the same with exact steps, with which it is compared.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> known = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> [(trial.technique, trial.count) for trial in trials(["f"], [known], cluster)]
    [('resident', 2)]
    """
    families, known, failed = tuple(families), tuple(profiles), tuple(failed)
    found = list(_trials(families, known, cluster, failed=failed, members=members, may=may))
    for approximate in sorted({way for ways in allowed.values() for way in ways}):
        wanted = _trials(
            [family for family in families if approximate in allowed.get(family, ())],
            (*_foretelling(known, approximate, allowed), *_exactly(known, approximate, allowed)),
            cluster,
            approximate=approximate,
            failed=tuple(_tried_so(failed, approximate)),
            members=members,
            may=_able(may, approximate),
        )
        found += [
            dataclasses.replace(trial, knobs=join_knobs(approximate, trial.knobs))
            for trial in wanted
            if trial not in found and spec_of(trial.technique).can_train(approximate)
        ]
    return tuple(found)


def _tried_so(trials: Iterable[Trial], approximate: Approximate) -> Iterator[Trial]:
    for trial in trials:
        own, knobs = split_knobs(trial.knobs)
        if own == approximate:
            yield dataclasses.replace(trial, knobs=knobs)


def _trials(
    families: Iterable[str],
    profiles: Iterable[Profile],
    cluster: Cluster,
    *,
    approximate: Approximate = "",
    failed: Iterable[Trial],
    members: Mapping[str, int],
    may: May,
) -> tuple[Trial, ...]:
    known, failed = tuple(_exactly(profiles, "", {})), frozenset(_tried_so(failed, ""))
    evidence = Evidence(
        cluster=cluster, profiles=known, members=members, failed=failed, may=may, approximate=approximate
    )
    done = {*map(trial_of, known), *failed}
    wanted = (
        trial
        for family in dict.fromkeys(families)
        for spec in techniques().values()
        for kind in cluster.kinds
        for trial in spec.trials(evidence, family, kind)
    )
    allowed = (each for each in wanted if techniques()[each.technique].foretells or may(each.technique, each.knobs))
    return tuple(trial for trial in dict.fromkeys(allowed) if trial not in done)
