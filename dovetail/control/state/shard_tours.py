"""Where the shards of tasks lie, and what each task has left to visit.

Knows labels and paths of nodes, asks the engine which node has which path, once, and never what is in one.
"""

from collections.abc import Callable, Collection, Mapping

from dovetail.planning.problem import ShardTour
from dovetail.vocabulary import Cluster, DataShard, Node, ShardSet
from dovetail.vocabulary.shards import ANY

Find = Callable[[Collection[str]], Mapping[str, Collection[str]] | None]
"""Which of some paths exist on which nodes; None where that cannot be told."""


class ShardPlaces:
    """Which nodes of a cluster hold which shards.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2)
    >>> places = ShardPlaces(lambda paths: {"n0": ["/data/a"], "n1": []})
    >>> places.homes(ShardSet(shards=(DataShard(name="a", path="/data/a", batches=4),)), cluster)
    ({'a': ('n0',)}, '')
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._found: dict[str, frozenset[str]] = {}
        self._asked: frozenset[str] = frozenset()

    def homes(self, facts: ShardSet, cluster: Cluster) -> tuple[dict[str, tuple[str, ...]], str]:
        """The nodes that hold each shard; or nothing, and what is wrong."""
        busy = {device.node for device in cluster.devices}
        nodes = [node for node in cluster.nodes if node.name in busy]
        known = self._look({each.path for each in facts.shards if each.path}, {node.name for node in nodes})
        found = {}
        for shard in facts.shards:
            homes, wrong = _homes(shard, nodes, known)
            if wrong:
                return {}, wrong
            found[shard.name] = homes
        return found, ""

    def _look(self, paths: set[str], nodes: set[str]) -> Mapping[str, frozenset[str]] | None:
        """Which nodes have each path, asked once for each path and set of nodes."""
        if nodes != self._asked:
            self._found, self._asked = {}, frozenset(nodes)
        if missing := sorted(paths - self._found.keys()):
            answer = self._find(missing)
            if answer is None:
                return None
            for path in missing:
                self._found[path] = frozenset(node for node, there in answer.items() if path in there)
        return self._found


def _homes(
    shard: DataShard, nodes: list[Node], known: Mapping[str, frozenset[str]] | None
) -> tuple[tuple[str, ...], str]:
    names = tuple(node.name for node in nodes)
    hinted = tuple(node.name for node in nodes if shard.node and _matches(node, shard.node))
    if shard.url:
        return hinted or names, ""
    there = names if known is None else tuple(name for name in names if name in known[shard.path])
    lacking = [name for name in hinted if name not in there]
    if lacking:
        return (), (
            f"node {lacking[0]} must have shard {shard.name!r} at {shard.path}, as {shard.node!r} says of it; it is "
            f"not there. Put it there, or correct the node's label."
        )
    if not there or (shard.node and not hinted and len(nodes) > 1 and known is None):
        label = f", and none is {shard.node!r}" if shard.node and not hinted else ""
        return (), (
            f"shard {shard.name!r} must lie on a node of the cluster; {shard.path} exists on none of "
            f"{', '.join(names)}{label}. Add the node that has it, or correct its path."
        )
    return hinted or there, ""


def _matches(node: Node, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return node.name == wanted or (bool(equals) and node.labels.get(name) == value)


def tour_of(
    facts: ShardSet,
    *,
    homes: Mapping[str, tuple[str, ...]],
    chosen: Mapping[int, tuple[str, ...]],
    start: int,
    until: int,
) -> ShardTour:
    """What is left between two steps. An order is the planner's to choose where the program says so, nothing of it was
    chosen before, and whole epochs are left.

    >>> facts = ShardSet(shards=tuple(DataShard(name=n, url=n, batches=4) for n in "ab"), order="any")
    >>> tour_of(facts, homes={}, chosen={0: ("b", "a")}, start=2, until=8).epochs
    ((('b', 2), ('a', 4)),)
    """
    size = facts.steps_per_epoch
    first, last = start // size, (until - 1) // size
    is_whole = not (start % size or until % size)
    is_ordered = facts.order != ANY or not is_whole or any(epoch in chosen for epoch in range(first, last + 1))
    epochs = []
    for epoch in range(first, last + 1):
        at, visits = epoch * size, []
        for shard in chosen.get(epoch) or facts.order_of(epoch):
            end = at + facts.steps(shard)
            steps = min(end, until) - max(at, start)
            visits += [(shard, steps)] if steps > 0 else []
            at = end
        epochs.append(tuple(visits))
    return ShardTour(epochs=tuple(epochs), homes=homes, is_ordered=is_ordered, first_epoch=first)


def needs_tour(homes: Mapping[str, tuple[str, ...]], cluster: Cluster) -> bool:
    """Whether some shard does not lie everywhere."""
    nodes = {device.node for device in cluster.devices}
    return any(nodes.difference(each) for each in homes.values())


def read_bytes(facts: ShardSet) -> dict[str, int]:
    """The shards that can be read from anywhere, and what that moves."""
    return {each.name: each.size_bytes for each in facts.shards if each.url}
