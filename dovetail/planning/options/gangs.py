"""Several models on the same devices at once, where that beats one after another."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from dovetail.planning.fitting import misfit
from dovetail.planning.options.spilling import accelerators, budgets_of, fastest, is_resident
from dovetail.planning.techniques import fuse, spill, together
from dovetail.vocabulary import Cluster, Kind, Option, Profile

# So many of one family are offered as a gang.
_GANGS = (2, 4)
# Reading batches once must save this share of the steps of those that share them, for at most so many different models.
_SAVED, _MOST_TOGETHER = 0.05, 8
# So many of one family are offered where they are fused, if one such gang of it was measured.
_FUSED = (2, 4, 8, 16, 32, 64)
# Pairs of different families are offered among so many: their number grows with the square.
_PAIRED = 6


def interleaved(profiles: Sequence[Profile], cluster: Cluster, alone: Sequence[Option]) -> Iterator[Option]:
    """Gangs of which not every member fits its part of the device, where they beat their members one after another."""
    for kind, able in accelerators(profiles, cluster):
        room, device_bytes, best = spill.Room.of(cluster, kind=kind), budgets_of(kind)[0], _least_seconds(alone, kind)
        equal = ((profile,) * members for profile in able for members in _GANGS)
        for gang in (*equal, *itertools.combinations(able[:_PAIRED], 2)):
            if all(is_resident(profile, device_bytes // len(gang)) for profile in gang):
                continue
            found = fastest(gang, room, device_bytes)
            one_by_one = sum(best.get(profile.family, float("inf")) for profile in gang)
            if isinstance(found, Option) and found.step_seconds[0] < one_by_one and misfit(found, cluster) is None:
                yield found


def fused(profiles: Sequence[Profile], cluster: Cluster, alone: Sequence[Option]) -> Iterator[Option]:
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


def read_together(profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Option]:
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


def _least_seconds(options: Iterable[Option], kind: Kind) -> dict[str, float]:
    """The seconds of a step of each family that has a device of the kind for itself."""
    least: dict[str, float] = {}
    for option in options:
        if option.kind == kind.name and len(option.families) == 1 and option.count == 1:
            (family,), (seconds,) = option.families, option.step_seconds
            least[family] = min(seconds, least.get(family, seconds))
    return least
