"""A model as planners cut it: layers with seconds and bytes, what flows from which to which, and where it may be cut.

A cut sends everything before it to earlier stages and everything after it to later ones, so it is a set of layers that
holds, with a layer, all it reads from. Sets are whole numbers with a bit for each layer: fast, exact, and ordered.
Every cut that could be best is tried where there are not too many, else a family of good ones.

All cuts of a graph in series are the cuts of its parts, one part after another, so their number grows only where
branches run side by side. A *waist* is a layer that every other comes before or after. Between two waists all cuts are
tried first, then reduced: of those that differ only in *free* layers, without seconds or parameters, one with the
fewest bytes crossing is as good as any. That loses nothing: what crosses is submodular, so the smallest best choices of
free layers are nested as the cuts are. (Free layers' outputs count as activations too, so where memory binds to the
last byte another choice might still fit.)

Where that leaves too many, the prefixes of three orders are taken: as given, branch by branch, and the one that
greedily keeps the least alive; of prefixes with nearly the same seconds, the one with the fewest bytes crossing. Knows
nothing of devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from dovetail.vocabulary import InvalidRecord, LayerProfile, Profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """Layers in an order in which none comes before what it reads from, and edges between their names.

    Seconds and bytes are those of one microbatch. Layers given in another order are sorted; equals keep their order.

    >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
    >>> chain = Graph(layers=(dataclasses.replace(layer, name="b"), layer), edges=(("a", "b"),))
    >>> [each.name for each in chain.layers], chain.seconds
    (['a', 'b'], 6.0)
    """

    layers: tuple[LayerProfile, ...]
    edges: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if not names or len(set(names)) != len(names):
            raise InvalidRecord(f"a graph must have layers with names of their own, got {len(names)} layers.")
        if strangers := {end for edge in self.edges for end in edge} - set(names):
            raise InvalidRecord(f"edges must join layers of the graph; {sorted(strangers)[:5]} are none.")
        object.__setattr__(self, "layers", tuple(_sorted(self.layers, self.edges)))

    @staticmethod
    def of(profile: Profile) -> "Graph":
        """The graph that a profile measured.

        >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
        >>> profile = Profile(family="f", kind="cpu", count=1, step_seconds=3, peak_bytes=0, layers=(layer,))
        >>> Graph.of(profile).seconds
        3.0
        """
        if not profile.layers:
            raise InvalidRecord(
                f"the profile of family {profile.family!r} on {profile.kind!r} must list its layers; it has none. "
                f"Measure the family again with a technique that profiles layers."
            )
        return Graph(layers=profile.layers, edges=profile.edges)

    def scaled(self, ratio: float) -> "Graph":
        """The same for a microbatch `ratio` times as large: seconds and activations grow with it, parameters do not.

        >>> layer = LayerProfile(name="a", operation="Linear", forward_seconds=1.0, backward_seconds=2.0)
        >>> Graph(layers=(layer,)).scaled(0.5).seconds
        1.5
        """
        return dataclasses.replace(self, layers=tuple(_scaled(layer, ratio) for layer in self.layers))

    @property
    def seconds(self) -> float:
        """Forward and backward of one microbatch through all layers."""
        return sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers)

    @property
    def everything(self) -> int:
        """The set of all layers."""
        return (1 << len(self.layers)) - 1

    @functools.cached_property
    def before(self) -> tuple[int, ...]:
        """For each layer, the set of those it reads from."""
        return tuple(self._neighbours((target, source) for source, target in self.edges))

    @functools.cached_property
    def after(self) -> tuple[int, ...]:
        """For each layer, the set of those that read from it."""
        return tuple(self._neighbours(self.edges))

    def live_bytes(self, cut: int) -> int:
        """What crosses a cut: the outputs of layers before it that layers after it read, each once.

        An output read several stages later crosses every cut on its way.
        """
        return sum(self.layers[n].activation_bytes for n in members(cut) if self.after[n] & ~cut)

    def names(self, layers: int) -> tuple[str, ...]:
        """The names of a set of layers, in order."""
        return tuple(self.layers[n].name for n in members(layers))

    def _neighbours(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        number = {layer.name: n for n, layer in enumerate(self.layers)}
        found = [0] * len(self.layers)
        for own, other in pairs:
            found[number[own]] |= 1 << number[other]
        return found


def members(layers: int) -> Iterator[int]:
    """The numbers in a set, least first.

    >>> list(members(0b1101))
    [0, 2, 3]
    """
    while layers:
        least = layers & -layers
        yield least.bit_length() - 1
        layers ^= least


def _scaled(layer: LayerProfile, ratio: float) -> LayerProfile:
    return dataclasses.replace(
        layer,
        forward_seconds=layer.forward_seconds * ratio,
        backward_seconds=layer.backward_seconds * ratio,
        activation_bytes=round(layer.activation_bytes * ratio),
    )


def _sorted(layers: tuple[LayerProfile, ...], edges: tuple[tuple[str, str], ...]) -> Iterator[LayerProfile]:
    """Each layer once all it reads from has come; among those that may come, the first given."""
    waits = _waits(layers, edges)
    left = list(layers)
    while left:
        ready = [layer for layer in left if not waits[layer.name]]
        if not ready:
            names = sorted(layer.name for layer in left)
            raise InvalidRecord(f"edges of a graph must not form a cycle; found one among {names[:5]}.")
        for layer in ready:
            yield layer
        done = {layer.name for layer in ready}
        left = [layer for layer in left if layer.name not in done]
        for layer in left:
            waits[layer.name] -= done


def _waits(layers: tuple[LayerProfile, ...], edges: tuple[tuple[str, str], ...]) -> dict[str, set[str]]:
    waits: dict[str, set[str]] = {layer.name: set() for layer in layers}
    for source, target in edges:
        waits[target].add(source)
    return waits


# Solving takes time with the squares of the numbers of cuts and of devices: a second or two for so many on so many.
MOST_CUTS, _MOST_DEVICES = 1000, 16
# And no fewer than this for each device: stages must be able to balance.
_CUTS_A_DEVICE = 4
# What is enumerated before it is reduced: about a second.
_MOST_TRIED = 40_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Sets of layers at which a graph may be cut, smallest first: from none to all. `complete` says that nothing better
    can be had by cutting elsewhere."""

    sets: tuple[int, ...]
    complete: bool


