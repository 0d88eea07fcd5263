"""From profiles to options: what each technique offers, less what does not fit and what is dominated."""

import dataclasses
from collections.abc import Collection, Iterable

from dovetail.planning.fitting import misfit
from dovetail.planning.options.dominance import undominated
from dovetail.planning.options.gangs import fused, interleaved, read_together
from dovetail.planning.options.pipelines import pipelined
from dovetail.planning.options.spilling import spilled
from dovetail.planning.options.trials import trial_of
from dovetail.planning.options.untried import untried
from dovetail.planning.techniques import PREDICTORS, spill
from dovetail.vocabulary import Cluster, Option, Profile, Rejection

_GANGED = ("fuse", "interleave", "together")


def derive_options(
    profiles: Iterable[Profile], cluster: Cluster, *, gangs: bool = False, imagined: Collection[str] = ()
) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """The options that fit this cluster, less the dominated ones; and why the others do not fit.

    Offered are what was measured, and what is predicted from a profile with layers: spilling on an accelerator whose
    memory, or a part of it, does not hold the model; and pipelines of steps with several microbatches, where they
    should be clearly faster than what was measured on as many devices. With `gangs`, also interleaving several models
    on one where that beats one after another, and those that read the same batches together; without, there are none,
    because planner 'list' places one task at a time and a bound should not count on what it cannot do.
    On `imagined` kinds, where nothing can be tried, replicating and sharding are predicted too.

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
    known = [each for each in profiles if each.kind in present and (gangs or each.technique not in _GANGED)]
    latest = tuple({(trial_of(each), each.knobs): each for each in known}.values())
    offered: list[Option | Rejection] = [_measured(profile, cluster) for profile in latest]
    offered += spilled(latest, cluster)
    offered += pipelined(latest, cluster)
    offered += untried(latest, cluster, imagined)
    judged = [each if isinstance(each, Rejection) else misfit(each, cluster) or each for each in offered]
    fitting = [each for each in judged if isinstance(each, Option)]
    if gangs:
        # One whose whole batches do not fit alone has no room for others.
        whole = tuple(each for each in latest if each.technique != "resident" or not each.knobs)
        fitting += interleaved(whole, cluster, fitting)
        fitting += fused(whole, cluster, fitting)
        fitting += read_together(whole, cluster)
    return tuple(undominated(fitting)), tuple(each for each in judged if isinstance(each, Rejection))


def _measured(profile: Profile, cluster: Cluster) -> Option:
    kind = cluster.kind(profile.kind)
    option = PREDICTORS[profile.technique](profile, kind=kind)
    if profile.technique not in ("spill", "interleave") or kind.processor == "cpu":
        return option
    return dataclasses.replace(option, cores=spill.Room.of(cluster, kind=kind).cores)  # the host updates with them
