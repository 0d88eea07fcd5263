"""The dynamic program: the cuts and widths of stages whose slowest is fastest.

G[i, e] is the least time of the slowest stage when all layers after cut i run on the last e devices of a row:

    G[i, e] = min over width w ≤ e and cuts j ⊃ i of max(stage(i, j, on w devices), G[j, e − w]),   G[all, 0] = 0.

Counted from the end, the devices of this stage and the later ones are known, and with them the microbatches in flight
and the memory. PipeDream's program (SOSP 2019, section 3.1) runs one such table inside nodes and one between; here
one row holds all levels, so a stage may take part of a node, or one and a half. Among plans with the same slowest
stage the one on the fewest devices, then with the fewest stages, is taken, then the first in order.
Works on arrays; it imports numpy, so it is imported when something is first partitioned.
"""

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.planning.pipeline.partition.fabric import Fabric, Traffic, memory_bytes, traffic
from dovetail.planning.pipeline.partition.graph import Graph
from dovetail.planning.pipeline.partition.ports import Ports
from dovetail.planning.pipeline.partition.terms import Terms, in_flight, stage_bytes

Array = np.ndarray[Any, np.dtype[np.float64]]
# With more cuts each row takes seconds: about so many are tried then, and moved to where they are best.
_MOST_CUTS = 400
# Sums of the same layers in another order differ in the last digits.
_SAME = 1 + 1e-9
# By so many cuts one is moved where a plan is improved.
_MOVES = tuple(sign * distance for distance in (1, 2, 4, 8, 16) for sign in (1, -1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpan:
    """A stage as the search knows it: between two cuts, on `width` neighbours from place `first` of each part."""

    start: int
    end: int
    first: int
    width: int


class Tables:
    """Sums over the layers before each cut, and what crosses it. Differences of rows are what lies between cuts.

    >>> from dovetail.vocabulary import LayerProfile
    >>> graph = Graph(layers=(LayerProfile(name="a", operation="", forward_seconds=1.0, backward_seconds=2.0),))
    >>> Tables({"cpu": graph}, (0, 1), recompute=True).seconds["cpu"].tolist()
    [0.0, 4.0]
    """

    def __init__(self, graphs: Mapping[str, Graph], sets: Sequence[int], *, recompute: bool) -> None:
        graph = next(iter(graphs.values()))
        self.sets, count = tuple(sets), len(graph.layers)
        packed = b"".join(cut.to_bytes(-(-count // 8), "little") for cut in sets)
        rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(sets), -1)
        holds = np.unpackbits(rows, axis=1, bitorder="little", count=count).astype(np.float64)
        self.seconds: dict[str, Array] = {
            kind: holds @ np.array([_seconds(layer, recompute) for layer in each.layers])
            for kind, each in graphs.items()
        }
        self.parameters: Array = holds @ np.array([float(layer.parameter_bytes) for layer in graph.layers])
        self.activations: Array = holds @ np.array([float(layer.activation_bytes) for layer in graph.layers])
        self.crossing: Array = np.array([float(graph.live_bytes(cut)) for cut in sets])
        # A cut is inside another if the other holds as many of its layers as it has itself.
        self.nested = (holds @ holds.T >= holds.sum(axis=1)[:, None]) & ~np.eye(len(sets), dtype=bool)

    def thinned(self, most: int) -> tuple["Tables", list[int]]:
        """About so many of the cuts, over which the least passes among their neighbours, and which ones they are."""
        several = -(-len(self.sets) // most)
        groups = [range(n, min(n + several, len(self.sets) - 1)) for n in range(1, len(self.sets) - 1, several)]
        kept = [0, *(min(group, key=lambda n: self.crossing[n]) for group in groups), len(self.sets) - 1]
        found = copy.copy(self)
        found.sets = tuple(self.sets[n] for n in kept)
        found.seconds = {kind: sums[kept] for kind, sums in self.seconds.items()}
        found.parameters, found.activations = self.parameters[kept], self.activations[kept]
        found.crossing, found.nested = self.crossing[kept], self.nested[np.ix_(kept, kept)]
        return found, kept


class StageSearch:
    """One row of devices, divided into `copies` equal parts that each run the pipeline, and the stages possible on it.

    >>> from dovetail.vocabulary import LayerProfile
    >>> layers = [LayerProfile(name=n, operation="", forward_seconds=1, backward_seconds=1) for n in "abc"]
    >>> graph = Graph(layers=tuple(layers), edges=(("a", "b"), ("b", "c")))
    >>> fabric = Fabric.uniform(sizes=(2,), bytes_per_second=(1e9,), kind="cpu")
    >>> search = StageSearch(Tables({"cpu": graph}, (0, 1, 3, 7), recompute=False), fabric, Terms())
    >>> search.best()[0], [(span.start, span.end) for span in search.best()[1]]
    (3.0, [(0, 3)])
    """

    def __init__(self, tables: Tables, fabric: Fabric, terms: Terms, *, copies: int = 1) -> None:
        self.tables, self.fabric, self.terms, self.copies = tables, fabric, terms, copies
        self.size = len(fabric.places) // copies
        self._bounded = any(place.memory_bytes for place in fabric.places)
        self._nowhere = np.where(tables.nested, 0.0, np.inf)
        self._differences: dict[str, Array] = {}
        self._traffic: dict[tuple[int, int], Traffic] = {}
        self._ports = Ports(fabric, copies=copies)

    def best(
        self, *, depth: int | None = None, width: int | None = None, below: float = float("inf")
    ) -> tuple[float, list[LayerSpan]]:
        """The least time of the slowest stage, and stages that reach it; none where nothing fits or nothing is faster
        than `below`. Where there are many cuts, the best of some.

        `depth` is how many stages there must be, `width` how many devices each must have.
        """
        if len(self.tables.sets) > 1.5 * _MOST_CUTS:
            some, kept = self.tables.thinned(_MOST_CUTS)
            search = StageSearch(some, self.fabric, self.terms, copies=self.copies)
            seconds, spans = search.best(depth=depth, width=width, below=below)
            return seconds, [dataclasses.replace(each, start=kept[each.start], end=kept[each.end]) for each in spans]
        values, _ = self._solve(_slowest, depth, width)
        least = min(values.values())
        if not least < below:
            return least, []
        return least, self._fewest(least * _SAME, depth, width)

    def least_excess(self, *, depth: int | None = None, width: int | None = None) -> tuple[float, list[LayerSpan]]:
        """The stages that come nearest to fitting, and by how many bytes the worst of them does not."""
        excess, choices = self._solve(_excess, depth, width)
        used = min(excess, key=lambda devices: (excess[devices], devices))
        return excess[used], self._spans(choices, used, depth) if np.isfinite(excess[used]) else []

    def seconds(self, span: LayerSpan) -> float:
        """How long a stage takes for one microbatch of the whole pipeline."""
        pays, crossing = self.traffic(span.first, span.width), self.tables.crossing
        summed = self._parameters(span) / self._rounds(pays.replicas)
        found = self.compute_seconds(span) / pays.replicas + summed * pays.sync_per_byte
        for sync, before, after in zip(pays.sync, pays.before, pays.after, strict=True):
            found = max(found, summed * sync + float(crossing[span.start] * before + crossing[span.end] * after))
        return found

    def bytes(self, span: LayerSpan) -> float:
        """What a stage takes on each of its devices."""
        activations = self.tables.activations
        found = stage_bytes(
            self.terms,
            held=in_flight(self.terms, devices=self.size - span.first, width=span.width),
            parameters=self._parameters(span),
            activations=float(activations[span.end] - activations[span.start]),
            arriving=float(self.tables.crossing[span.start]),
        )
        return float(found)

    def traffic(self, first: int, width: int) -> Traffic:
        """What a stage pays for traffic there."""
        if (first, width) not in self._traffic:
            self._traffic[first, width] = traffic(self.fabric, first=first, width=width, copies=self.copies)
        return self._traffic[first, width]

    def compute_seconds(self, span: LayerSpan) -> float:
        """What a stage computes for one microbatch on one of its devices, the slowest kind it has."""
        kinds = {self.fabric.places[n].kind for n in range(span.first, span.first + span.width)}
        sums = [self.tables.seconds[kind] for kind in kinds]
        return max(float(each[span.end] - each[span.start]) for each in sums)

    def promise(self, spans: Sequence[LayerSpan]) -> float:
        """How often a microbatch can pass these stages: what the slowest stage and the busiest port allow."""
        return max(float(self._busy(spans).max()), *map(self.seconds, spans))

    def busiest_port(self, spans: Sequence[LayerSpan]) -> tuple[float, str]:
        """How long the busiest port is busy with one microbatch of these stages, and whose it is."""
        busy = self._busy(spans)
        return float(busy.max()), self._ports.units[int(busy.argmax())][-1]

    def _busy(self, spans: Sequence[LayerSpan]) -> Array:
        """For how long each port is busy with one microbatch."""
        busy = np.zeros(len(self._ports.units))
        for span in spans:
            if span.width * self.copies > 1:
                rounds = self._rounds(span.width * self.copies)
                busy += self._ports.summing(span.first, span.width) * (self._parameters(span) / rounds)
        for span, following in itertools.pairwise(spans):
            sent = self.tables.crossing[span.end]
            busy += self._ports.crossing(span.first, span.width, following.width) * sent
        return busy

    def improved(
        self, spans: list[LayerSpan], *, depth: int | None = None, width: int | None = None
    ) -> tuple[float, list[LayerSpan]]:
        """The stages after as many small changes as make the promise better, each the best there is: a cut moved, a
        device given to a neighbour, two stages joined; as many stages, and as wide, as are asked for."""
        best = self.promise(spans)
        while True:
            able = [each for each in self._changes(spans, depth, width) if self.fits(each)]
            promises = [self.promise(each) for each in able]
            if not promises or not min(promises) * _SAME < best:
                return best, spans
            best = min(promises)
            spans = able[promises.index(best)]

    def _changes(self, spans: list[LayerSpan], depth: int | None, width: int | None) -> Iterator[list[LayerSpan]]:
        cuts, widths = [span.start for span in spans] + [spans[-1].end], [span.width for span in spans]
        for n in range(1, len(spans)):
            for move in _MOVES:
                yield self._stages([*cuts[:n], cuts[n] + move, *cuts[n + 1 :]], widths)
            left, own, right = widths[: n - 1], widths[n - 1 : n + 1], widths[n + 1 :]
            if width is None:
                yield from (self._stages(cuts, [*left, own[0] + k, own[1] - k, *right]) for k in (1, -1))
            if depth is None and width is None:
                yield self._stages([*cuts[:n], *cuts[n + 1 :]], [*left, sum(own), *right])

    def _stages(self, cuts: Sequence[int], widths: Sequence[int]) -> list[LayerSpan]:
        """The stages between these cuts, each on so many of the last devices."""
        firsts = itertools.accumulate(widths, initial=self.size - sum(widths))
        between = zip(itertools.pairwise(cuts), firsts, widths, strict=False)
        return [LayerSpan(start=start, end=end, first=first, width=width) for (start, end), first, width in between]

    def fits(self, spans: list[LayerSpan]) -> bool:
        """Whether there are such stages, and their devices hold them."""
        nested = self.tables.nested
        if not all(
            each.width and 0 <= each.start < len(nested) > each.end >= 0 and nested[each.start, each.end]
            for each in spans
        ):
            return False
        rooms = [memory_bytes(self.fabric, range(each.first, each.first + each.width)) for each in spans]
        return all(not room or self.bytes(each) <= room for each, room in zip(spans, rooms, strict=True))

    def _parameters(self, span: LayerSpan) -> float:
        return float(self.tables.parameters[span.end] - self.tables.parameters[span.start])

    def _rounds(self, replicas: int) -> int:
        """After how many microbatches gradients are summed: with stashing after each round, else once in a step."""
        return replicas if self.terms.microbatches is None else max(self.terms.microbatches, replicas)

    def _fewest(self, limit: float, depth: int | None, width: int | None) -> list[LayerSpan]:
        def stages(search: "StageSearch", first: int, width: int) -> tuple[Array, bool]:
            return np.where(search._timed(first, width) <= limit, 1.0, np.inf), True

        counts, choices = self._solve(stages, depth, width)
        used = min(devices for devices, count in counts.items() if np.isfinite(count))
        return self._spans(choices, used, depth)

    def _solve(self, judge: Any, depth: int | None, width: int | None) -> tuple[dict[int, float], dict[Any, Any]]:
        """For each number of devices the best value over all layers, and each state's choice of width and next cut.

        A judge gives the value of every stage on some devices, and says whether values add up or the largest counts.
        """
        cuts = len(self.tables.sets)
        after: dict[tuple[int, int], Array] = {}
        for left in range((depth or 0) + 1):
            after[left, 0] = np.where((np.arange(cuts) == cuts - 1) & (left == 0), 0.0, np.inf)
        choices: dict[tuple[int, int], tuple[Array, Array]] = {}
        for devices in range(1, self.size + 1):
            for left in range(1, depth + 1) if depth else (0,):
                best = np.full(cuts, np.inf)
                widths, ends = np.zeros(cuts), np.zeros(cuts)
                for wide in [width] if width else range(1, devices + 1):
                    then = after.get((max(left - 1, 0), devices - wide))
                    if then is None or not np.isfinite(then).any():
                        continue
                    values, adds = judge(self, self.size - devices, wide)
                    total = values + then if adds else np.maximum(values, then)
                    end = np.argmin(total, axis=1)
                    value = total[np.arange(cuts), end]
                    better = value < best
                    best[better], widths[better], ends[better] = value[better], wide, end[better]
                after[left, devices], choices[left, devices] = best, (widths, ends)
        return {d: float(after[depth or 0, d][0]) for d in range(1, self.size + 1)}, choices

    def _spans(self, choices: dict[Any, Any], devices: int, depth: int | None) -> list[LayerSpan]:
        found, cut, left = [], 0, depth or 0
        while devices:
            widths, ends = choices[left, devices]
            wide, end = int(widths[cut]), int(ends[cut])
            found.append(LayerSpan(start=cut, end=end, first=self.size - devices, width=wide))
            cut, devices, left = end, devices - wide, max(left - 1, 0)
        return found

    def _timed(self, first: int, width: int) -> Array:
        """Seconds of every stage that fits there, infinity for the others."""
        seconds = self._times(first, width)
        if not self._bounded:
            return seconds
        return np.where(self._excess_bytes(first, width) <= 0, seconds, np.inf)

    def _times(self, first: int, width: int) -> Array:
        """How long every stage takes on `width` places from `first` on, from each cut to each it is inside of:
        computing and summing gradients, or what its ports pass where that takes longer."""
        pays, crossing = self.traffic(first, width), self.tables.crossing
        found = self.computing(range(first, first + width)) / pays.replicas
        rounds, summed = self._rounds(pays.replicas), self.between("parameters", self.tables.parameters)
        if pays.sync_per_byte:
            found = found + summed * (pays.sync_per_byte / rounds)
        for sync, before, after in zip(pays.sync, pays.before, pays.after, strict=True):
            if before or after:
                port = crossing[:, None] * before + crossing[None, :] * after
                found = np.maximum(found, port + summed * (sync / rounds) if sync else port)
        return found

    def _excess_bytes(self, first: int, width: int) -> Array:
        room = memory_bytes(self.fabric, range(first, first + width))
        return self._stage_bytes(first, width) - (room or np.inf)

    def computing(self, places: range) -> Array:
        """One microbatch on one device; microbatches go round, so the slowest kind sets the pace."""
        kinds = sorted({self.fabric.places[n].kind for n in places})
        each = [self.between(kind, self.tables.seconds[kind]) for kind in kinds]
        return each[0] if len(each) == 1 else np.maximum.reduce(each)

    def _stage_bytes(self, first: int, width: int) -> Array:
        held = in_flight(self.terms, devices=self.size - first, width=width)
        found = stage_bytes(
            self.terms,
            held=held,
            parameters=self.between("parameters", self.tables.parameters),
            activations=self.between("activations", self.tables.activations),
            arriving=self.tables.crossing[:, None],
        )
        return np.asarray(found)

    def between(self, name: str, sums: Array) -> Array:
        """From each cut to each that it is inside of; infinity elsewhere."""
        if name not in self._differences:
            self._differences[name] = sums[None, :] - sums[:, None] + self._nowhere
        return self._differences[name]


def _slowest(search: StageSearch, first: int, width: int) -> tuple[Array, bool]:
    return search._timed(first, width), False


def _excess(search: StageSearch, first: int, width: int) -> tuple[Array, bool]:
    return search._excess_bytes(first, width), False


def _seconds(layer: Any, recompute: bool) -> float:
    return float(layer.forward_seconds * (2 if recompute else 1) + layer.backward_seconds)


def arrangements(fabric: Fabric) -> Iterator[tuple[Fabric, int]]:
    """The rows and the numbers of copies worth trying.

    >>> [copies for _, copies in arrangements(Fabric.uniform(sizes=(2, 2), bytes_per_second=(2.0, 1.0)))]
    [1, 2]
    """
    for row in fabric.rows():
        for copies in row.copies():
            yield row, copies
    yield from ((row, 1) for row in fabric.dealt())
