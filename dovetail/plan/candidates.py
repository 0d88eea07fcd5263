"""What planners choose between: which options are worth a trial, and which of the measured and predicted ones fit.

Knows the cluster and the profiles. Does not know tasks, how long they train, or what else runs: an option
that fits an empty node is a candidate, and when it may start is the planner's business.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from dovetail.plan.partition import Fabric
from dovetail.plan.predict import PREDICTORS, fuse, pipeline, replicate, spill, together
from dovetail.vocabulary import RANKED, Cluster, Kind, Node, Option, Profile, Rejection
from dovetail.vocabulary.units import show_bytes

# Spilling is offered within these shares of a device's memory; a context and what its allocator cannot use take a bit.
_BUDGETS = (15 / 16, 1 / 2, 1 / 4)
# So many of one family are offered as a gang.
_GANGS = (2, 4)
# Copies must be predicted to take at most this share of the time to be worth a trial: it costs seconds on all devices.
_CLEARLY = 0.85
# Reading batches once must save this share of the steps of those that share them, for at most so many different models.
_SAVED, _MOST_TOGETHER = 0.05, 8
_GANGED = ("fuse", "interleave", "together")
# And so many where they are fused, of families of which one such gang was measured.
_FUSED = (2, 4, 8, 16, 32, 64)
# Steps on a CPU are tried fused only where they are shorter than this.
_SHORT_SECONDS = 0.005
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6


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


def counts(cluster: Cluster, kind: Kind, *, technique: str = "resident") -> tuple[int, ...]:
    """The device counts worth offering to a task on a kind.

    On a CPU these are the powers of two up to the most cores that one node has, and that most itself; a
    resident or spilled model on an accelerator uses exactly one, and one that is split over ranks uses several.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu)
    (1, 2, 4, 6)
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu, technique="replicate")
    (2, 4, 6)
    """
    most = max(_devices_per_node(cluster, kind.name).values(), default=0)
    if kind.processor != "cpu" and technique not in RANKED:
        return (1,) if most else ()
    powers = [1 << exponent for exponent in range(most.bit_length())]
    least = 2 if technique in RANKED else 1
    return tuple(count for count in sorted({*powers, most}) if count >= least)


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
    done = {*map(_trial, known), *failed}
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
    return replicate.step_seconds(alone[1], kind=kind, count=count, bytes_per_second=rate) < _CLEARLY * least_seconds


def options(
    profiles: Iterable[Profile], cluster: Cluster, *, gangs: bool = False
) -> tuple[tuple[Option, ...], tuple[Rejection, ...]]:
    """The options that fit this cluster, less the dominated ones; and why the others do not fit.

    Offered are what was measured, and what is predicted from a profile with layers: spilling on an accelerator whose
    memory, or a part of it, does not hold the model; and pipelines of steps with several microbatches, where they
    should be clearly faster than what was measured on as many devices. With `gangs`, also interleaving several models
    on one where that beats one after another, and those that read the same batches together; without, there are none,
    because planner 'list' places one task at a time and a bound should not count on what it cannot do.

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
    known = [each for each in profiles if each.kind in present and (gangs or each.technique not in _GANGED)]
    latest = tuple({(_trial(each), each.knobs): each for each in known}.values())
    offered: list[Option | Rejection] = [_measured(profile, cluster) for profile in latest]
    offered += _spilled(latest, cluster)
    offered += _pipelined(latest, cluster)
    judged = [each if isinstance(each, Rejection) else misfit(each, cluster) or each for each in offered]
    fitting = [each for each in judged if isinstance(each, Option)]
    if gangs:
        fitting += _interleaved(latest, cluster, fitting)
        fitting += _fused(latest, cluster, fitting)
        fitting += _together(latest, cluster)
    return tuple(_undominated(fitting)), tuple(each for each in judged if isinstance(each, Rejection))


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


def _measured(profile: Profile, cluster: Cluster) -> Option:
    kind = cluster.kind(profile.kind)
    option = PREDICTORS[profile.technique](profile, kind=kind)
    if profile.technique not in ("spill", "interleave") or kind.processor == "cpu":
        return option
    return dataclasses.replace(option, cores=spill.Room.of(cluster, kind=kind).cores)  # the host updates with them


