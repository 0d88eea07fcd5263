"""Whatever is planned and in whatever order things end, nothing is started that has no room."""

import dataclasses
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dovetail.control.state.queues import Queues
from dovetail.vocabulary import Cluster, Kind, Option, Placement, Schedule

CPU = Kind(name="cpu", processor="cpu")
MEMORY, CORES = 10, 4


def place(name, devices, *, start=0.0, host_bytes=0, disk_bytes=0, cores=0):
    option = Option(
        families=("f",),
        technique="resident",
        kind="cpu",
        count=len(devices),
        step_seconds=(1.0,),
        host_bytes=host_bytes,
        disk_bytes=disk_bytes,
        cores=cores,
    )
    return Placement(
        tasks=(name,), steps=(1,), option=option, devices=tuple(devices), start_seconds=start, duration_seconds=1.0
    )


def queues(*placements, devices=2, nodes=1):
    cluster = Cluster.uniform(CPU, nodes=nodes, devices_per_node=devices, cores=CORES, memory_bytes=MEMORY)
    found = Queues(cluster)
    found.load(Schedule(placements=placements))
    return found


def started(found):
    return [placement.tasks[0] for placement in found.ready()]


def test_each_device_follows_its_planned_order():
    first, second = place("first", ["n0:0"]), place("second", ["n0:0"], start=1.0)
    found = queues(second, first)
    assert started(found) == ["first"]
    assert started(found) == []
    found.release(first.devices, first.option)
    assert started(found) == ["second"]
    assert found.empty()


def test_a_gang_waits_for_all_of_its_devices():
    one, both = place("one", ["n0:0"]), place("both", ["n0:0", "n0:1"], start=1.0)
    found = queues(one, both)
    assert started(found) == ["one"]
    found.release(one.devices, one.option)
    assert started(found) == ["both"]


def test_what_has_no_room_now_starts_when_room_is_given_back():
    big, other = place("big", ["n0:0"], host_bytes=7), place("other", ["n0:1"], host_bytes=7)
    found = queues(big, other)
    assert started(found) == ["big"]
    found.release(big.devices, big.option)
    assert started(found) == ["other"]


def test_rooms_are_those_of_each_node():
    found = queues(
        place("here", ["n0:0"], host_bytes=7, cores=3), place("there", ["n1:0"], host_bytes=7, cores=3), nodes=2
    )
    assert started(found) == ["here", "there"]


def test_a_trial_keeps_its_devices():
    found = queues(place("one", ["n0:0"]), place("two", ["n0:1"]))
    found.occupy(("n0:0",), None)
    assert found.free_together("cpu", 1) == ("n0:1",)
    assert found.free_together("cpu", 2) is None
    assert started(found) == ["two"]
    found.release(("n0:0",), None)
    assert started(found) == ["one"]


def test_idle_and_behind_is_a_free_device_without_work_while_work_waits():
    first, second = place("first", ["n0:0"]), place("second", ["n0:0"], start=1.0)
    found = queues(first, second)
    assert started(found) == ["first"]
    assert found.idle_and_behind()
    found.load(Schedule(placements=()))
    assert not found.idle_and_behind()


def test_a_new_schedule_replaces_what_has_not_started():
    found = queues(place("old", ["n0:0"]))
    found.load(Schedule(placements=(place("new", ["n0:1"]),)))
    assert started(found) == ["new"]


@st.composite
def schedules(draw):
    devices = [f"n{node}:{device}" for node in range(2) for device in range(3)]
    placements = []
    for number in range(draw(st.integers(1, 12))):
        node = draw(st.sampled_from("01"))
        chosen = draw(
            st.lists(st.sampled_from([d for d in devices if d[1] == node]), min_size=1, max_size=3, unique=True)
        )
        placements.append(
            place(
                f"t{number}",
                chosen,
                start=float(number),
                host_bytes=draw(st.integers(0, MEMORY)),
                cores=draw(st.integers(0, CORES)),
            )
        )
    return placements


@given(placements=schedules(), chance=st.randoms())
def test_nothing_starts_without_room_and_everything_starts_in_the_end(placements, chance):
    found = queues(*placements, devices=3, nodes=2)
    running, done = [], []
    while not found.empty() or running:
        running += found.ready()
        held = Counter(device for placement in running for device in placement.devices)
        assert all(count == 1 for count in held.values())
        for node in ("n0", "n1"):
            here = [placement.option for placement in running if placement.devices[0].startswith(node)]
            assert sum(option.host_bytes for option in here) <= MEMORY
            assert sum(option.cores for option in here) <= CORES
        assert running, "nothing runs and something waits"
        over = running.pop(chance.randrange(len(running)))
        found.release(over.devices, over.option)
        done.append(over.tasks[0])
    assert sorted(done) == sorted(placement.tasks[0] for placement in placements)


def test_two_spills_that_the_disk_does_not_hold_together_start_one_after_the_other():
    GiB = 1 << 30
    first, second = (place(name, [f"n0:{n}"], disk_bytes=60 * GiB) for n, name in enumerate(["first", "second"]))
    uniform = Cluster.uniform(CPU, devices_per_node=2, memory_bytes=MEMORY)
    found = Queues(dataclasses.replace(uniform, nodes=(dataclasses.replace(uniform.nodes[0], disk_bytes=100 * GiB),)))
    found.load(Schedule(placements=(first, second)))
    assert started(found) == ["first"]
    found.release(first.devices, first.option)
    assert started(found) == ["second"]


def test_devices_that_are_gone_stay_away_until_they_join_again():
    one = place("one", ["n0:0"])
    found = queues(one)
    assert started(found) == ["one"]
    found.leave(["n0:0"])
    found.release(one.devices, one.option)
    assert found.free_together("cpu", 1) == ("n0:1",)
    assert found.free_together("cpu", 2) is None
    found.join(["n0:0", "n0:1"])
    assert found.free_together("cpu", 2) == ("n0:0", "n0:1")
