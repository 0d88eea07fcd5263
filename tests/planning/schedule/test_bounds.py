"""Lower bounds of problems whose best schedule is known. That bounds hold in general is in test_listing.py."""

import pytest

from dovetail.planning import Problem, lower_bound
from dovetail.vocabulary import Cluster, Device, Kind, Node, Option

from ..problems import CPU, family, option, placement

FOUR = Cluster.uniform(CPU, devices_per_node=4)


def test_the_longest_task_at_its_fastest() -> None:
    offered = (option(1, seconds=1.0), option(4, seconds=0.5))
    assert lower_bound(Problem(cluster=FOUR, families=(family(a=100, b=1),), options=offered)) == pytest.approx(
        50.25, rel=1e-3
    )
    assert lower_bound(Problem(cluster=FOUR, families=(family(a=100),), options=offered)) == 50.0


def test_options_too_slow_for_the_target_do_not_count_for_the_area() -> None:
    # Frugal tasks take 100 s; any earlier end needs both to be wide, one after the other.
    offered = (option(1, seconds=1.0), option(4, seconds=0.4))
    bound = lower_bound(Problem(cluster=FOUR, families=(family(a=100, b=100),), options=offered))
    assert bound == pytest.approx(80.0, rel=1e-3)
    assert bound <= 80.0


def test_what_runs_takes_its_part_of_the_devices() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=2)
    running = (placement("old", on=("n0:0",), start=-5.0, seconds=15.0),)
    many = family(**{f"t{i}": 5 for i in range(6)})
    # Twenty seconds on each device, ten of which the first gives to what runs.
    assert lower_bound(Problem(cluster=cluster, families=(many,), options=(option(),), running=running)) == 20.0
    alone = Problem(cluster=cluster, families=(family(a=5),), options=(option(2),), running=running)
    assert lower_bound(alone) == 15.0


def test_memory_that_is_short_counts() -> None:
    cluster = Cluster.uniform(CPU, devices_per_node=4, memory_bytes=10)
    tasks = family(a=10, b=10, c=10, d=10)
    assert lower_bound(Problem(cluster=cluster, families=(tasks,), options=(option(host_bytes=5),))) == 20.0


def test_families_bound_to_one_kind_are_held_to_its_devices() -> None:
    kinds = (Kind(name="fast", processor="cuda"), Kind(name="slow", processor="cuda"))
    devices = tuple(Device(name=f"n0:{i}", kind="fast" if i == 0 else "slow", node="n0", index=i) for i in range(5))
    cluster = Cluster(kinds=kinds, nodes=(Node(name="n0", cores=8, memory_bytes=8),), devices=devices)
    tasks = (family("f", a=10, b=10), family("g", c=1))
    offered = (option(kind="fast"), option(family="g", kind="slow"), option(family="g", kind="fast"))
    assert lower_bound(Problem(cluster=cluster, families=tasks, options=offered)) == 20.0


def test_a_gang_shares_its_devices_among_its_members() -> None:
    gang = Option(families=("f", "g"), technique="fuse", kind="cpu", count=1, step_seconds=(1.0, 1.0))
    problem = Problem(cluster=Cluster.uniform(CPU), families=(family("f", a=10), family("g", b=10)), options=(gang,))
    assert lower_bound(problem) == 10.0


def test_nothing_to_do_takes_no_time() -> None:
    assert lower_bound(Problem(cluster=FOUR, families=(family(done=0),), options=(option(),))) == 0.0
