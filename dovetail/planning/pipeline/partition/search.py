"""The dynamic program: the cuts and widths of stages whose slowest is fastest.

G[i, e] is the least time of the slowest stage when all layers after cut i run on the last e devices of a row:

    G[i, e] = min over width w ≤ e and cuts j ⊃ i of max(stage(i, j, on w devices), G[j, e − w]),   G[all, 0] = 0.

Counted from the end, the devices of this stage and the later ones are known, and with them the microbatches in flight
and the memory. PipeDream's program (SOSP 2019, section 3.1) runs one such table inside nodes and one between; here
one row holds all levels, so a stage may take part of a node, or one and a half. Among plans with the same slowest
stage the one on the fewest devices, then with the fewest stages, is taken, then the first in order.
Works on arrays; it imports numpy, so it is imported when something is first partitioned.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.planning.pipeline.partition.fabric import Fabric, Traffic, memory_bytes, traffic
from dovetail.planning.pipeline.partition.graph import Graph
from dovetail.planning.pipeline.partition.terms import Terms, in_flight, stage_bytes

Array = np.ndarray[Any, np.dtype[np.float64]]
# With more cuts rows in which nodes take turns, up to six more of them, take seconds.
_CUTS_DEALT = 500
# Sums of the same layers in another order differ in the last digits.
_SAME = 1 + 1e-9


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

    def best(
        self, *, depth: int | None = None, width: int | None = None, below: float = float("inf")
    ) -> tuple[float, list[LayerSpan]]:
        """The least time of the slowest stage, and stages that reach it; none where nothing fits or nothing is faster
        than `below`.

        `depth` is how many stages there must be, `width` how many devices each must have.
        """
        seconds, _ = self._solve(_slowest, depth, width)
        least = min(seconds.values())
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
        return float(self._times(span.first, span.width)[span.start, span.end])

    def bytes(self, span: LayerSpan) -> float:
        """What a stage takes on each of its devices."""
        return float(self._stage_bytes(span.first, span.width)[span.start, span.end])

    def traffic(self, first: int, width: int) -> Traffic:
        """What a stage pays for traffic there."""
        return traffic(self.fabric, first=first, width=width, copies=self.copies)

    def compute_seconds(self, span: LayerSpan) -> float:
        """What a stage computes for one microbatch on one of its devices, the slowest kind it has."""
        return float(self.computing(range(span.first, span.first + span.width))[span.start, span.end])

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
        computing and summing gradients, or crossing cuts where that takes longer."""
        pays, crossing = self.traffic(first, width), self.tables.crossing
        compute = self.computing(range(first, first + width)) / pays.replicas
        before, after = crossing[:, None] * pays.before_per_byte, crossing[None, :] * pays.after_per_byte
        # With stashing gradients are summed after each round of the replicas, else once in a step.
        rounds = pays.replicas if self.terms.microbatches is None else max(self.terms.microbatches, pays.replicas)
        sync_per_byte = pays.sync_per_byte / rounds
        sync = self.between("parameters", self.tables.parameters) * sync_per_byte if sync_per_byte else 0.0
        return np.maximum(np.maximum(compute + sync, before), after)

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


def arrangements(fabric: Fabric, *, cuts: int) -> Iterator[tuple[Fabric, int]]:
    """The rows and the numbers of copies worth trying with so many cuts.

    >>> [copies for _, copies in arrangements(Fabric.uniform(sizes=(2, 2), bytes_per_second=(2.0, 1.0)), cuts=9)]
    [1, 2]
    """
    for row in fabric.rows():
        for copies in row.copies():
            yield row, copies
    if cuts <= _CUTS_DEALT:
        yield from ((row, 1) for row in fabric.dealt())
