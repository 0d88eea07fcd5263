"""Which cuts are tried: all that could be best, and on graphs with too many a family from none to all."""

from hypothesis import given

from dovetail.planning.pipeline.partition import Graph, cuts
from dovetail.planning.pipeline.partition.graph import members
from tests.planning.pipeline.partition.graphs import every_cut, graphs, ladder, layer


@given(graphs())
def test_every_cut_holds_what_its_layers_read_from(graph: Graph) -> None:
    for found in (cuts.find(graph), cuts.find(graph, most=4)):
        assert found.sets[0] == 0
        assert found.sets[-1] == graph.everything
        assert all(not graph.before[number] & ~cut for cut in found.sets for number in members(cut))


@given(graphs(most=8))
def test_of_cuts_that_part_the_work_alike_one_with_the_least_crossing_is_there(graph: Graph) -> None:
    free = sum(1 << n for n in range(len(graph.layers)) if cuts._is_free(graph, n))
    kept = {cut & ~free: graph.live_bytes(cut) for cut in sorted(cuts.find(graph).sets, key=graph.live_bytes)[::-1]}
    for cut in every_cut(graph):
        assert kept[cut & ~free] <= graph.live_bytes(cut)


def test_series_are_not_multiplied() -> None:
    # 4³ cuts inside each block of three branches of three layers.
    one, three = (len(cuts.find(ladder(rungs)).sets) for rungs in (1, 2))
    assert one < 4**3 + 3
    assert three > one


def test_a_branchy_graph_has_no_more_cuts_than_asked() -> None:
    found = cuts.find(ladder(12, wide=5), most=300)
    assert not found.complete
    assert 50 <= len(found.sets) <= 320


def test_a_chain_has_a_cut_after_each_layer_that_does_something() -> None:
    layers = [layer("a"), layer("free", 0.0, activation_bytes=5), layer("b")]
    graph = Graph(layers=tuple(layers), edges=(("a", "free"), ("free", "b")))
    assert [graph.names(cut) for cut in cuts.find(graph).sets] == [(), ("a",), ("a", "free", "b")]
