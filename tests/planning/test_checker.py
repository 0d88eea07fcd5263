"""Every kind of fault, planted, is found and described; what only touches is let through."""

import dataclasses
import math
import random

import pytest

from dovetail.planning import check, violations
from dovetail.vocabulary import Cluster, Device, InvalidSchedule, Kind, Node, Option, Placement, Schedule

from .problems import CPU, option, placement

GPU = Kind(name="gpu", processor="cuda", memory_bytes=40 << 30)
CLUSTER = Cluster(
    kinds=(CPU, GPU),
    nodes=(
        Node(name="n0", cores=4, memory_bytes=8 << 30, disk_bytes=100),
        Node(name="n1", cores=4, memory_bytes=8 << 30),
    ),
    devices=(
        *(
            Device(name=f"{node}:{index}", kind="cpu", node=node, index=index)
            for node in ("n0", "n1")
            for index in range(4)
        ),
        Device(name="n0:4", kind="gpu", node="n0", index=4),
    ),
)


def found(*placements: Placement, running: tuple[Placement, ...] = ()) -> list[str]:
    return violations(Schedule(placements=placements), CLUSTER, running=running)


def test_a_lawful_schedule_passes() -> None:
    pair = placement("b", of=option(2), on=("n0:1", "n0:2"))
    assert found(placement("a"), pair, placement("c", start=5.0), placement("d", on=("n1:0",))) == []
    check(Schedule(placements=(placement("a"), pair)), CLUSTER)


def test_two_placements_on_one_device_at_once() -> None:
    assert found(placement("a"), placement("b", start=4.0)) == [
        "device 'n0:0' is in two placements at once: 'a' until 5 s and 'b' from 4 s."
    ]


def test_one_placement_inside_another_and_a_third_after_the_inner_one() -> None:
    long, inner, late = placement("a", seconds=100.0), placement("b", start=1.0), placement("c", start=50.0)
    assert len(found(long, inner, late)) == 2


def test_ends_may_touch_up_to_rounding_and_no_more() -> None:
    first = placement("a", seconds=1000.0)
    assert found(first, placement("b", start=1000.0)) == []
    assert found(first, placement("b", start=1000.0 - 1e-4)) == []
    assert len(found(first, placement("b", start=1000.0 - 1e-2))) == 1


def test_a_short_placement_late_in_the_schedule_is_seen_in_spite_of_the_tolerance() -> None:
    late = placement("a", start=1e9, seconds=1.0)
    assert len(found(late, placement("b", start=1e9, seconds=1.0))) == 1


def test_what_runs_counts() -> None:
    running = placement("old", start=-10.0, seconds=13.0)
    assert found(placement("a"), running=(running,)) == [
        "device 'n0:0' is in two placements at once: 'old' until 3 s and 'a' from 0 s."
    ]
    assert found(placement("a", start=3.0), running=(running,)) == []


def test_a_device_that_does_not_exist() -> None:
    assert found(placement("a", on=("n9:0",))) == ["'a' is on device 'n9:0', which the cluster does not have."]


def test_a_device_of_another_kind() -> None:
    assert found(placement("a", on=("n0:4",))) == ["'a' must be on kind 'cpu', found device 'n0:4' of kind 'gpu'."]


def test_a_count_that_does_not_match() -> None:
    assert found(placement("a", of=option(2))) == ["'a' must be on 2 devices, as its option says, found 1."]


def test_the_same_device_twice() -> None:
    assert found(placement("a", of=option(2), on=("n0:0", "n0:0"))) == [
        "'a' must be on devices that differ, found 'n0:0', 'n0:0'."
    ]


def test_devices_of_two_nodes() -> None:
    assert found(placement("a", of=option(2), on=("n0:0", "n1:0"))) == [
        "'a' with technique 'resident' must be on one node, found n0, n1."
    ]


def test_more_on_a_device_than_it_holds() -> None:
    large = option(kind="gpu", device_bytes=61 << 30)
    assert found(placement("a", of=large, on=("n0:4",))) == [
        "'a' needs 61.0 GiB on each device; one of kind 'gpu' has 40.0 GiB."
    ]
    assert found(placement("a", of=option(device_bytes=61 << 30))) == [], "a CPU core has no memory of its own"


