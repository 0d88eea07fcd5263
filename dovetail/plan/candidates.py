"""What planners choose between: which options are worth a trial, and which of the measured ones fit.

Knows the cluster and the profiles. Does not know tasks, how long they train, or what else runs: an option
that fits an empty node is a candidate, and when it may start is the planner's business.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

from dovetail.plan.predict import PREDICTORS
from dovetail.vocabulary import Cluster, Kind, Node, Option, Profile, Rejection
from dovetail.vocabulary.units import show_bytes


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


def counts(cluster: Cluster, kind: Kind) -> tuple[int, ...]:
    """The device counts worth offering to a resident task on a kind.

    On a CPU these are the powers of two up to the most cores that one node has, and that most itself; a
    resident model on an accelerator uses exactly one.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu)
    (1, 2, 4, 6)
    """
    most = max(_devices_per_node(cluster, kind.name).values(), default=0)
    if kind.processor != "cpu":
        return (1,) if most else ()
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return tuple(sorted({*powers, most} - {0})) if most else ()


def trials(families: Iterable[str], profiles: Iterable[Profile], cluster: Cluster) -> tuple[Trial, ...]:
    """What has not been measured yet of these families, in the order of families, kinds and counts.

    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2)
    >>> known = Profile(family="f", kind="cpu", count=1, step_seconds=0.5, peak_bytes=0)
    >>> trials(["f"], [known], cluster)
    (Trial(family='f', technique='resident', kind='cpu', count=2),)
    """
    done = {_trial(profile) for profile in profiles}
    wanted = (
        Trial(family=family, technique=technique, kind=kind.name, count=count)
        for family in dict.fromkeys(families)
        for technique in PREDICTORS
        for kind in cluster.kinds
        for count in counts(cluster, kind)
    )
    return tuple(trial for trial in wanted if trial not in done)


def options(profiles: Iterable[Profile], cluster: Cluster) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """The measured options that fit this cluster, less the dominated ones; and why the others do not fit.

    Of two profiles of the same thing the later one counts. Profiles of kinds that this cluster does not
    have were measured elsewhere; they are neither options nor rejections here.

    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), memory_bytes=8 << 30)
    >>> small = Profile(family="small", kind="cpu", count=1, step_seconds=0.5, peak_bytes=1 << 30)
    >>> large = Profile(family="large", kind="cpu", count=1, step_seconds=0.5, peak_bytes=9 << 30)
    >>> fitting, rejected = options([small, large], cluster)
    >>> [option.families for option in fitting], [rejection.families for rejection in rejected]
    ([('small',)], [('large',)])
    """
    present = {kind.name for kind, count in cluster.counts() if count}
    latest = {_trial(profile): profile for profile in profiles if profile.kind in present}
    predicted = [PREDICTORS[p.technique](p, kind=cluster.kind(p.kind)) for p in latest.values()]
    judged = [(option, misfit(option, cluster)) for option in predicted]
    fitting = [option for option, rejection in judged if rejection is None]
    return tuple(_undominated(fitting)), tuple(rejection for _, rejection in judged if rejection is not None)


def misfit(option: Option, cluster: Cluster) -> Rejection | None:
    """Why not even an empty node of the cluster could hold this option, or None where one could.

    >>> cluster = Cluster.uniform(Kind(name="h100", processor="cuda", memory_bytes=40 << 30))
    >>> large = Option(families=("f",), technique="resident", kind="h100", count=1, step_seconds=(1.0,),
    ...                device_bytes=61 << 30)
    >>> misfit(large, cluster).reason.partition(". ")[0]
    'needs 61.0 GiB on one device; the largest h100 has 40.0 GiB'
    """
    per_node = _devices_per_node(cluster, option.kind)
    if not per_node:
        return _reject(option, f"needs a device of kind {option.kind!r}; the cluster has none.")
    memory_bytes = cluster.kind(option.kind).memory_bytes
    if 0 < memory_bytes < option.device_bytes:
        reason = (
            f"needs {show_bytes(option.device_bytes)} on one device; the largest {option.kind} has "
            f"{show_bytes(memory_bytes)}. Use a smaller batch with accumulate, or a device with more memory."
        )
        return _reject(option, reason, needed_bytes=option.device_bytes, free_bytes=memory_bytes)
    if option.count > max(per_node.values()):
        return _reject(
            option, f"needs {option.count} × {option.kind} on one node; the most is {max(per_node.values())}."
        )
    nodes = [cluster.node(name) for name, devices in per_node.items() if devices >= option.count]
    return _host_misfit(option, nodes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Something that the placements of a node share, and what to do where it runs short."""

    what: str
    need: Callable[[Option], int]
    have: Callable[[Node], float]
    show: Callable[[float], str]
    advice: str
    in_bytes: bool = True


