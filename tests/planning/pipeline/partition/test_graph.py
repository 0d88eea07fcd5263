"""Graphs are sorted, checked, and say what crosses a cut."""

import pytest
from hypothesis import given

from dovetail.planning.pipeline.partition import Graph
from dovetail.planning.pipeline.partition.graph import members
from dovetail.vocabulary import InvalidRecord, Profile
from tests.planning.pipeline.partition.graphs import chain, graphs, layer


@given(graphs())
def test_no_layer_comes_before_what_it_reads(graph: Graph) -> None:
    assert all(all(before < number for before in members(graph.before[number])) for number in range(len(graph.layers)))


def test_an_output_that_is_read_late_crosses_every_cut_on_its_way_once() -> None:
    layers = [layer(name, activation_bytes=size) for name, size in (("a", 1), ("b", 10), ("c", 100), ("d", 0))]
    skips = Graph(layers=tuple(layers), edges=(("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("c", "d")))
    assert [skips.live_bytes(cut) for cut in (0, 0b1, 0b11, 0b111, 0b1111)] == [0, 1, 11, 101, 0]


@pytest.mark.parametrize(
    ("layers", "edges", "words"),
    [
        ((), (), "must have layers"),
        (("a", "a"), (), "names of their own"),
        (("a",), (("a", "b"),), "'b'"),
        (("a", "b"), (("a", "b"), ("b", "a")), "cycle"),
    ],
)
def test_what_is_no_graph_is_refused(layers: tuple[str, ...], edges: tuple[tuple[str, str], ...], words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        Graph(layers=tuple(map(layer, layers)), edges=edges)


def test_a_profile_without_layers_is_refused_with_what_to_do() -> None:
    profile = Profile(family="f", kind="cpu", count=1, step_seconds=1, peak_bytes=0)
    with pytest.raises(InvalidRecord, match="Measure the family again"):
        Graph.of(profile)


def test_half_the_microbatch_takes_half_the_time_and_activations_but_all_parameters() -> None:
    half = chain(layer("a", 4.0, activation_bytes=10, parameter_bytes=7)).scaled(0.5)
    assert (half.seconds, half.layers[0].activation_bytes, half.layers[0].parameter_bytes) == (2.0, 5, 7)