def test_more_host_memory_than_the_node_has() -> None:
    half = option(host_bytes=5 << 30)
    assert found(placement("a", of=half), placement("b", of=half, on=("n0:1",), start=2.0)) == [
        "node 'n0' must not give more than 8.0 GiB of host memory, found 10.0 GiB in use at 2 s."
    ]
    assert found(placement("a", of=half), placement("b", of=half, on=("n0:1",), start=5.0)) == []
    assert found(placement("a", of=half), placement("b", of=half, on=("n1:1",))) == []


def test_more_disk_than_the_node_has_where_it_is_known() -> None:
    half = option(disk_bytes=51)
    assert found(placement("a", of=half), placement("b", of=half, on=("n0:1",))) == [
        "node 'n0' must not give more than 100 B of disk, found 102 B in use at 0 s."
    ]
    assert found(placement("a", of=half, on=("n1:0",)), placement("b", of=half, on=("n1:1",))) == []


def test_more_cores_than_the_node_has() -> None:
    three = option(cores=3)
    assert found(placement("a", of=three), placement("b", of=three, on=("n0:1",))) == [
        "node 'n0' must not give more than 4 of its cores, found 6 in use at 0 s."
    ]


@pytest.mark.parametrize(
    ("start", "seconds"), [(-1.0, 5.0), (math.nan, 5.0), (math.inf, 5.0), (0.0, 0.0), (0.0, -1.0), (0.0, math.nan)]
)
def test_times_that_cannot_be(start: float, seconds: float) -> None:
    assert found(placement("a", start=start, seconds=seconds)) == [
        "'a' must start at a finite time of at least 0 and last longer than 0 s, "
        f"found a start of {start} s and a duration of {seconds} s."
    ]


def test_a_task_in_two_places_at_once() -> None:
    assert found(placement("a"), placement("a", on=("n0:1",), start=1.0)) == [
        "task 'a' is in two placements at once: 'a' until 5 s and 'a' from 1 s."
    ]
    assert found(placement("a"), placement("a", on=("n0:1",), start=5.0)) == []


def test_a_gang_without_all_its_members() -> None:
    assert found(dataclasses.replace(placement("a"), tasks=("a", "b"))) == [
        "'a' and 'b' must have one task and one number of steps for each family of its option, "
        "found 2 tasks, 1 numbers of steps and 1 families."
    ]


def test_check_raises_with_the_violations_and_counts_those_it_leaves_out() -> None:
    faults = tuple(placement(f"t{number}", on=("n9:0",), start=5.0 * number) for number in range(25))
    with pytest.raises(InvalidSchedule) as caught:
        check(Schedule(placements=faults), CLUSTER)
    text = str(caught.value)
    assert text.startswith("a schedule must break no law, this one breaks 25; none of it was started.")
    assert "- 't0' is on device 'n9:0', which the cluster does not have.\n" in text
    assert text.endswith("- and 5 more")


def test_a_fault_planted_anywhere_in_a_full_schedule_is_found() -> None:
    random_ = random.Random(0)
    devices = [device for device in CLUSTER.devices if device.kind == "cpu"]
    full = [
        placement(f"{device.name}@{turn}", on=(device.name,), start=5.0 * turn)
        for device in devices
        for turn in range(20)
    ]
    assert found(*full) == []
    for _ in range(50):
        planted = list(full)
        index = random_.randrange(len(planted))
        planted[index] = dataclasses.replace(planted[index], start_seconds=planted[index].start_seconds + 2.5)
        if planted[index].start_seconds < 95.0:  # what runs last has room behind it
            assert len(found(*planted)) == 1


def test_deadlines_are_checked_where_they_are_given() -> None:
    gang = Option(families=("f", "g"), technique="fuse", kind="cpu", count=1, step_seconds=(1.0, 1.0))
    both = Placement(
        tasks=("a", "b"), steps=(5, 9), option=gang, devices=("n0:0",), start_seconds=1.0, duration_seconds=9.0
    )
    schedule, cluster = Schedule(placements=(both,)), Cluster.uniform(Kind(name="cpu", processor="cpu"))
    assert violations(schedule, cluster) == []
    # In a gang the shorter one ends before the other.
    assert violations(schedule, cluster, deadlines={"a": 6.0, "b": 10.0, "c": 0.0}) == []
    assert violations(schedule, cluster, deadlines={"a": 5.9, "b": 9.0}) == [
        "'a' must have ended by 5.9 s, its deadline, found an end at 6 s.",
        "'b' must have ended by 9 s, its deadline, found an end at 10 s.",
    ]
