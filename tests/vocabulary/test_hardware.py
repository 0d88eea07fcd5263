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
