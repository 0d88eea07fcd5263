"""Whether a schedule breaks a law. Every schedule passes here before anything of it starts.

Shares no code with the planners, on purpose: a mistake in what they believe to be free must not be made
twice. Knows the records and nothing of how a schedule was found, nor whether it is a good one.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from dovetail.vocabulary import Cluster, Device, InvalidSchedule, Node, Option, Placement, Schedule
from dovetail.vocabulary.units import show_bytes

# Ends are sums of floats: a placement may begin this share of the other's end before that end.
TOLERANCE = 1e-6
_SHOWN = 20


def check(
    schedule: Schedule,
    cluster: Cluster,
    *,
    running: Iterable[Placement] = (),
    deadlines: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Raise `InvalidSchedule` with every violation, unless there is none.

    >>> from dovetail.vocabulary import Kind
    >>> check(Schedule(placements=()), Cluster.uniform(Kind(name="cpu", processor="cpu")))
    """
    found = violations(schedule, cluster, running=running, deadlines=deadlines)
    if not found:
        return
    lines = [f"- {violation}" for violation in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"- and {len(found) - _SHOWN} more")
    raise InvalidSchedule(
        f"a schedule must break no law, this one breaks {len(found)}; none of it was started. "
        "This is a mistake in the planner: please report it.\n" + "\n".join(lines)
    )


