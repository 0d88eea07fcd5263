"""A feed's cores are weighed with everything else: against other tasks of the node, and against the host's updates."""

import dataclasses

import pytest

from dovetail.planning.checker import check
from dovetail.planning.options import derive_options
from dovetail.planning.options.feed_cores import with_feed_cores
from dovetail.planning.problem import Problem
from dovetail.planning.schedule.plan import plan
from dovetail.planning.techniques import Evidence, spill
from dovetail.vocabulary import Cluster, Kind, LayerProfile, Profile, StageProfile
from dovetail.vocabulary.feeds import feed_bytes
from tests.planning.problems import family

H200 = Kind(name="h200", processor="cuda", memory_bytes=140 << 30)


def decode(seconds, name="decode"):
    return StageProfile(name=name, worker="process", service_seconds=seconds, cpu_seconds=seconds)


def cluster(devices=1, cores=16):
    return Cluster.uniform(H200, devices_per_node=devices, cores=cores, memory_bytes=128 << 30)


def reading(name, *, step, read):
    return Profile(family=name, kind="h200", count=1, step_seconds=step, peak_bytes=1 << 30, feed=(decode(read),))


def test_no_more_cores_are_offered_than_make_steps_faster():
    options, _ = derive_options([reading("f", step=0.01, read=0.035)], cluster())
    found = {each.feed_cores: (each.cores, each.step_seconds[0]) for each in options}
    assert found == {1: (2, 0.035), 2: (3, 0.0175), 3: (4, pytest.approx(0.035 / 3)), 4: (5, 0.01)}
    plain, _ = derive_options([dataclasses.replace(reading("f", step=0.01, read=0.035), feed=())], cluster())
    assert all(each.host_bytes - plain[0].host_bytes == feed_bytes(each.feed_cores) for each in options)


def test_a_feed_that_holds_the_lock_makes_steps_longer_by_that():
    """Kernels are handed over by a thread that needs the lock, too; what a process does holds none."""
    held = dataclasses.replace(decode(0.035), worker="thread", lock_seconds=0.004)
    profile = dataclasses.replace(reading("f", step=0.01, read=0.035), feed=(held,))
    options, _ = derive_options([profile], cluster())
    fastest = min(each.step_seconds[0] for each in options)
    assert fastest == pytest.approx(0.014)
    both = dataclasses.replace(profile, feed=(held, decode(0.036)))
    options, _ = derive_options([both], cluster())
    assert min(each.step_seconds[0] for each in options) == pytest.approx(0.01)


def test_on_a_cpu_the_cores_of_a_task_are_its_devices():
    profile = dataclasses.replace(reading("f", step=0.01, read=0.035), kind="cpu")
    options, _ = derive_options([profile], Cluster.uniform(Kind(name="cpu", processor="cpu"), memory_bytes=8 << 30))
    assert [(each.feed_cores, each.cores) for each in options] == [(0, 1)]


def spilled(cores=16, read=0.0):
    layers = tuple(
        LayerProfile(
            name=str(n), operation="Linear", forward_seconds=0.01, backward_seconds=0.02, parameter_bytes=1 << 30
        )
        for n in range(12)
    )
    profile = Profile(
        family="large",
        kind="h200",
        count=1,
        step_seconds=0.4,
        peak_bytes=49 << 30,
        layers=layers,
        parameter_bytes=12 << 30,
        optimizer_bytes=24 << 30,
        feed=(decode(read),) if read else (),
    )
    evidence = Evidence(cluster=cluster(cores=cores), profiles=(profile,))
    room = spill.SpillRoom.of(evidence.cluster, kind=H200)
    return evidence, spill.predict([profile], room=room, device_bytes=24 << 30, recompute=True)


def test_what_a_feed_has_is_taken_from_the_hosts_updates():
    evidence, option = spilled(read=8.0)
    found = list(with_feed_cores(option, evidence))
    assert {each.cores for each in found} == {option.cores}
    for each in found:
        slowed = spill.slowed(option, evidence, option.cores - each.feed_cores)
        assert each.step_seconds[0] == pytest.approx(max(option.step_seconds[0] * slowed, 8.0 / each.feed_cores))
    best = min(found, key=lambda each: each.step_seconds)
    # Neither all to the one nor all to the other.
    assert 1 < best.feed_cores < 15
    assert best.step_seconds[0] < min(8.0, option.step_seconds[0] * spill.slowed(option, evidence, 1))


def test_fewer_cores_for_updates_never_make_a_step_faster():
    evidence, option = spilled()
    slowed = [spill.slowed(option, evidence, cores) for cores in (16, 8, 4, 2, 1)]
    assert slowed[0] == pytest.approx(1.0)
    assert slowed == sorted(slowed)
    assert slowed[-1] > 2


def test_two_tasks_on_one_node_share_its_cores_by_what_they_need():
    """One reads much, the other little: with half of the cores each, the first would wait."""
    where = cluster(devices=2, cores=16)
    options, _ = derive_options([reading("much", step=0.01, read=0.12), reading("little", step=0.01, read=0.02)], where)
    problem = Problem(families=(family("much", a=1000), family("little", b=1000)), cluster=where, options=options)
    found = plan(problem)
    check(found.schedule, where)
    cores = {each.option.families[0]: each.option.feed_cores for each in found.schedule.placements}
    assert cores["much"] > 10
    assert cores["little"] < 4
