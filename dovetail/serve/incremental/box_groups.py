"""Which boxes are computed together.

Those of a group are computed with one call of each operation, each with as many cells as the one that reaches farthest.
Many small groups compute fewer cells, few large ones call less often, and a call has its price: it reads all weights.
"""

import itertools
import math

import numpy

from dovetail.serve.incremental.boxes import Reach
from dovetail.serve.incremental.spatial_graph import SpatialGraph

Grouping = tuple[list[numpy.ndarray], float]
"""The numbers of the boxes of each group, and the share of the whole pictures' multiplications that they take."""

# What a call takes, in multiplications: for each weight, which is put into the order that a core likes (27 measured,
# for 3 x 3 x 512 x 512 weights), and for being made; an accelerator makes as many in the time that the host takes to
# say which cells it means.
_PER_WEIGHT, _PER_CALL = {"cpu": 27.0, "cuda": 0.0}, {"cpu": 3e5, "cuda": 4e9}
_CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def group_boxes(graph: SpatialGraph, places: numpy.ndarray, size: tuple[int, int]) -> Grouping:
    """The best division of boxes, by their rows and columns, into classes of neighbours."""
    weights, whole = graph.weights(), graph.whole_cells()
    device = graph.base_output.device.type
    per_call = _PER_WEIGHT.get(device, 0.0) * weights + _PER_CALL.get(device, 4e9)
    best: tuple[float, float, list[numpy.ndarray]] | None = None
    for classes in _CLASSES:
        axes = [_classes(graph, places[:, axis], size[axis], classes, axis=axis) for axis in (0, 1)]
        groups, calls, cells = [], 0.0, 0.0
        for (rows, heights), (columns, widths) in itertools.product(*axes):
            group = numpy.flatnonzero(numpy.isin(places[:, 0], rows) & numpy.isin(places[:, 1], columns))
            if len(group):
                groups.append(group)
                calls += per_call.sum()
                cells += len(group) * (weights * heights * widths).sum()
        if best is None or cells + calls < best[0]:
            best = (cells + calls, cells, groups)
        if classes >= max(len(numpy.unique(places[:, axis])) for axis in (0, 1)):
            break
    assert best is not None
    all_cells = len(places) * (weights * whole).sum()
    return best[2], best[1] / all_cells if all_cells else math.inf


def _classes(
    graph: SpatialGraph, starts: numpy.ndarray, size: int, classes: int, *, axis: int
) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """So many classes of neighbouring starts, and how far each reaches in every operation."""
    distinct = numpy.unique(starts)
    parts = numpy.array_split(distinct, min(classes, len(distinct)))
    return [(part, graph.reach(Reach(part, size), axis=axis)) for part in parts]
