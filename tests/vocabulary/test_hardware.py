import dataclasses

import pytest

from dovetail.vocabulary import Cluster, Device, InvalidRecord, Kind, Link, Node

CPU = Kind(name="cpu", processor="cpu")
NODE = Node(name="n0", cores=1, memory_bytes=1)


def device(name="n0:0", kind="cpu", node="n0"):
    return Device(name=name, kind=kind, node=node, index=0)


def test_a_kind_runs_on_a_known_processor():
    with pytest.raises(InvalidRecord, match="must be 'cpu' or 'cuda', got 'tpu'"):
        Kind(name="v5", processor="tpu")


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((device(), device()), "must have names of their own"),
        ((device(kind="gpu"),), "device 'n0:0' must be of a kind and on a node of its cluster; found kind 'gpu'"),
        ((device(node="n9"),), "node 'n9' of 1"),
    ],
)
def test_clusters_that_cannot_be(devices, message):
    with pytest.raises(InvalidRecord, match=message):
        Cluster(kinds=(CPU,), nodes=(NODE,), devices=devices)


def test_looking_things_up():
    cluster = Cluster.uniform(CPU, nodes=2, devices_per_node=3, cores=8)
    assert [device.name for device in cluster.of_kind("cpu")] == ["n0:0", "n0:1", "n0:2", "n1:0", "n1:1", "n1:2"]
    assert (cluster.count("cpu"), cluster.count("other")) == (6, 0)
    assert cluster.device("n1:2").node == "n1"
    assert cluster.node("n1").cores == 8
    assert list(cluster.counts()) == [(CPU, 6)]


def between(source, target, rate, latency=1e-4):
    return Link(source=source, target=target, bytes_per_second=rate, latency_seconds=latency, between_nodes=True)


def linked(nodes, *links):
    return dataclasses.replace(Cluster.uniform(CPU, nodes=nodes), links=links)


def test_a_link_is_that_of_its_pair_whichever_way_and_the_slower_where_it_was_measured_both_ways():
    cluster = linked(3, between("n0", "n1", 9e8), between("n1", "n0", 7e8), between("n2", "n0", 1e8))
    assert cluster.link("n0", "n1") == cluster.link("n1", "n0") == between("n1", "n0", 7e8)
    assert cluster.link("n0", "n2").bytes_per_second == 1e8


def test_a_pair_that_was_not_measured_has_what_the_slower_end_has_to_others():
    far = (between("n0", "n1", 9e8), between("n0", "n2", 8e8, 2e-4), between("n3", "n1", 3e8), between("n3", "n2", 5e8))
    found = linked(5, *far).link("n3", "n0")
    assert (found.bytes_per_second, found.latency_seconds) == (3e8, 2e-4)
    assert linked(5, *far).link("n4", "n0").bytes_per_second == 3e8, "nobody knows n4: the slowest there is"
    assert linked(2).link("n0", "n1") is None
    assert linked(2, Link(source="process", target="process", bytes_per_second=1e9)).link("n0", "n1") is None


def test_links_that_are_stated_hold_for_every_pair_that_was_not_measured():
    cluster = linked(3, between("host", "host", 2e8), between("h200", "h200", 4e8), between("n0", "n1", 9e8))
    assert cluster.link("n0", "n1").bytes_per_second == 9e8
    assert cluster.link("n2", "n1").bytes_per_second == 2e8


def test_a_node_that_joins_brings_its_links():
    one = linked(2, Link(source="process", target="process", bytes_per_second=1e9), between("n0", "n1", 9e8))
    other = Cluster.uniform(CPU, nodes=3).part(["n2"])
    other = dataclasses.replace(other, links=(between("n2", "n0", 3e8), between("n0", "n1", 1e8)))
    whole = one.joined_by(other)
    assert whole.link("n0", "n2").bytes_per_second == 3e8
    assert whole.link("n0", "n1").bytes_per_second == 9e8, "what is known here"
    assert {link for link in whole.links if not link.between_nodes} == {one.links[0]}


def test_limited_memory_makes_other_kinds_of_the_accelerators_that_have_more():
    large = Kind(name="h200", processor="cuda", memory_bytes=141 << 30, price_per_hour=3.0)
    small = Kind(name="t4", processor="cuda", memory_bytes=16 << 30)
    cluster = Cluster(
        kinds=(large, small, CPU),
        nodes=(NODE,),
        devices=tuple(device(f"n0:{n}", kind.name) for n, kind in enumerate((large, small, CPU))),
        links=(Link(source="host", target="h200", bytes_per_second=5e10),),
    )
    found = cluster.limit_memory(24 << 30)
    assert found.kinds[0] == Kind(
        name="h200-24GiB", processor="cuda", memory_bytes=24 << 30, price_per_hour=3.0, limited=True
    )
    assert found.kinds[1:] == (small, CPU)
    assert [each.kind for each in found.devices] == ["h200-24GiB", "t4", "cpu"]
    assert found.links[0].target == "h200-24GiB"
    assert found.limit_memory(24 << 30) == found
    with pytest.raises(InvalidRecord, match="for accelerators only; this cluster has none, but cpu"):
        Cluster.uniform(CPU).limit_memory(24 << 30)
