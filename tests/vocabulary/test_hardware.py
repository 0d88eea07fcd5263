import pytest

from dovetail.vocabulary import Cluster, Device, InvalidRecord, Kind, Node

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
