"""Where a graph may be cut: every cut that could be best where there are not too many, else a family of good ones.

All cuts of a graph in series are the cuts of its parts, one part after another, so their number grows only where
branches run side by side. A *waist* is a layer that every other comes before or after. Between two waists all cuts are
tried first, then reduced: of those that differ only in *free* layers, without seconds or parameters, one with the
fewest bytes crossing is as good as any. That loses nothing: what crosses is submodular, so the smallest best choices of
free layers are nested as the cuts are. (Free layers' outputs count as activations too, so where memory binds to the
last byte another choice might still fit.)

Where that leaves too many, the prefixes of three orders are taken: as given, branch by branch, and the one that
greedily keeps the least alive; of prefixes with nearly the same seconds, the one with the fewest bytes crossing.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from dovetail.planning.pipeline.partition.graph import Graph, members

# Solving takes time with the squares of the numbers of cuts and of devices: a second or two for so many on so many.
MOST_CUTS, _MOST_DEVICES = 1000, 16
# And no fewer than this for each device: stages must be able to balance.
_CUTS_A_DEVICE = 4
# What is enumerated before it is reduced: about a second.
_MOST_TRIED = 40_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Sets of layers at which a graph may be cut, smallest first: from none to all. `complete` says that nothing better
    can be had by cutting elsewhere.

    >>> Cuts(sets=(0, 1), complete=True).complete
    True
    """

    sets: tuple[int, ...]
    complete: bool


def most_for(devices: int) -> int:
    """How many cuts to try on so many devices.

    >>> most_for(4), most_for(32), most_for(128)
    (1000, 500, 512)
    """
    return max(MOST_CUTS * _MOST_DEVICES // max(devices, _MOST_DEVICES), _CUTS_A_DEVICE * devices)


def find(graph: Graph, *, most: int = MOST_CUTS) -> Cuts:
    """The cuts of a graph: all that could be best, or about `most` good ones.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = [LayerProfile(name=n, operation="", forward_seconds=1, backward_seconds=1) for n in "abcd"]
    >>> diamond = Graph(layers=tuple(layers), edges=(("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
    >>> [diamond.names(cut) for cut in find(diamond).sets]
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
