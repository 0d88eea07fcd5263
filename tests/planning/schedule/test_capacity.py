"""What is free follows what is taken and given back."""

from dovetail.planning.schedule.capacity import Capacity
from dovetail.vocabulary import Cluster, Device, Node

from .problems import CPU, option, placement


def test_the_fullest_node_that_holds_it_comes_first() -> None:
    capacity = Capacity(Cluster.uniform(CPU, nodes=2, devices_per_node=4), options=[option(1), option(4)])
    assert capacity.take(0, node=capacity.find(0) or 0) == (0,)
    assert capacity.find(0) == 0, "so that the other node keeps room for the wide option"
    assert capacity.find(1) == 1


def test_a_node_that_holds_little_else_comes_before_one_that_holds_all() -> None:
    nodes = (Node(name="large", cores=4, memory_bytes=8), Node(name="small", cores=4, memory_bytes=2))
    devices = tuple(Device(name=node.name, kind="cpu", node=node.name, index=0) for node in nodes)
    cluster = Cluster(kinds=(CPU,), nodes=nodes, devices=devices)
    capacity = Capacity(cluster, options=[option(host_bytes=1), option(host_bytes=5)])
    assert (capacity.find(0), capacity.find(1)) == (1, 0)


def test_an_option_is_shut_until_what_it_needs_is_given_back() -> None:
    small, large = option(host_bytes=3), option(host_bytes=6)
    capacity = Capacity(Cluster.uniform(CPU, devices_per_node=3, memory_bytes=8), options=[small, large])
    first, second = capacity.take(0, node=0), capacity.take(0, node=0)
    assert (capacity.find(1), capacity.find(0), capacity.idle["cpu"]) == (None, None, 1)
    assert capacity.give(small, devices=first) == [0]
    assert capacity.give(small, devices=second) == [1]
    assert (capacity.find(1), capacity.idle["cpu"]) == (0, 3)


def test_what_runs_is_taken_even_where_there_is_no_room_and_given_back() -> None:
    greedy = option(host_bytes=9)
    capacity = Capacity(Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8), options=[option(host_bytes=1)])
    devices = capacity.occupy(placement("old", of=greedy, on=("n0:1",)))
    assert (devices, capacity.find(0)) == ((1,), None)
    assert capacity.give(greedy, devices=devices) == [0]


def test_cores_and_disk_are_shared_where_they_are_known() -> None:
    busy = option(cores=2, disk_bytes=1 << 40)
    capacity = Capacity(Cluster.uniform(CPU, devices_per_node=3, cores=3), options=[busy, option(cores=1)])
    capacity.take(0, node=0)
    assert (capacity.find(0), capacity.find(1)) == (None, 0)
