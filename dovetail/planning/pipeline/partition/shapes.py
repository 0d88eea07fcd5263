"""The shape of a pipeline for a model of many equal blocks: depth × width × microbatch × recomputation.

As in the planner of PipeDream-2BW (ICML 2021, section 4), but with stages cut where they balance rather than into equal
counts of blocks.

Every stage has the same width; a step is one batch of a given size. Every shape that could be better than the best so
far is tried; one could not whose work alone, divided by its devices, takes longer.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from dovetail.planning.pipeline.partition.fabric import Fabric
from dovetail.planning.pipeline.partition.graph import Graph
from dovetail.planning.pipeline.partition.planning import partition
from dovetail.planning.pipeline.partition.result import Partition
from dovetail.planning.pipeline.partition.terms import Terms
from dovetail.vocabulary import InvalidRecord, NoFeasiblePlan

# Steps that differ by less are equal, and the simpler shape is kept.
_BETTER = 1 - 1e-6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A pipeline of equal width: `microbatches` of `microbatch` samples make up a step.

    >>> one = Partition(stages=(), copies=1, seconds=0.5, bubble_share=0.0, replication_seconds=1.0, complete=True,
    ...                 explanation=())
    >>> Shape(depth=2, width=4, microbatch=8, microbatches=16, recompute=False, step_seconds=8.0, partition=one).depth
    2
    """

    depth: int
    width: int
    microbatch: int
    microbatches: int
    recompute: bool
    step_seconds: float
    partition: Partition


def best_shape(graphs: Mapping[int, Graph], fabric: Fabric, *, batch: int, terms: Terms | None = None) -> Shape:
    """The shape with the shortest step of `batch` samples. `graphs` are the model's for each microbatch size worth
    trying, measured, or scaled from one that was. Of `terms`, microbatches and recompute are chosen here.

    >>> from dovetail.vocabulary import LayerProfile
    >>> block = LayerProfile(name="0", operation="", forward_seconds=0.01, backward_seconds=0.02, activation_bytes=100,
    ...                      parameter_bytes=10**6)
    >>> layers = tuple(dataclasses.replace(block, name=str(n)) for n in range(8))
    >>> graph = Graph(layers=layers, edges=tuple((str(n), str(n + 1)) for n in range(7)))
    >>> fabric = Fabric.uniform(sizes=(4,), bytes_per_second=(1e9,), memory_bytes=12 * 10**6)
    >>> shape = best_shape({1: graph}, fabric, batch=16)
    >>> shape.depth, shape.width, shape.microbatches, round(shape.step_seconds, 3)
    (4, 1, 16, 0.96)
    """
    terms = terms or Terms(weights="double_buffered", microbatches=1)
    sizes = [size for size in sorted(graphs, reverse=True) if batch % size == 0]
    if not sizes:
        raise InvalidRecord(f"a microbatch must divide the batch of {batch}; none of {sorted(graphs)} does.")
    best: Shape | None = None
    reasons: dict[str, None] = {}
    for depth, width, size, recompute in _shapes(fabric, batch, sizes):
        least = graphs[size].seconds * (batch // size) / (depth * width)
        if best is not None and least >= best.step_seconds:
            continue
        try:
            found = _shape(graphs[size], fabric, terms, depth, width, size, batch // size, recompute=recompute)
        except (InvalidRecord, NoFeasiblePlan) as error:
            reasons.setdefault(str(error))
            continue
        if best is None or found.step_seconds < best.step_seconds * _BETTER:
            best = found
    if best is None:
        raise NoFeasiblePlan(f"no shape of pipeline can be had. The last tried: {list(reasons)[-1]}")
    return best


def _shapes(fabric: Fabric, batch: int, sizes: list[int]) -> Iterator[tuple[int, int, int, bool]]:
    """The most devices first, and of as many the shallowest pipeline, the largest microbatch, without recomputation:
    so of equal steps the simplest is kept."""
    count = len(fabric.places)
    pairs = [(depth, width) for depth in range(1, count + 1) for width in range(1, count // depth + 1)]
    for depth, width in sorted(pairs, key=lambda pair: (-pair[0] * pair[1], pair[0])):
        for size in sizes:
            if batch // size % width == 0:
                yield from ((depth, width, size, recompute) for recompute in (False, True))


def _shape(
    graph: Graph,
    fabric: Fabric,
    terms: Terms,
    depth: int,
    width: int,
    size: int,
    microbatches: int,
    *,
    recompute: bool,
) -> Shape:
    # Each replica has its share of the step, and 2BW needs as many microbatches of that as there are stages.
    if terms.weights == "double_buffered" and microbatches // width < depth:
        raise InvalidRecord(
            f"2BW must have at least as many microbatches for each replica in a step as stages, got "
            f"{microbatches // width} for {depth}. Use smaller microbatches or fewer stages."
        )
    asked = dataclasses.replace(terms, microbatches=microbatches, recompute=recompute)
    found = partition(graph, fabric, terms=asked, depth=depth, width=width)
    seconds = microbatches * found.seconds
    if terms.weights == "flush":
        seconds += (depth - 1) * found.seconds * width  # filling and draining
    return Shape(
        depth=depth,
        width=width,
        microbatch=size,
        microbatches=microbatches,
        recompute=recompute,
        step_seconds=seconds,
        partition=found,
    )
