"""Where the shards of tasks lie, and what each task has left to visit.

Knows labels and paths of nodes, asks the engine which node has which path and at what rate files elsewhere come, once,
and never what is in one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from dovetail.planning.hopping import link_between_nodes
from dovetail.planning.problem import EvaluationTour, ShardTour
from dovetail.vocabulary import Cluster, DataShard, Node, Profile, ShardSet
from dovetail.vocabulary.shards import ANY, UrlProbe

Find = Callable[[Collection[str]], Mapping[str, Collection[str]] | None]
"""Which of some paths exist on which nodes; None where that cannot be told."""
Probe = Callable[[Mapping[str, str]], Mapping[str, UrlProbe | None] | None]
"""What nodes find that read the beginning of these URLs, as `Engine.probe_urls` says it."""
# After so many files of one server that cannot be read none of them is asked for any more.
_TRIED = 2


class ShardPlaces:
    """Which nodes of a cluster hold which shards, and how long others take to read one.

    >>> from dovetail.vocabulary import Kind
    >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2)
    >>> places = ShardPlaces(lambda paths: {"n0": ["/data/a"], "n1": []})
    >>> places.homes(ShardSet(shards=(DataShard(name="a", path="/data/a", batches=4),)), cluster)
    ({'a': ('n0',)}, '')
    """

    def __init__(self, find: Find, probe: Probe = lambda readers: None) -> None:
        self._find, self._probe = find, probe
        self._rates: dict[str, UrlProbe | None] = {}
        self._refused: dict[str, set[str]] = {}
        self._readers: frozenset[str] = frozenset()
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

    def read_seconds(self, facts: ShardSet, homes: Mapping[str, tuple[str, ...]], cluster: Cluster) -> dict[str, float]:
        """How long a node takes to read each shard that lies on others, of those that it can read: by what such a node
        found that read the beginning of it, or of another one from the same place, or else by the link.

        >>> from dovetail.vocabulary import Kind
        >>> cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), nodes=2)
        >>> shard = DataShard(name="a", url="s3://bucket/a", node="n0", batches=4, size_bytes=20_000_000)
        >>> read = lambda readers: {url: UrlProbe(size_bytes=0, bytes_per_second=1e7) for url in readers}
        >>> facts, homes = ShardSet(shards=(shard,)), {"a": ("n0",)}
        >>> ShardPlaces(lambda paths: None, read).read_seconds(facts, homes, cluster)["a"]
        2.0005
        >>> ShardPlaces(lambda paths: None).read_seconds(facts, homes, cluster)["a"]
        0.1605
        """
        nodes = dict.fromkeys(device.node for device in cluster.devices)
        readers = {
            shard: next(node for node in nodes if node not in homes[shard.name])
            for shard in facts.shards
            if shard.url and len(homes[shard.name]) < len(nodes)
        }
        self._ask_rates(readers, frozenset(nodes))
        link, found = link_between_nodes(cluster), {}
        for shard in readers:
            probe, refused = self._rates.get(_origin(shard)), self._refused.get(_origin(shard), set())
            if shard.url in refused or (probe is None and len(refused) >= _TRIED):
                continue
            seconds = link.seconds(shard.size_bytes)
            if probe is not None:
                seconds = link.latency_seconds + (shard.size_bytes or probe.size_bytes) / probe.bytes_per_second
            found[shard.name] = seconds
        return found

    def _ask_rates(self, readers: Mapping[DataShard, str], nodes: frozenset[str]) -> None:
        """Have the nodes read a file of each place of which that was not asked yet, and another where that cannot be
        read; all anew where there are other nodes. Of what nobody answers for the link's rate is taken."""
        if nodes != self._readers:
            self._rates, self._refused, self._readers = {}, {}, nodes
        for _ in range(_TRIED):
            asked: dict[str, tuple[str, str]] = {}
            for shard, node in readers.items():
                origin = _origin(shard)
                refused = self._refused.get(origin, set())
                if origin not in self._rates and shard.url not in refused and len(refused) < _TRIED:
                    asked.setdefault(origin, (shard.url, node))
            answer = self._probe(dict(asked.values())) if asked else None
            if answer is None:
                return
            for origin, (url, _) in asked.items():
                if url in answer and answer[url] is None:
                    self._refused.setdefault(origin, set()).add(url)
                else:
                    self._rates[origin] = answer.get(url)

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


