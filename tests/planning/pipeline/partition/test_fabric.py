"""Traffic is charged by one rule at every level."""

import pytest

from dovetail.planning.pipeline.partition import Fabric, Place
from dovetail.planning.pipeline.partition.fabric import traffic
from dovetail.vocabulary import Cluster, InvalidRecord, Kind, Link

NODES = Fabric.uniform(sizes=(4, 4), bytes_per_second=(100.0, 10.0))


def test_a_ring_over_nodes_is_as_fast_as_the_links_between_them() -> None:
    # Each of sixteen passes 15/16 of the bytes out and in, to sum and to hand on.
    assert traffic(NODES, first=0, width=16).sync == pytest.approx((3.75 / 100, 3.75 / 10))
    assert traffic(NODES, first=0, width=4).sync == pytest.approx((3 / 100, 0))


def test_a_copy_on_each_node_sums_between_nodes_only() -> None:
    pays = traffic(NODES, first=0, width=1, copies=4)
    assert (pays.replicas, pays.sync_per_byte) == (4, pytest.approx(3 / 10))


def test_a_cut_between_nodes_is_paid_at_their_link_and_one_inside_at_its_own() -> None:
    inside, between = traffic(NODES, first=1, width=1), traffic(NODES, first=4, width=2)
    assert (inside.before, inside.after) == (pytest.approx((2 / 100, 0)), pytest.approx((2 / 100, 0)))
    assert between.before == pytest.approx((1 / 100, 2 / 10))  # both replicas sit behind one port
    assert between.after == pytest.approx((1 / 100, 0))


def test_a_stage_over_one_and_a_half_nodes_pays_for_the_share_that_leaves_its_node() -> None:
    pays = traffic(NODES, first=0, width=6)
    assert pays.before == (0, 0)  # nothing comes before it
    assert pays.after[1] == pytest.approx(2 / 10 * 4 / 6)  # four of six replicas sit elsewhere


def test_three_levels() -> None:
    racks = Fabric.uniform(sizes=(2, 2, 2), bytes_per_second=(100.0, 10.0, 1.0))
    assert traffic(racks, first=0, width=8).sync == pytest.approx((3.5 / 100, 3.5 / 10, 3.5 / 1))
    assert traffic(racks, first=2, width=2).before[1:] == pytest.approx((2 / 10, 0))
    assert traffic(racks, first=4, width=4).before[1:] == pytest.approx((1 / 10, 2 / 1))
    assert list(racks.copies()) == [1, 2, 4]


def test_copies_are_whole_nodes_or_equal_parts_of_one_and_alike() -> None:
    assert list(NODES.copies()) == [1, 2, 4, 8]
    assert list(Fabric.uniform(sizes=(8,), bytes_per_second=(1.0,)).copies()) == [1]
    mixed = tuple(Place(name=str(n), kind="ab"[n // 2], address=(str(n // 2),)) for n in range(4))
    assert list(Fabric(places=mixed, bytes_per_second=(2.0, 1.0)).copies()) == [1]


def test_unlike_kinds_are_tried_in_every_order() -> None:
    places = tuple(Place(name=str(n), kind=kind) for n, kind in enumerate("aba"))
    rows = [[place.name for place in row.places] for row in Fabric(places=places, bytes_per_second=(1.0,)).rows()]
    assert rows == [["0", "1", "2"], ["0", "2", "1"], ["1", "0", "2"]]


def test_a_cluster_gives_its_nodes_and_its_slowest_measured_links() -> None:
    kind = Kind(name="v100", processor="cuda", memory_bytes=16 << 30)
    links = (
        Link(source="v100", target="v100", bytes_per_second=30e9),
        Link(source="host", target="v100", bytes_per_second=1e9),
        Link(source="process", target="process", bytes_per_second=40e9),
        Link(source="process", target="process", bytes_per_second=3e9, between_nodes=True),
    )
    uniform = Cluster.uniform(kind, nodes=2, devices_per_node=2)
    cluster = Cluster(kinds=uniform.kinds, nodes=uniform.nodes, devices=uniform.devices, links=links)
    fabric = Fabric.of(cluster)
    assert fabric.bytes_per_second == (30e9, 3e9)
    assert [place.address for place in fabric.places] == [("n0",), ("n0",), ("n1",), ("n1",)]
    assert fabric.places[0].memory_bytes == 16 << 30
    assert Fabric.of(cluster, devices=["n1:0", "n1:1"]).bytes_per_second == (30e9,)


def test_places_must_have_an_address_and_links_a_rate() -> None:
    with pytest.raises(InvalidRecord, match="one unit fewer"):
        Fabric(places=(Place(name="a", kind="k"),), bytes_per_second=(1.0, 2.0))
    with pytest.raises(InvalidRecord, match="some bytes"):
        Fabric(places=(Place(name="a", kind="k"),), bytes_per_second=(0.0,))