def most_cuts_for(devices: int) -> int:
    """How many cuts to try on so many devices.

    >>> most_cuts_for(4), most_cuts_for(32), most_cuts_for(128)
    (1000, 500, 512)
    """
    return max(MOST_CUTS * _MOST_DEVICES // max(devices, _MOST_DEVICES), _CUTS_A_DEVICE * devices)


def find_cuts(graph: Graph, *, most: int = MOST_CUTS) -> Cuts:
    """The cuts of a graph: all that could be best, or about `most` good ones.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = [LayerProfile(name=n, operation="", forward_seconds=1, backward_seconds=1) for n in "abcd"]
    >>> diamond = Graph(layers=tuple(layers), edges=(("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
    >>> [diamond.names(cut) for cut in find_cuts(diamond).sets]
    [(), ('a',), ('a', 'b'), ('a', 'c'), ('a', 'b', 'c'), ('a', 'b', 'c', 'd')]
    """
    # The smaller parts first: what they leave of their shares goes to the larger ones.
    blocks = sorted(_blocks(graph), key=lambda block: ((block[1] ^ block[0]).bit_count(), block))
    found, complete, to_try, to_keep = {0, graph.everything}, True, _MOST_TRIED, most
    for left, (start, end) in zip(range(len(blocks), 0, -1), blocks, strict=True):
        every = _all_cuts(graph, start, end, most=to_try // left)
        to_try -= min(len(every), to_try // left) if every is not None else to_try // left
        cuts = _reduced(graph, every) if every is not None else None
        if cuts is None or len(cuts) > max(to_keep // left, 2):
            complete = False
            cuts = _good_cuts(graph, start, end, most=max(to_keep // left, 2))
        found |= cuts
        to_keep -= len(cuts)
    # Once more over all, for free layers at the edges of parts.
    found = _reduced(graph, found) | {0, graph.everything}
    return Cuts(sets=tuple(sorted(found, key=lambda cut: (cut.bit_count(), cut))), complete=complete)


def _blocks(graph: Graph) -> Iterator[tuple[int, int]]:
    """The sets before and after each part of a graph in series."""
    earlier, later = _reach(graph.before), _reach(graph.after)
    start = 0
    for number in range(len(graph.layers)):
        own = 1 << number
        if earlier[number] | later[number] | own == graph.everything:
            yield start, earlier[number] | own
            start = earlier[number] | own
    if start != graph.everything:
        yield start, graph.everything


def _reach(neighbours: Sequence[int]) -> list[int]:
    """For each layer all that can be reached; layers are sorted, so one sweep in the right direction is enough."""
    found = [0] * len(neighbours)
    backwards = all(each >> n == 0 for n, each in enumerate(neighbours))
    for number in range(len(neighbours)) if backwards else reversed(range(len(neighbours))):
        for each in members(neighbours[number]):
            found[number] |= found[each] | 1 << each
    return found


def _all_cuts(graph: Graph, start: int, end: int, *, most: int) -> set[int] | None:
    found, edge = {start}, [start]
    while edge:
        cut = edge.pop()
        for number in members(end & ~cut):
            if not graph.before[number] & ~cut and (larger := cut | 1 << number) not in found:
                if len(found) >= most:
                    return None
                found.add(larger)
                edge.append(larger)
    return found


def _reduced(graph: Graph, cuts: Iterable[int]) -> set[int]:
    """Of the cuts that differ in free layers only, the smallest of those with the fewest bytes crossing."""
    free = sum(1 << n for n, layer in enumerate(graph.layers) if _is_free(graph, n))
    best: dict[int, tuple[int, int, int]] = {}
    for cut in cuts:
        own = graph.live_bytes(cut), cut.bit_count(), cut
        best[cut & ~free] = min(best.get(cut & ~free, own), own)
    return {cut for _, _, cut in best.values()}


def _is_free(graph: Graph, number: int) -> bool:
    layer = graph.layers[number]
    return layer.forward_seconds + layer.backward_seconds <= 0 and not layer.parameter_bytes


def _good_cuts(graph: Graph, start: int, end: int, *, most: int) -> set[int]:
    orders = (_as_given, _branch_by_branch, _least_alive)
    found = {start, end}
    for order in orders:
        found |= _thinned(graph, list(_prefixes(graph, start, end, order)), most=max(most // len(orders), 1))
    return _reduced(graph, found) | {end}


Order = Callable[[Graph, int, Sequence[int], int], int]


def _prefixes(graph: Graph, start: int, end: int, order: Order) -> Iterator[tuple[int, int, int]]:
    """The sets that grow in an order, with the layer that came last and the bytes that cross."""
    cut, last, alive = start, -1, graph.live_bytes(start)
    ready = [number for number in members(end & ~cut) if not graph.before[number] & ~cut]
    while ready:
        last = order(graph, cut, ready, last)
        alive += _growth(graph, cut, last)
        cut |= 1 << last
        ready.remove(last)
        ready += [n for n in members(graph.after[last] & end) if not graph.before[n] & ~cut]
        yield cut, last, alive


def _as_given(graph: Graph, cut: int, ready: Sequence[int], last: int) -> int:
    return min(ready)


def _branch_by_branch(graph: Graph, cut: int, ready: Sequence[int], last: int) -> int:
    """Go on where the last layers lead."""
    return ready[-1]


def _least_alive(graph: Graph, cut: int, ready: Sequence[int], last: int) -> int:
    return min(ready, key=lambda number: (_growth(graph, cut, number), number))


def _growth(graph: Graph, cut: int, number: int) -> int:
    """By how much taking a layer in changes what crosses the cut."""
    larger = cut | 1 << number
    own = graph.layers[number].activation_bytes if graph.after[number] & ~larger else 0
    freed = (n for n in members(graph.before[number]) if not graph.after[n] & ~larger)
    return own - sum(graph.layers[n].activation_bytes for n in freed)


def _thinned(graph: Graph, prefixes: Sequence[tuple[int, int, int]], *, most: int) -> set[int]:
    if len(prefixes) <= most:
        return {cut for cut, _, _ in prefixes}
    layers = [graph.layers[last] for _, last, _ in prefixes]
    total = sum(layer.forward_seconds + layer.backward_seconds for layer in layers)
    best: dict[int, tuple[int, int, int]] = {}
    seconds = 0.0
    for (cut, _, alive), layer in zip(prefixes, layers, strict=True):
        seconds += layer.forward_seconds + layer.backward_seconds
        bucket = int(seconds / total * most) if total else 0
        own = alive, cut.bit_count(), cut
        best[bucket] = min(best.get(bucket, own), own)
    return {cut for _, _, cut in best.values()}
