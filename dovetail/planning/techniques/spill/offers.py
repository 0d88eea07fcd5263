"""The options of spilling one model, or of interleaving several: predicted from profiles with layers, or measured;
within which part of a device's memory they are worth offering, and with recomputing or without."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from dovetail.planning.streaming import Pace, Spilled, StreamingRates, step_seconds
from dovetail.planning.techniques import resident
from dovetail.planning.techniques.base import MOMENTS_AND_WEIGHTS, Evidence, TechniqueSpec, Trial, with_layers
from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.planning.techniques.spill.layouts import DoesNotFit, SpillRoom, layout, segments, working_bytes
from dovetail.vocabulary import Cluster, Kind, Node, Option, Profile, Rejection

# Predicted options ask for room for so many segments: one computes, one is there, one is on its way.
_DEPTH = 3
# Spilling is offered within these shares of a device's memory; a context and what its allocator cannot use take a bit.
_BUDGETS = (15 / 16, 1 / 2, 1 / 4)
#: What an option may ask of a session; `disk_directory` is filled in by the worker, on its own disk.
KNOBS: dict[str, tuple[bool, ...]] = {
    "device_bytes": (),
    "host_bytes": (),
    "disk_bytes": (),
    "disk_directory": (),
    "recompute": (False, True),
    "depth": (),
}


def predict(gang: Sequence[Profile], *, room: SpillRoom, device_bytes: int, recompute: bool) -> Option:
    """The option of spilling one family, or of interleaving several, within a device budget.

    Each member has an equal share of the device, of the host and of half the disk, as if all were at work at once.
    Raises `DoesNotFit` where a share is too small for its member.

    >>> from dovetail.vocabulary import Cluster, LayerProfile
    >>> layers = tuple(LayerProfile(name=name, operation="Linear", forward_seconds=0.01, backward_seconds=0.02,
    ...                             parameter_bytes=1 << 30) for name in "abcdefghijkl")
    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=0.4, peak_bytes=49 << 30, layers=layers,
    ...                   parameter_bytes=12 << 30, optimizer_bytes=24 << 30)
    >>> h200 = Kind(name="h200", processor="cuda")
    >>> room = SpillRoom.of(Cluster.uniform(h200, cores=16, memory_bytes=64 << 30), kind=h200)
    >>> found = predict([profile], room=room, device_bytes=24 << 30, recompute=True)
    >>> found.technique, found.device_bytes >> 30, found.host_bytes >> 30, round(found.step_seconds[0], 1)
    ('spill', 23, 26, 2.2)
    """
    members = tuple(_spilled(each, room, device_bytes // len(gang), recompute, members=len(gang)) for each in gang)
    pace = step_seconds(members, rates=_update_rates(room.rates, gang), clip=any(profile.clips for profile in gang))
    alone = [resident.option(profile, kind=room.kind) for profile in gang]
    layouts = [member.layout for member in members]
    knobs = {"device_bytes": device_bytes, "recompute": recompute, "depth": _DEPTH}
    if disk_bytes := sum(each.disk_bytes for each in layouts):
        knobs["disk_bytes"] = _disk_bytes(room.node)
    seconds = pace.seconds + sum(_evaluation_seconds(*each, pace) for each in zip(gang, alone, strict=True))
    return Option(
        families=tuple(profile.family for profile in gang),
        technique="spill" if len(gang) == 1 else "interleave",
        kind=room.kind.name,
        count=1,
        step_seconds=(seconds,) * len(gang),
        knobs=knobs,
        start_seconds=sum(each.start_seconds for each in alone),
        device_bytes=sum(each.device_bytes for each in layouts),
        # One process, whose own memory counts once, holds all members.
        host_bytes=sum(each.host_bytes for each in layouts) - (len(gang) - 1) * CUDA_HOST_BYTES,
        disk_bytes=disk_bytes,
        cores=room.cores,
        update_seconds=pace.update_seconds,
        measured=False,
    )


def _update_rates(rates: StreamingRates, gang: Sequence[Profile]) -> StreamingRates:
    """The rates of a host that updates moments of this gang's size: what was measured moves 28 bytes a parameter, of
    which the moments are 16, and fewer bytes take as much less time."""
    moments = sum(each.optimizer_bytes for each in gang) / max(1, sum(each.parameter_bytes for each in gang) // 4)
    if not 2 <= moments < 4:  # as large as they are in full, or another optimizer's
        return rates
    faster = 28 / (12 + 2 * moments)
    return dataclasses.replace(rates, update_parameters_per_second=faster * rates.update_parameters_per_second)


def _spilled(profile: Profile, room: SpillRoom, device_bytes: int, recompute: bool, *, members: int) -> Spilled:
    """One member in its share of the device, and of the node among so many members."""
    found = segments(profile, device_bytes=device_bytes, recompute=recompute, rates=room.rates)
    where = layout(
        found,
        device_bytes=device_bytes,
        host_bytes=CUDA_HOST_BYTES + max(0, room.node.memory_bytes - CUDA_HOST_BYTES) // members,
        working_bytes=working_bytes(profile, device_bytes=device_bytes, recompute=recompute),
        depth=_DEPTH,
        disk_bytes=_disk_bytes(room.node) // members,
        holds_gradients=profile.clips or profile.accumulate > 1,
    )
    return Spilled(segments=found, layout=where, accumulate=profile.accumulate or 1)


def _disk_bytes(node: Node) -> int:
    return node.disk_bytes // 2  # the rest is for checkpoints and what is there already


def _evaluation_seconds(profile: Profile, alone: Option, pace: Pace) -> float:
    """The share of a step for evaluation, which streams as a step does."""
    return (alone.step_seconds[0] - profile.step_seconds) * max(1.0, pace.seconds / profile.step_seconds)


def option(profile: Profile, *, kind: Kind) -> Option:
    """The option that was measured as a spilled one, with the knobs it was measured with.

    >>> profile = Profile(family="f", kind="h200", count=1, step_seconds=1.5, peak_bytes=23 << 30, technique="spill",
    ...                   knobs={"device_bytes": 24 << 30}, host_bytes=90 << 30)
    >>> made = option(profile, kind=Kind(name="h200", processor="cuda"))
    >>> made.technique, made.step_seconds, made.host_bytes >> 30, made.measured
    ('spill', (1.5,), 90, True)
    """
    alone = resident.option(profile, kind=kind)
    seconds = profile.update_seconds
    made = dataclasses.replace(alone, technique="spill", knobs=profile.knobs, update_seconds=seconds)
    if kind.processor == "cpu":
        return made
    # Where the session did not say: as if everything streamed, gradients as large as weights.
    return dataclasses.replace(
        made,
        host_bytes=profile.host_bytes or made.host_bytes + profile.parameter_bytes,
        disk_bytes=profile.disk_bytes,
    )


def trials(evidence: Evidence, family: str, kind: Kind) -> Iterator[Trial]:
    """Spilling is slower than being resident, so it is tried only on accelerators that do not hold the model."""
    if kind.processor == "cuda" and evidence.must_be_split(family, kind.name) and evidence.cluster.of_kind(kind.name):
        yield Trial(family=family, technique="spill", kind=kind.name, count=1)


def offers(evidence: Evidence) -> Iterator[Option | Rejection]:
    """For each family with layers on an accelerator: the faster of recomputing and not, within each budget that does
    not hold it resident and in which spilling was not measured."""
    for kind, able in accelerators(evidence.profiles, evidence.cluster):
        room, budgets = SpillRoom.of(evidence.cluster, kind=kind), budgets_of(kind)
        mine = evidence.of(kind=kind.name, technique="spill")
        known = {(each.family, each.knobs.get("device_bytes", budgets[0])) for each in mine}
        for profile, device_bytes in itertools.product(able, budgets):
            unneeded = evidence.may("resident", {}) and is_resident(profile, device_bytes)
            if (profile.family, device_bytes) in known or unneeded:
                continue
            found = fastest((profile,), room, device_bytes)
            # That a part of the device is too small is nothing to tell.
            if isinstance(found, Option) or device_bytes == budgets[0]:
                yield found


def accelerators(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[tuple[Kind, list[Profile]]]:
    """Each kind on which models can be spilled, with the profiles of those whose layers are known there."""
    for kind in cluster.kinds:
        able = with_layers(profile for profile in profiles if profile.kind == kind.name)
        if able and kind.processor == "cuda" and kind.memory_bytes:
            yield kind, able


def budgets_of(kind: Kind) -> tuple[int, ...]:
    """The parts of a device's memory within which spilling is offered, the largest first. Where a user has limited it,
    what a context and the allocator take comes out of the rest of the device.

    >>> kind = Kind(name="h200-24GiB", processor="cuda", memory_bytes=24 << 30, limited=True)
    >>> [each >> 30 for each in budgets_of(kind)]
    [24, 12, 6]
    """
    shares = (1.0, *_BUDGETS[1:]) if kind.limited else _BUDGETS
    return tuple(int(kind.memory_bytes * share) for share in shares)


def is_resident(profile: Profile, device_bytes: int) -> bool:
    """Whether it was measured to need no more than this without spilling."""
    return profile.technique == "resident" and profile.peak_bytes <= device_bytes


# Planners ask again and again as tasks come and go, with the same profiles; a prediction takes milliseconds.
@functools.lru_cache(maxsize=4096)
def fastest(gang: tuple[Profile, ...], room: SpillRoom, device_bytes: int) -> Option | Rejection:
    """The gang with or without recomputing, whichever is faster within the budget; why not, where neither fits."""
    found: list[Option] = []
    for recompute in (False, True):
        try:
            found.append(predict(gang, room=room, device_bytes=device_bytes, recompute=recompute))
        except DoesNotFit as error:
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


def with_its_cores(option: Option, cluster: Cluster) -> Option:
    """A measured option with the cores of its node that update what was spilled.

    >>> h200 = Kind(name="h200", processor="cuda")
    >>> made = Option(families=("f",), technique="spill", kind="h200", count=1, step_seconds=(1.0,))
    >>> with_its_cores(made, Cluster.uniform(h200, cores=16)).cores
    16
    """
    kind = cluster.kind(option.kind)
    return (
        option if kind.processor == "cpu" else dataclasses.replace(option, cores=SpillRoom.of(cluster, kind=kind).cores)
    )


def slowed(option: Option, evidence: Evidence, cores: int) -> float:
    """How many times longer a step takes where only so many of the host's cores update what was spilled: as predicted
    for the family's layers, and, where these are not known, as if updating were all of it."""
    room = SpillRoom.of(evidence.cluster, kind=evidence.cluster.kind(option.kind))
    share = max(1, cores) / room.cores
    fewer = dataclasses.replace(
        room.rates, update_parameters_per_second=share * room.rates.update_parameters_per_second
    )
    known = {each.family: each for each in with_layers(evidence.of(kind=option.kind))}
    gang = [known[family] for family in option.families if family in known]
    if len(gang) < len(option.families):
        return 1 / share
    asked = {
        "device_bytes": option.knobs.get("device_bytes", option.device_bytes),
        "recompute": bool(option.knobs.get("recompute")),
    }
    try:
        whole, less = (
            predict(gang, room=dataclasses.replace(room, rates=rates), **asked) for rates in (room.rates, fewer)
        )
    except DoesNotFit:
        return 1 / share
    return less.step_seconds[0] / whole.step_seconds[0]


def _measured(profile: Profile, cluster: Cluster) -> Option:
    return with_its_cores(option(profile, kind=cluster.kind(profile.kind)), cluster)


SPEC = TechniqueSpec(
    name="spill",
    runtime="dovetail.train.spill:SPILL",
    option=_measured,
    trials=trials,
    offers=offers,
    on_host=True,
    slowed=slowed,
    knobs=KNOBS,
    approximations=MOMENTS_AND_WEIGHTS,
)
