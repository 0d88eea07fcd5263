"""Small graphs, and the slow and true way to divide them."""

import functools
import itertools
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from dovetail.planning.pipeline.partition import Graph
from dovetail.planning.pipeline.partition.graph import members
from dovetail.vocabulary import LayerProfile

#: Seconds of a stage that holds a set of layers, on so many devices, of so many left.
StageSeconds = Callable[[int, int, int, int], float]


def layer(name: str, seconds: float = 1.0, *, activation_bytes: int = 0, parameter_bytes: int = 0) -> LayerProfile:
    return LayerProfile(
        name=name,
        operation="Linear",
        forward_seconds=seconds / 3,
        backward_seconds=seconds * 2 / 3,
        activation_bytes=activation_bytes,
        parameter_bytes=parameter_bytes,
    )


def chain(*layers: LayerProfile) -> Graph:
    names = [each.name for each in layers]
    return Graph(layers=layers, edges=tuple(itertools.pairwise(names)))


@st.composite
def graphs(draw: st.DrawFn, most: int = 10) -> Graph:
    """Any graph, with layers that take no time among its layers."""
    count = draw(st.integers(1, most))
    figures = st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 30))
    layers = [
        layer(str(n), float(seconds), activation_bytes=activations, parameter_bytes=parameters)
        for n, (seconds, activations, parameters) in enumerate(draw(st.tuples(*[figures] * count)))
    ]
    # Each layer but a few reads from one before it: independent layers have too many cuts for the slow way.
    edges = set()
    for n in range(1, count):
        if draw(st.integers(0, 5)):
            edges.add((str(draw(st.integers(max(0, n - 3), n - 1))), str(n)))
        if draw(st.booleans()):
            edges.add((str(draw(st.integers(0, n - 1))), str(n)))
    return Graph(layers=tuple(layers), edges=tuple(sorted(edges)))


def every_cut(graph: Graph) -> list[int]:
    """All sets of layers that hold what their members read from, by trying all sets."""
    return [
        cut for cut in range(graph.everything + 1) if all(not graph.before[number] & ~cut for number in members(cut))
    ]


def slow_best(graph: Graph, devices: int, seconds: StageSeconds) -> float:
    """The least time of the slowest stage over all ways to cut the graph and to hand out up to so many devices."""
    cuts = every_cut(graph)

    @functools.cache
    def best(cut: int, left: int) -> float:
        """For the layers after a cut on exactly `left` devices."""
        if cut == graph.everything:
            return 0.0 if left == 0 else float("inf")
        return min(
            (
                max(seconds(cut, other, width, left), best(other, left - width))
                for width in range(1, left + 1)
                for other in cuts
                if cut & other == cut and cut != other
            ),
            default=float("inf"),
        )

    return min(best(0, used) for used in range(1, devices + 1))


def sums(graph: Graph, layers: int) -> tuple[float, int, int]:
    """Seconds, parameter bytes and activation bytes of a set."""
    found = [graph.layers[number] for number in members(layers)]
    return (
        sum(each.forward_seconds + each.backward_seconds for each in found),
        sum(each.parameter_bytes for each in found),
        sum(each.activation_bytes for each in found),
    )


def ladder(rungs: int, *, wide: int = 3) -> Graph:
    """Blocks of `wide` branches of three layers each, one after another, with an edge that skips every block."""
    layers, edges = [layer("in")], []
    last = before = "in"
    for rung in range(rungs):
        join = layer(f"{rung}", 0.5, activation_bytes=10)
        for branch, step in itertools.product(range(wide), range(3)):
            name = f"{rung}.{branch}.{step}"
            layers.append(layer(name, 1.0 + branch, activation_bytes=10 * (step + 1), parameter_bytes=rung))
            edges.append((last if step == 0 else f"{rung}.{branch}.{step - 1}", name))
        layers.append(join)
        edges += [(f"{rung}.{branch}.2", join.name) for branch in range(wide)]
        edges += [(before, join.name)] if before != last else []
        before, last = last, join.name
    return Graph(layers=tuple(layers), edges=tuple(edges))


def names(graph: Graph) -> Iterator[str]:
    return (each.name for each in graph.layers)
