"""Which options are worth a short measured run, given what was measured before. Offers none itself."""

from collections.abc import Iterable, Mapping

from dovetail.planning.techniques import Evidence, May, Trial, allow_all, techniques, trial_of
from dovetail.vocabulary import Cluster, FrozenDict, Profile


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
