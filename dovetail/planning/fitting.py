"""How many devices of a kind are worth offering; whether an empty node could hold an option, and why not."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dovetail.planning.room import find_linked, link_rate, shared_needs, shared_sizes
from dovetail.vocabulary import Cluster, Kind, Node, Option, Rejection
from dovetail.vocabulary.units import show_bytes

# Links that carry this share of the fastest are as good: measuring again finds as much of a difference.
NEARLY = 0.85


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
    """So many devices, the same number on each of so many nodes, the slowest link between which carries so much (zero:
    nobody knows)."""

    count: int
    nodes: int = 1
    link_bytes_per_second: float = 0.0

    @property
    def knobs(self) -> dict[str, int]:
        """What an option says of it."""
        return {"nodes": self.nodes} if self.nodes > 1 else {}


def widths(cluster: Cluster, kind: Kind) -> tuple[Width, ...]:
    """The widths worth offering to a task on a kind that has one process a device: several devices of one node, and,
    beyond what one node has, all that two nodes have, four, eight, and so on up to all of them: on the nodes that are
    linked best, and on any, where some links are slower.

    >>> cpu = Kind(name="cpu", processor="cpu")
    >>> [(width.count, width.nodes) for width in widths(Cluster.uniform(cpu, nodes=3, devices_per_node=2), cpu)]
    [(2, 1), (4, 2), (6, 3)]
    """
    per_node = devices_per_node(cluster, kind.name)
    sizes = sorted(per_node.values(), reverse=True)
    if not sizes:
        return ()
    wider = [
        Width(count=nodes * each, nodes=nodes, link_bytes_per_second=rate)
        for nodes in _powers(len(sizes))
        if nodes > 1 and nodes * (each := sizes[nodes - 1]) > sizes[0]
        for rate in _link_rates(cluster, _able(cluster, kind.name, each), nodes)
    ]
    return tuple(Width(count) for count in _powers(sizes[0]) if count > 1) + tuple(wider)


def linked_nodes(cluster: Cluster, kind: Kind, width: Width) -> tuple[str, ...]:
    """The first nodes with as many devices of a kind as a width has on each, and links as fast as it says."""
    able = _able(cluster, kind.name, width.count // width.nodes)
    return find_linked(cluster, able, width.nodes, bytes_per_second=width.link_bytes_per_second)


def _able(cluster: Cluster, kind: str, count: int) -> list[str]:
    """The nodes with so many devices of a kind, in the cluster's order."""
    per_node = devices_per_node(cluster, kind)
    return [node.name for node in cluster.nodes if per_node[node.name] >= count]


def _link_rates(cluster: Cluster, nodes: Sequence[str], count: int) -> tuple[float, ...]:
    """What to ask of the links between so many of these nodes: what those carry that are nearly as fast as the slowest
    between the nodes that are linked best; and what all do, where that is less. Zero where nothing is known."""
    rates = sorted({link_rate(cluster, *pair) for pair in itertools.combinations(nodes, 2)})
    best = next(rate for rate in reversed(rates) if find_linked(cluster, nodes, count, bytes_per_second=rate))
    nearly = next(rate for rate in rates if rate >= NEARLY * best)
    return (nearly, rates[0]) if rates[0] < nearly else (nearly,)


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
    nodes = [cluster.node(name) for name in _able(cluster, option.kind, option.count_on_node)]
    if len(nodes) < option.nodes:
        most = f"the most is {max(per_node.values())}" if not nodes else f"so many has only {len(nodes)}"
        where = "one node" if option.nodes == 1 else f"each of {option.nodes} nodes"
        return _reject(option, f"needs {option.count_on_node} × {option.kind} on {where}; {most}.")
    return _host_misfit(option, nodes) or _link_misfit(option, nodes, cluster)


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
        if len(found := sizes.get(option.kind, [])) >= option.nodes
        and found[option.nodes - 1] >= option.count_on_node
        and (not option.link_bytes_per_second or _linked(option, cluster))
    ]


def _linked(option: Option, cluster: Cluster) -> tuple[str, ...]:
    able = _able(cluster, option.kind, option.count_on_node)
    return find_linked(cluster, able, option.nodes, bytes_per_second=option.link_bytes_per_second)


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


def _link_misfit(option: Option, nodes: Sequence[Node], cluster: Cluster) -> Rejection | None:
    """Whether too few of the nodes that have the rest are linked as well as the option needs."""
    least, needs = option.link_bytes_per_second, shared_needs(option)
    able = [n.name for n in nodes if all(size >= need for size, need in zip(shared_sizes(n), needs, strict=True))]
    if not least or find_linked(cluster, able, option.nodes, bytes_per_second=least):
        return None
    (best, *_) = _link_rates(cluster, able, option.nodes)
    return _reject(
        option,
        f"needs links of {show_bytes(least)} a second between {option.nodes} nodes; those that could hold it have "
        f"{show_bytes(best)}. Add nodes with faster links.",
    )


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