def _spilled(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option | Rejection]:
    """For each family with layers on an accelerator: the faster of recomputing and not, within each budget that does
    not hold it resident and in which spilling was not measured."""
    for kind, able in _accelerators(profiles, cluster):
        room, budgets = spill.Room.of(cluster, kind=kind), _budgets(kind)
        mine = [each for each in profiles if each.kind == kind.name and each.technique == "spill"]
        known = {(each.family, each.knobs.get("device_bytes", budgets[0])) for each in mine}
        for profile, device_bytes in itertools.product(able, budgets):
            if (profile.family, device_bytes) in known or _is_resident(profile, device_bytes):
                continue
            found = _fastest((profile,), room, device_bytes)
            # That a part of the device is too small is nothing to tell.
            if isinstance(found, Option) or device_bytes == budgets[0]:
                yield found


def _pipelined(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option]:
    """Pipelines of families whose layers are known: of one stage for each device, with the timetable that the program
    asks for, and else with 1F1B, which is the mathematics of one device."""
    for kind in cluster.kinds:
        mine = [each for each in profiles if each.kind == kind.name]
        for profile in _with_layers(each for each in mine if each.count == 1 and each.edges):
            if profile.accumulate < 2 and not profile.timetable:
                continue
            for count in counts(cluster, kind, technique="pipeline"):
                rivals = [each for each in mine if each.family == profile.family and each.count <= count]
                is_threaded = kind.processor != "cpu" or any(each.count == count for each in rivals)
                found = _pipeline(profile, kind, _neighbours(cluster, kind, count))
                least_seconds = min(each.step_seconds for each in rivals)
                if is_threaded and isinstance(found, Option) and found.step_seconds[0] < _CLEARLY * least_seconds:
                    yield found


@functools.lru_cache(maxsize=1024)
def _pipeline(profile: Profile, kind: Kind, fabric: Fabric) -> Option | Rejection:
    timetable, devices = profile.timetable or "1f1b", len(fabric.places)
    made = pipeline.predict(profile, kind=kind, fabric=fabric, timetable=timetable, depth=devices, width=1)
    return made.option if isinstance(made, pipeline.Prediction) else made


def _neighbours(cluster: Cluster, kind: Kind, count: int) -> Fabric:
    """So many devices of a kind on one node that has them."""
    per_node = _devices_per_node(cluster, kind.name)
    node = next(name for name, devices in per_node.items() if devices >= count)
    return Fabric.of(cluster, devices=[d.name for d in cluster.of_kind(kind.name) if d.node == node][:count])


