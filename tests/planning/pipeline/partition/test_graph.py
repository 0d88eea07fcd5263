"""Graphs are sorted, checked, and say what crosses a cut.

Which cuts are tried: all that could be best, and on graphs with too many a family from none to all.
"""

import pytest
from hypothesis import given

from dovetail.planning.pipeline.partition import Graph
from dovetail.planning.pipeline.partition.graph import _is_free, find_cuts, members
from dovetail.vocabulary import InvalidRecord, Profile
from tests.planning.pipeline.partition.graphs import chain, every_cut, graphs, ladder, layer


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


@given(graphs())
def test_every_cut_holds_what_its_layers_read_from(graph: Graph) -> None:
    for found in (find_cuts(graph), find_cuts(graph, most=4)):
        assert found.sets[0] == 0
        assert found.sets[-1] == graph.everything
        assert all(not graph.before[number] & ~cut for cut in found.sets for number in members(cut))


@given(graphs(most=8))
def test_of_cuts_that_part_the_work_alike_one_with_the_least_crossing_is_there(graph: Graph) -> None:
    free = sum(1 << n for n in range(len(graph.layers)) if _is_free(graph, n))
    kept = {cut & ~free: graph.live_bytes(cut) for cut in sorted(find_cuts(graph).sets, key=graph.live_bytes)[::-1]}
    for cut in every_cut(graph):
        assert kept[cut & ~free] <= graph.live_bytes(cut)


def test_series_are_not_multiplied() -> None:
    # 4³ cuts inside each block of three branches of three layers.
    one, three = (len(find_cuts(ladder(rungs)).sets) for rungs in (1, 2))
    assert one < 4**3 + 3
    assert three > one


def test_a_branchy_graph_has_no_more_cuts_than_asked() -> None:
    found = find_cuts(ladder(12, wide=5), most=300)
    assert not found.complete
    assert 50 <= len(found.sets) <= 320


def test_a_chain_has_a_cut_after_each_layer_that_does_something() -> None:
    layers = [layer("a"), layer("free", 0.0, activation_bytes=5), layer("b")]
    graph = Graph(layers=tuple(layers), edges=(("a", "free"), ("free", "b")))
    assert [graph.names(cut) for cut in find_cuts(graph).sets] == [(), ("a",), ("a", "free", "b")]