def violations(
    schedule: Schedule,
    cluster: Cluster,
    *,
    running: Iterable[Placement] = (),
    deadlines: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    """Every law that the schedule breaks, beside what is running already; an empty list where it breaks none.
    `deadlines` are the seconds from now by which tasks of the schedule must have ended.

    >>> from dovetail.vocabulary import Kind
    >>> option = Option(families=("f",), technique="resident", kind="cpu", count=1, step_seconds=(1.0,))
    >>> p = Placement(tasks=("a",), steps=(5,), option=option, devices=("n0:7",), start_seconds=0, duration_seconds=5)
    >>> violations(Schedule(placements=(p,)), Cluster.uniform(Kind(name="cpu", processor="cpu")))
    ["'a' is on device 'n0:7', which the cluster does not have."]
    """
    devices = {device.name: device for device in cluster.devices}
    found: list[str] = []
    for placement in schedule.placements:
        found += _own_violations(placement)
        found += _device_violations(placement, cluster, devices)
        found += _late(placement, deadlines)
    # What has no place in time cannot be compared with others in time; it is reported already.
    together = [placement for placement in (*running, *schedule.placements) if _is_timed(placement)]
    found += _overlaps(together, of=lambda placement: placement.devices, what="device")
    found += _overlaps(together, of=lambda placement: placement.tasks, what="task")
    found += _overloads(together, cluster, devices)
    return found


def _own_violations(placement: Placement) -> Iterator[str]:
    """What is wrong with a placement whatever else there is, and whatever the cluster."""
    name, members = _name(placement), len(placement.option.families)
    if not _is_timed(placement) or placement.start_seconds < 0:
        yield (
            f"{name} must start at a finite time of at least 0 and last longer than 0 s, "
            f"found a start of {placement.start_seconds} s and a duration of {placement.duration_seconds} s."
        )
    if not len(placement.tasks) == len(placement.steps) == members:
        yield (
            f"{name} must have one task and one number of steps for each family of its option, "
            f"found {len(placement.tasks)} tasks, {len(placement.steps)} numbers of steps and {members} families."
        )


def _device_violations(placement: Placement, cluster: Cluster, devices: dict[str, Device]) -> Iterator[str]:
    """What is wrong with the devices of a placement, whatever else there is."""
    name, option = _name(placement), placement.option
    if len(placement.devices) != option.count:
        yield f"{name} must be on {option.count} devices, as its option says, found {len(placement.devices)}."
    if len(set(placement.devices)) < len(placement.devices):
        yield f"{name} must be on devices that differ, found {', '.join(map(repr, placement.devices))}."
    for missing in (device for device in placement.devices if device not in devices):
        yield f"{name} is on device {missing!r}, which the cluster does not have."
    known = [devices[device] for device in placement.devices if device in devices]
    for device in known:
        if device.kind != option.kind:
            yield f"{name} must be on kind {option.kind!r}, found device {device.name!r} of kind {device.kind!r}."
    for kind in sorted({device.kind for device in known}):
        memory_bytes = cluster.kind(kind).memory_bytes
        if 0 < memory_bytes < option.device_bytes:
            needed, size = show_bytes(option.device_bytes), show_bytes(memory_bytes)
            yield f"{name} needs {needed} on each device; one of kind {kind!r} has {size}."
    nodes = Counter(device.node for device in known)
    if nodes and len(nodes) != option.nodes:
        how_many = "one node" if option.nodes == 1 else f"{option.nodes} nodes"
        yield f"{name} with technique {option.technique!r} must be on {how_many}, found {', '.join(sorted(nodes))}."
    elif len(set(nodes.values())) > 1:
        yield f"{name} must have as many devices on each of its nodes, found {dict(sorted(nodes.items()))}."


def _late(placement: Placement, deadlines: Mapping[str, float]) -> Iterator[str]:
    """The tasks of a placement that end after their deadlines; in a gang some end before the others."""
    option = placement.option
    for task, steps, seconds in zip(placement.tasks, placement.steps, option.step_seconds, strict=False):
        own_seconds = min(placement.duration_seconds, option.start_seconds + steps * seconds)
        end, due = placement.start_seconds + own_seconds, deadlines.get(task, math.inf)
        if end - due > TOLERANCE * max(1.0, due):
            yield f"{task!r} must have ended by {due:g} s, its deadline, found an end at {end:g} s."


def _overlaps(placements: list[Placement], *, of: Callable[[Placement], tuple[str, ...]], what: str) -> Iterator[str]:
    """Each thing of which a placement takes hold before an earlier one has let go."""
    holders: dict[str, list[Placement]] = defaultdict(list)
    for placement in placements:
        for thing in dict.fromkeys(of(placement)):
            holders[thing].append(placement)
    for thing, held in holders.items():
        held.sort(key=lambda placement: placement.start_seconds)
        last = held[0]
        for placement in held[1:]:
            if placement.start_seconds < _let_go(last):
                yield (
                    f"{what} {thing!r} is in two placements at once: {_name(last)} until {last.end_seconds:g} s "
                    f"and {_name(placement)} from {placement.start_seconds:g} s."
                )
            last = max(last, placement, key=_let_go)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """What the placements of one node draw from together."""

    what: str
    drawn: Callable[[Option], int]
    size: Callable[[Node], float]
    show: Callable[[float], str]


_POOLS = (
    _Pool(what="host memory", drawn=lambda o: o.host_bytes, size=lambda n: n.memory_bytes, show=show_bytes),
    # Zero stands for a disk that nobody measured.
    _Pool(what="disk", drawn=lambda o: o.disk_bytes, size=lambda n: n.disk_bytes or math.inf, show=show_bytes),
    _Pool(what="its cores", drawn=lambda o: o.cores, size=lambda n: n.cores, show=lambda count: f"{count:.0f}"),
)


def _overloads(placements: list[Placement], cluster: Cluster, devices: dict[str, Device]) -> Iterator[str]:
    """Each pool of each node from which more is drawn at some time than there is."""
    by_node: dict[str, list[Placement]] = defaultdict(list)
    for placement in placements:
        # A gang that wrongly spans nodes draws on each, so that none looks emptier than it may be.
        for node in {devices[device].node for device in placement.devices if device in devices}:
            by_node[node].append(placement)
    for name in sorted(by_node):
        for pool in _POOLS:
            yield from _overload(by_node[name], cluster.node(name), pool)


def _overload(placements: list[Placement], node: Node, pool: _Pool) -> Iterator[str]:
    """The first moment at which a pool is overdrawn, if any."""
    changes = []
    for placement in placements:
        drawn = -(-pool.drawn(placement.option) // placement.option.nodes)
        changes += [(placement.start_seconds, drawn), (_let_go(placement), -drawn)]
    level, size = 0, pool.size(node)
    # At the same instant what ends gives back first: negative changes sort before positive ones.
    for at_seconds, change in sorted(changes):
        level += change
        if level > size:
            yield (
                f"node {node.name!r} must not give more than {pool.show(size)} of {pool.what}, "
                f"found {pool.show(level)} in use at {at_seconds:g} s."
            )
            return


def _let_go(placement: Placement) -> float:
    """The end, less the tolerance; never so early that a short placement late in a schedule vanishes."""
    slack = min(TOLERANCE * abs(placement.end_seconds), placement.duration_seconds / 2)
    return placement.end_seconds - slack


def _is_timed(placement: Placement) -> bool:
    finite = math.isfinite(placement.start_seconds) and math.isfinite(placement.duration_seconds)
    return finite and placement.duration_seconds > 0


def _name(placement: Placement) -> str:
    return " and ".join(map(repr, placement.tasks)) or "a placement without tasks"