def _origin(shard: DataShard) -> str:
    """What files have in common that come at one rate; of one whose size is not known, the file itself."""
    server = "/".join(shard.url.split("/")[:3])
    return f"{shard.node} {server}" if shard.size_bytes else shard.url


def _matches(node: Node, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return node.name == wanted or (bool(equals) and node.labels.get(name) == value)


Visits = list[tuple[str, int]]


def tour_of(
    facts: ShardSet,
    *,
    homes: Mapping[str, tuple[str, ...]],
    chosen: Mapping[int, tuple[str, ...]],
    start: int,
    until: int,
    evaluations: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> ShardTour:
    """What is left between two steps, with `evaluations` on these shards after these steps, the first among them. An
    order is the planner's to choose where the program says so, nothing of it was chosen before, and whole epochs are
    left, with nothing to evaluate within them.

    >>> facts = ShardSet(shards=tuple(DataShard(name=n, url=n, batches=4) for n in "ab"), order="any")
    >>> tour_of(facts, homes={}, chosen={0: ("b", "a")}, start=2, until=8).epochs
    ((('b', 2), ('a', 4)),)
    >>> tour_of(facts, homes={}, chosen={0: ("b", "a")}, start=2, until=8, evaluations={6: ("x", "y")}).epochs
    ((('b', 2), ('a', 2)), (('x', 0), ('y', 0)), (('a', 2),))
    """
    size = facts.steps_per_epoch
    first, last = start // size, (until - 1) // size
    is_whole = not any(step % size for step in (start, until, *evaluations))
    is_ordered = facts.order != ANY or not is_whole or any(epoch in chosen for epoch in range(first, last + 1))
    epochs: list[Visits] = [[(shard, 0) for shard in evaluations.get(start, ())]]
    for epoch in range(first, last + 1):
        at = epoch * size
        epochs.append([])
        for shard in chosen.get(epoch) or facts.order_of(epoch):
            end = at + facts.steps(shard)
            _add(epochs, shard, max(at, start), min(end, until), evaluations)
            at = end
    return ShardTour(
        epochs=tuple(tuple(visits) for visits in epochs if visits),
        homes=homes,
        is_ordered=is_ordered,
        first_epoch=first,
    )


def _add(epochs: list[Visits], shard: str, start: int, end: int, evaluations: Mapping[int, tuple[str, ...]]) -> None:
    """A visit from one step to another, as it is parted by evaluations, or followed by one."""
    for stop in sorted({*(step for step in evaluations if start < step <= end), end}):
        if stop > start:
            epochs[-1].append((shard, stop - start))
            if stop in evaluations:
                epochs += [[(each, 0) for each in evaluations[stop]], []]
            start = stop


def evaluation_tour(
    facts: ShardSet, homes: Mapping[str, tuple[str, ...]], profiles: Iterable[Profile]
) -> EvaluationTour:
    """The shards of an evaluation, and what a family's evaluation takes as measured on each kind.

    >>> facts = ShardSet(shards=tuple(DataShard(name=n, url=n, batches=4) for n in "ab"))
    >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=0.3, peak_bytes=0, evaluate_seconds=2.0,
    ...                   evaluate_every=20)
    >>> tour = evaluation_tour(facts, {}, [profile])
    >>> tour.batch_seconds, tour.step_seconds
    ({'cpu': 0.25}, {'cpu': 0.1})
    """
    batches = {each.name: each.batches for each in facts.shards}
    on_batch, in_step = dict[str, float](), dict[str, float]()
    for profile in profiles:
        every = profile.evaluate_every or profile.steps_per_epoch
        if (profile.technique, profile.count) == ("resident", 1) and every:
            on_batch[profile.kind] = profile.evaluate_seconds / sum(batches.values())
            in_step[profile.kind] = profile.evaluate_seconds / every
    return EvaluationTour(homes=homes, batches=batches, batch_seconds=on_batch, step_seconds=in_step)


def needs_tour(homes: Iterable[tuple[str, ...]], cluster: Cluster) -> bool:
    """Whether some shard does not lie everywhere."""
    nodes = {device.node for device in cluster.devices}
    return any(nodes.difference(each) for each in homes)