_SHARED = (
    _Shared(
        what="host memory",
        need=lambda option: option.host_bytes,
        have=lambda node: node.memory_bytes,
        show=show_bytes,
        advice="Make the model or its batch smaller, or add a node with more memory.",
    ),
    _Shared(
        what="disk",
        need=lambda option: option.disk_bytes,
        # A node whose disk nobody measured is not held to zero bytes of it.
        have=lambda node: node.disk_bytes or float("inf"),
        show=show_bytes,
        advice="Free some of it, or add a node with more.",
    ),
    _Shared(
        what="cores",
        need=lambda option: option.cores,
        have=lambda node: node.cores,
        show=lambda count: f"{count:.0f}",
        advice="Use fewer devices, or add a node with more cores.",
        in_bytes=False,
    ),
)


def _host_misfit(option: Option, nodes: list[Node]) -> Rejection | None:
    """The first shared thing that no node still in question has enough of."""
    for shared in _SHARED:
        needed, most = shared.need(option), max(shared.have(node) for node in nodes)
        if needed > most:
            amount = f"{shared.show(needed)} {'of ' if shared.in_bytes else ''}{shared.what}"
            reason = (
                f"needs {amount} on one node; the largest that could hold it has {shared.show(most)}. {shared.advice}"
            )
            bytes_of = {"needed_bytes": needed, "free_bytes": int(most)} if shared.in_bytes else {}
            return _reject(option, reason, **bytes_of)
        nodes = [node for node in nodes if shared.have(node) >= needed]
    return None


def _reject(option: Option, reason: str, *, needed_bytes: int = 0, free_bytes: int = 0) -> Rejection:
    return Rejection(
        families=option.families,
        technique=option.technique,
        kind=option.kind,
        count=option.count,
        reason=reason,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
    )


def _undominated(options: list[Option]) -> list[Option]:
    """Options that no other one of the same families on the same kind beats or equals in everything.

    Which of two good options is better depends on the other tasks, so only a planner may choose there.
    """
    kept: list[Option] = []
    # In this order an option comes after every one that could dominate it, and of equals the first stays.
    for option in sorted(options, key=_taken):
        if not any(_dominates(other, option) for other in kept):
            kept.append(option)
    return [option for option in options if any(option is other for other in kept)]


def _taken(option: Option) -> tuple[float, ...]:
    memory = (option.device_bytes, option.host_bytes, option.disk_bytes)
    return (option.count, option.start_seconds, *option.step_seconds, *memory, option.cores)


def _dominates(better: Option, worse: Option) -> bool:
    if (better.families, better.kind) != (worse.families, worse.kind):
        return False
    return all(low <= high for low, high in zip(_taken(better), _taken(worse), strict=True))


def _devices_per_node(cluster: Cluster, kind: str) -> Counter[str]:
    return Counter(device.node for device in cluster.of_kind(kind))


def _trial(profile: Profile) -> Trial:
    return Trial(family=profile.family, technique=profile.technique, kind=profile.kind, count=profile.count)
