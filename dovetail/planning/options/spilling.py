"""Models that stream through an accelerator: within which part of its memory, and with recomputing or without."""

import functools
import itertools
from collections.abc import Iterator, Sequence

from dovetail.planning.options.layers import with_layers
from dovetail.planning.techniques import spill
from dovetail.vocabulary import Cluster, Kind, Option, Profile, Rejection

# Spilling is offered within these shares of a device's memory; a context and what its allocator cannot use take a bit.
_BUDGETS = (15 / 16, 1 / 2, 1 / 4)


def spilled(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option | Rejection]:
    """For each family with layers on an accelerator: the faster of recomputing and not, within each budget that does
    not hold it resident and in which spilling was not measured."""
    for kind, able in accelerators(profiles, cluster):
        room, budgets = spill.Room.of(cluster, kind=kind), budgets_of(kind)
        mine = [each for each in profiles if each.kind == kind.name and each.technique == "spill"]
        known = {(each.family, each.knobs.get("device_bytes", budgets[0])) for each in mine}
        for profile, device_bytes in itertools.product(able, budgets):
            if (profile.family, device_bytes) in known or is_resident(profile, device_bytes):
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
    """The parts of a device's memory within which spilling is offered, the largest first."""
    return tuple(int(kind.memory_bytes * share) for share in _BUDGETS)


def is_resident(profile: Profile, device_bytes: int) -> bool:
    """Whether it was measured to need no more than this without spilling."""
    return profile.technique == "resident" and profile.peak_bytes <= device_bytes


# Planners ask again and again as tasks come and go, with the same profiles; a prediction takes milliseconds.
@functools.lru_cache(maxsize=4096)
def fastest(gang: tuple[Profile, ...], room: spill.Room, device_bytes: int) -> Option | Rejection:
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
