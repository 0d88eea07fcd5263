"""What is free follows what is taken and given back."""

import dataclasses

from dovetail.planning.room import Room, RoomForOptions
from dovetail.vocabulary import Cluster, Device, Node

from .problems import CPU, option, placement


def test_devices_that_a_gang_had_are_taken_again_only_while_its_node_has_the_rest() -> None:
    room = Room(Cluster.uniform(CPU, devices_per_node=3, memory_bytes=8))
    hungry = option(host_bytes=5)
    assert room.fits(hungry, [1])
    room.occupy(hungry, [1])
    assert (room.fits(hungry, [1]), room.fits(hungry, [2]), room.fits(option(), [2])) == (False, False, True)
    copied = room.copy()
    room.give(hungry, [1])
    assert (room.fits(hungry, [2]), copied.fits(hungry, [2])) == (True, False)


def test_what_needs_nothing_of_what_is_overdrawn_starts() -> None:
    room = Room(
        Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8),
        running=[placement("old", of=option(host_bytes=9), on=("n0:1",))],
    )
    assert (room.fullest(option(host_bytes=1)), room.fullest(option())) == (None, (0,))


def test_the_fullest_node_that_holds_it_comes_first() -> None:
    room = RoomForOptions(Cluster.uniform(CPU, nodes=2, devices_per_node=4), options=[option(1), option(4)])
    assert room.take(0, nodes=room.find(0) or (0,)) == (0,)
    assert room.find(0) == (0,), "so that the other node keeps room for the wide option"
    assert room.find(1) == (1,)


def test_a_node_that_holds_little_else_comes_before_one_that_holds_all() -> None:
    nodes = (Node(name="large", cores=4, memory_bytes=8), Node(name="small", cores=4, memory_bytes=2))
    devices = tuple(Device(name=node.name, kind="cpu", node=node.name, index=0) for node in nodes)
    cluster = Cluster(kinds=(CPU,), nodes=nodes, devices=devices)
    room = RoomForOptions(cluster, options=[option(host_bytes=1), option(host_bytes=5)])
    assert (room.find(0), room.find(1)) == ((1,), (0,))


def test_an_option_is_shut_until_what_it_needs_is_given_back() -> None:
    small, large = option(host_bytes=3), option(host_bytes=6)
    room = RoomForOptions(Cluster.uniform(CPU, devices_per_node=3, memory_bytes=8), options=[small, large])
    first, second = room.take(0, nodes=(0,)), room.take(0, nodes=(0,))
    assert (room.find(1), room.find(0), room.idle["cpu"]) == (None, None, 1)
    assert room.give(small, devices=first) == [0]
    assert room.give(small, devices=second) == [1]
    assert (room.find(1), room.idle["cpu"]) == ((0,), 3)


def test_what_runs_is_taken_even_where_there_is_no_room_and_given_back() -> None:
    greedy = option(host_bytes=9)
    room = RoomForOptions(Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8), options=[option(host_bytes=1)])
    devices = room.occupy(placement("old", of=greedy, on=("n0:1",)))
    assert (devices, room.find(0)) == ((1,), None)
    assert room.give(greedy, devices=devices) == [0]


def test_cores_and_disk_are_shared_where_they_are_known() -> None:
    busy = option(cores=2, disk_bytes=1 << 40)
    room = RoomForOptions(Cluster.uniform(CPU, devices_per_node=3, cores=3), options=[busy, option(cores=1)])
    room.take(0, nodes=(0,))
    assert (room.find(0), room.find(1)) == (None, (0,))


def test_what_goes_over_two_nodes_takes_its_share_of_each() -> None:
    room = Room(Cluster.uniform(CPU, nodes=3, devices_per_node=2, memory_bytes=8))
    wide = dataclasses.replace(option(4, host_bytes=10), knobs={"nodes": 2})
    room.take(option(host_bytes=4), nodes=(0,))
    assert room.fullest(wide) == (1, 2), "the first has three bytes too few, and a device"
    devices = room.take(wide, nodes=(1, 2))
    assert (devices, room.idle["cpu"]) == ((2, 3, 4, 5), 1)
    assert room.fullest(wide) is None
    room.give(wide, devices)
    assert room.fits(wide, devices)
    assert not room.fits(wide, (0, 1, 2, 3))
