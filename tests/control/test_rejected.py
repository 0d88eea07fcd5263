"""What a trial found not to fit: other options take its place, and only where none is left does a task fail."""

from dovetail.control import Controller
from dovetail.control.state.snapshot import Waiting, snapshot
from dovetail.engines import SimulatedEngine, World
from dovetail.planning import PLANNERS, check
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Fingerprint, Kind, LayerProfile, Link, Profile, Rejection
from tests.control.simulations import task, workload

SMALL = Kind(name="small", processor="cuda", memory_bytes=8 << 30)
LARGE = Kind(name="large", processor="cuda", memory_bytes=80 << 30)


def resident(family, kind, count):
    if kind == "small" and family == "big":
        reason = "ran out of memory in its trial."
        return Rejection(families=(family,), technique="resident", kind=kind, count=count, reason=reason)
    return Profile(family=family, kind=kind, count=count, step_seconds=1.0, peak_bytes=2 << 30)


def spilled(family, kind, count):
    return Profile(
        family=family,
        kind=kind,
        count=count,
        technique="spill",
        step_seconds=3.0,
        peak_bytes=7 << 30,
        host_bytes=9 << 30,
    )


def refused(family, kind, count):
    reason = "needs at least 9.0 GiB on the device; the budget is 8.0 GiB."
    return Rejection(families=(family,), technique="spill", kind=kind, count=count, reason=reason)


def carried_out(tasks, *, spill, store=None, devices=1):
    cluster = Cluster.uniform(SMALL, devices_per_node=devices, cores=8)

    def otherwise(technique, family, kind, count):
        if technique == "spill":
            return spill(family, kind, count)
        return Rejection(families=(family,), technique=technique, kind=kind, count=count, reason="it is not for that.")

    world = World(
        fingerprint=lambda task: Fingerprint(family=task.program.function), profile=resident, otherwise=otherwise
    )
    controller = Controller(
        workload(*tasks),
        cluster=cluster,
        store=store or Store(None, write=True),
        engine=SimulatedEngine(world, kind_of=lambda device: cluster.device(device).kind),
    )
    controller.reconcile()
    controller.measure()
    controller.run()
    return controller


def statuses(controller):
    return {controller.tasks[identity].name: one.status for identity, one in controller.progress.items()}


def test_a_task_too_large_to_be_resident_is_spilled():
    controller = carried_out([task("a", family="big"), task("b", family="other")], spill=spilled)
    assert statuses(controller) == {"a": "finished", "b": "finished"}
    (_, plan) = controller.plans[0]
    assert sorted(placement.option.technique for placement in plan.schedule.placements) == ["resident", "spill"]


def test_a_task_that_fits_in_no_way_fails_with_every_reason_and_the_others_go_on():
    controller = carried_out([task("a", family="big"), task("b", family="other")], spill=refused)
    assert statuses(controller) == {"a": "failed", "b": "finished"}
    (reason,) = [one.reason for one in controller.progress.values() if one.status == "failed"]
    assert "ran out of memory in its trial" in reason
    assert "needs at least 9.0 GiB" in reason


def test_what_was_rejected_is_known_after_a_restart(tmp_path):
    with Store(tmp_path, write=True) as store:
        carried_out([task("a", family="big", steps=5)], spill=spilled, store=store)
        before = [event.kind for _, event in store.events()]
        carried_out([task("a", family="big", steps=9)], spill=spilled, store=store)
        after = [event.kind for _, event in store.events()][len(before) :]
    assert before.count("rejected") == 1
    assert after.count("rejected") == after.count("measured") == 0


def layered(family):
    layers = tuple(
        LayerProfile(
            name=f"blocks.{n}",
            operation="Block",
            forward_seconds=0.002,
            backward_seconds=0.004,
            parameter_bytes=200 << 20,
            activation_bytes=1 << 20,
        )
        for n in range(24)
    )
    return Profile(
        family=family,
        kind="large",
        count=1,
        step_seconds=0.2,
        peak_bytes=100 << 30,
        parameter_bytes=24 * (200 << 20),
        optimizer_bytes=48 * (200 << 20),
        layers=layers,
        clips=True,
        precision="bf16-pure",
    )


def test_gangs_reach_planners_and_the_list_planner_places_around_them():
    cluster = Cluster.uniform(LARGE, cores=16, memory_bytes=500 << 30)
    links = (
        Link(source="host", target="large", bytes_per_second=50e9),
        Link(source="large", target="host", bytes_per_second=50e9),
    )
    cluster = Cluster(kinds=cluster.kinds, nodes=cluster.nodes, devices=cluster.devices, links=links)
    waiting = [Waiting(task=f"t{n}", family="f", steps=10, count=n % 2) for n in range(4)]
    problem = snapshot(waiting, profiles=[layered("f")], cluster=cluster)
    gangs = [option for option in problem.options if len(option.families) > 1]
    assert {name for option in gangs for name in option.families} <= {family.name for family in problem.families}
    assert gangs
    plan = PLANNERS["list"](problem)
    check(plan.schedule, cluster)