def _interleaved(profiles: Sequence[Profile], cluster: Cluster, alone: Sequence[Option]) -> Iterator[Option]:
    """Gangs of which not every member fits its part of the device, where they beat their members one after another."""
    for kind, able in _accelerators(profiles, cluster):
        room, device_bytes, best = spill.Room.of(cluster, kind=kind), _budgets(kind)[0], _least_seconds(alone, kind)
        equal = ((profile,) * members for profile in able for members in _GANGS)
        for gang in (*equal, *itertools.combinations(able[:_PAIRED], 2)):
            if all(_is_resident(profile, device_bytes // len(gang)) for profile in gang):
                continue
            found = _fastest(gang, room, device_bytes)
            one_by_one = sum(best.get(profile.family, float("inf")) for profile in gang)
            if isinstance(found, Option) and found.step_seconds[0] < one_by_one and misfit(found, cluster) is None:
                yield found


def _fused(profiles: Sequence[Profile], cluster: Cluster, alone: Sequence[Option]) -> Iterator[Option]:
    """Gangs of other sizes than the one that was measured, where they beat their members one after another. Whether
    a family can be fused at all only a trial can say, so there are none without one."""
    solo = {(each.family, each.kind, each.count): each for each in profiles if each.technique == "resident"}
    for profile in profiles:
        one = solo.get((profile.family, profile.kind, profile.count))
        if profile.technique != "fuse" or one is None:
            continue
        kind = cluster.kind(profile.kind)
        best = _least_seconds(alone, kind).get(profile.family, float("inf"))
        for members in _FUSED:
            found = fuse.predict(profile, alone=one, kind=kind, members=members)
            is_measured = members == profile.knobs.get("members", fuse.TRIED)
            if not is_measured and found.step_seconds[0] < members * best and misfit(found, cluster) is None:
                yield found


def _together(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option]:
    """Gangs that read the same batches, where reading them once saves a good part of their steps."""
    groups: dict[tuple[str, int, str], list[Profile]] = {}
    for profile in profiles:
        if profile.shares and profile.technique == "resident":
            groups.setdefault((profile.kind, profile.count, profile.shares), []).append(profile)
    for (kind, _, _), group in groups.items():
        equal = [(profile,) * members for profile in group for members in _GANGS]
        whole = [tuple(group[:_MOST_TOGETHER])] if len(group) > 2 else []
        for gang in (*equal, *itertools.combinations(group[:_PAIRED], 2), *whole):
            total = sum(profile.step_seconds for profile in gang)
            if len({profile.accumulate for profile in gang}) > 1 or together.saved_seconds(gang) < _SAVED * total:
                continue
            found = together.predict(gang, kind=cluster.kind(kind))
            if misfit(found, cluster) is None:
                yield found


def _accelerators(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[tuple[Kind, list[Profile]]]:
    """Each kind on which models can be spilled, with the profiles of those whose layers are known there."""
    for kind in cluster.kinds:
        able = _with_layers(profile for profile in profiles if profile.kind == kind.name)
        if able and kind.processor == "cuda" and kind.memory_bytes:
            yield kind, able


def _with_layers(profiles: Iterable[Profile]) -> list[Profile]:
    """One profile a family that says what each of its layers takes: the resident one where there are two."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        is_timed = any(layer.forward_seconds + layer.backward_seconds > 0 for layer in profile.layers)
        is_sized = any(layer.parameter_bytes for layer in profile.layers)
        is_better = profile.technique == "resident" or profile.family not in found
        if is_timed and is_sized and is_better:
            found[profile.family] = profile
    return list(found.values())


def _budgets(kind: Kind) -> tuple[int, ...]:
    """The parts of a device's memory within which spilling is offered, the largest first."""
    return tuple(int(kind.memory_bytes * share) for share in _BUDGETS)


def _is_resident(profile: Profile, device_bytes: int) -> bool:
    return profile.technique == "resident" and profile.peak_bytes <= device_bytes


def _is_too_large(profile: Profile, cluster: Cluster) -> bool:
    sizes = [kind.memory_bytes for kind in cluster.kinds if kind.name == profile.kind and kind.memory_bytes]
    return profile.technique == "resident" and any(profile.peak_bytes > size for size in sizes)


def _least_seconds(options: Iterable[Option], kind: Kind) -> dict[str, float]:
    """The seconds of a step of each family that has a device of the kind for itself."""
    least: dict[str, float] = {}
    for option in options:
        if option.kind == kind.name and len(option.families) == 1 and option.count == 1:
            (family,), (seconds,) = option.families, option.step_seconds
            least[family] = min(seconds, least.get(family, seconds))
    return least


# Planners ask again and again as tasks come and go, with the same profiles; a prediction takes milliseconds.
@functools.lru_cache(maxsize=4096)
def _fastest(gang: tuple[Profile, ...], room: spill.Room, device_bytes: int) -> Option | Rejection:
    """The gang with or without recomputing, whichever is faster within the budget; why not, where neither fits."""
    found: list[Option] = []
    for recompute in (False, True):
        try:
            found.append(spill.predict(gang, room=room, device_bytes=device_bytes, recompute=recompute))
        except spill.DoesNotFit as error:
            refusal = error
    if found:
        return min(found, key=lambda option: option.step_seconds)
    return Rejection(
        families=tuple(profile.family for profile in gang),
        technique="spill" if len(gang) == 1 else "interleave",
        kind=room.kind.name,
        count=1,
        reason=str(refusal),
        needed_bytes=refusal.needed_bytes,
        free_bytes=refusal.free_bytes,
    )


def _devices_per_node(cluster: Cluster, kind: str) -> Counter[str]:
    return Counter(device.node for device in cluster.of_kind(kind))


def _trial(profile: Profile) -> Trial:
    return Trial(family=profile.family, technique=profile.technique, kind=profile.kind, count=profile.count)
