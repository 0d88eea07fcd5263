"""How many devices of a kind are worth offering; whether an empty node could hold an option, and why not."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

from dovetail.planning.room import shared_needs, shared_sizes
from dovetail.vocabulary import Cluster, Kind, Node, Option, Rejection
from dovetail.vocabulary.units import show_bytes


def counts(cluster: Cluster, kind: Kind) -> tuple[int, ...]:
    """The device counts worth offering to a task on a kind that has one process: on a CPU the powers of two up to the
    most cores that one node has, and that most itself; on an accelerator exactly one.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> counts(Cluster.uniform(cpu, nodes=2, devices_per_node=6), cpu)
    (1, 2, 4, 6)
    """
    most = max(devices_per_node(cluster, kind.name).values(), default=0)
    return _powers(most) if kind.processor == "cpu" else (1,) * bool(most)


@dataclasses.dataclass(frozen=True, slots=True)
class Width:
    """So many devices, the same number on each of so many nodes."""

    count: int
    nodes: int = 1

    @property
    def knobs(self) -> dict[str, int]:
        """What an option says of it."""
        return {"nodes": self.nodes} if self.nodes > 1 else {}


def widths(cluster: Cluster, kind: Kind) -> tuple[Width, ...]:
    """The widths worth offering to a task on a kind that has one process a device: several devices of one node, and,
    beyond what one node has, all that two nodes have, four, eight, and so on up to all of them.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> [(width.count, width.nodes) for width in widths(Cluster.uniform(cpu, nodes=3, devices_per_node=2), cpu)]
    [(2, 1), (4, 2), (6, 3)]
    """
    sizes = sorted(devices_per_node(cluster, kind.name).values(), reverse=True)
    if not sizes:
        return ()
    several = (Width(count=nodes * sizes[nodes - 1], nodes=nodes) for nodes in _powers(len(sizes)) if nodes > 1)
    wider = tuple(width for width in several if width.count > sizes[0])
    return tuple(Width(count) for count in _powers(sizes[0]) if count > 1) + wider


def _powers(most: int) -> tuple[int, ...]:
    return tuple(sorted({*(1 << exponent for exponent in range(most.bit_length())), most} - {0}))


def devices_per_node(cluster: Cluster, kind: str) -> Counter[str]:
    """How many devices of a kind each node has that has any."""
    return Counter(device.node for device in cluster.of_kind(kind))


def misfit(option: Option, cluster: Cluster) -> Rejection | None:
    """Why not even an empty node of the cluster could hold this option, or None where one could.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="h100", processor="cuda", memory_bytes=40 << 30))
    >>> large = Option(families=("f",), technique="resident", kind="h100", count=1, step_seconds=(1.0,),
    ...                device_bytes=61 << 30)
    >>> misfit(large, cluster).reason.partition(". ")[0]
    'needs 61.0 GiB on one device; the largest h100 has 40.0 GiB'
    """
    per_node = devices_per_node(cluster, option.kind)
    if not per_node:
        return _reject(option, f"needs a device of kind {option.kind!r}; the cluster has none.")
    memory_bytes = cluster.kind(option.kind).memory_bytes
    if 0 < memory_bytes < option.device_bytes:
        reason = (
            f"needs {show_bytes(option.device_bytes)} on one device; the largest {option.kind} has "
            f"{show_bytes(memory_bytes)}. Use a smaller batch with accumulate, or a device with more memory."
        )
        return _reject(option, reason, needed_bytes=option.device_bytes, free_bytes=memory_bytes)
    nodes = [cluster.node(name) for name, devices in per_node.items() if devices >= option.count_on_node]
    if len(nodes) < option.nodes:
        most = f"the most is {max(per_node.values())}" if not nodes else f"so many has only {len(nodes)}"
        where = "one node" if option.nodes == 1 else f"each of {option.nodes} nodes"
        return _reject(option, f"needs {option.count_on_node} × {option.kind} on {where}; {most}.")
    return _host_misfit(option, nodes)


def are_there(options: Iterable[Option], cluster: Cluster) -> list[Option]:
    """The options for which some node, or as many as they go over, has the devices.

    >>> one = Option(families=("f",), technique="resident", kind="cpu", count=4, step_seconds=(1.0,))
    >>> both = dataclasses.replace(one, technique="replicate", knobs={"nodes": 2})
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2, devices_per_node=2)
    >>> [option.technique for option in are_there([one, both], cluster)]
    ['replicate']
    """
    sizes: dict[str, list[int]] = {}
    for (kind, _), count in Counter((device.kind, device.node) for device in cluster.devices).items():
        sizes.setdefault(kind, []).append(count)
    for each in sizes.values():
        each.sort(reverse=True)
    return [
        option
        for option in options
        if len(found := sizes.get(option.kind, [])) >= option.nodes and found[option.nodes - 1] >= option.count_on_node
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What the placements of a node share, in the order of `shared_sizes`, and what to do where it is short."""

    what: str
    show: Callable[[float], str]
    advice: str
    in_bytes: bool = True


_SHARED = (
    _Shared(
        what="host memory",
        show=show_bytes,
        advice="Make the model or its batch smaller, or add a node with more memory.",
    ),
    _Shared(
        what="disk",
        show=show_bytes,
        advice="Free some of it, or add a node with more.",
    ),
    _Shared(
        what="cores",
        show=lambda count: f"{count:.0f}",
        advice="Use fewer devices, or add a node with more cores.",
        in_bytes=False,
    ),
)


def _host_misfit(option: Option, nodes: list[Node]) -> Rejection | None:
    """The first shared thing that too few of the nodes still in question have enough of."""
    for number, (shared, needed) in enumerate(zip(_SHARED, shared_needs(option), strict=True)):
        most = sorted((shared_sizes(node)[number] for node in nodes), reverse=True)[option.nodes - 1]
        if needed > most:
            amount = f"{shared.show(needed)} {'of ' if shared.in_bytes else ''}{shared.what}"
            reason = (
                f"needs {amount} on one node; the largest that could hold it has {shared.show(most)}. {shared.advice}"
            )
            bytes_of = {"needed_bytes": needed, "free_bytes": int(most)} if shared.in_bytes else {}
            return _reject(option, reason, **bytes_of)
        nodes = [node for node in nodes if shared_sizes(node)[number] >= needed]
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
