"""Which trials are run, and beside which, on a virtual clock."""

import dataclasses

import pytest

from dovetail.control import Controller
from dovetail.control.measuring.measuring import PATIENCE_SECONDS
from dovetail.engines import Order, World
from dovetail.store import Store
from dovetail.vocabulary import Fingerprint, Profile, StageProfile
from tests.control.simulations import (
    Faults,
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    statuses,
    task,
    workload,
    world,
)

SECONDS = {"small": 0.004, "middle": 0.02, "large": 0.05}


def profile(family: str, kind: str, count: int) -> Profile:
    return Profile(family=family, kind=kind, count=count, step_seconds=SECONDS[family] / count**0.1, peak_bytes=1 << 30)


def otherwise(technique: str, family: str, kind: str, count: int) -> Profile:
    """Fused, four small tasks take twice as long as one."""
    return Profile(
        family=family,
        kind=kind,
        count=count,
        technique=technique,
        step_seconds=2 * SECONDS[family],
        peak_bytes=2 << 30,
        knobs={"members": 4},
    )


@pytest.fixture
def engine() -> RiggedEngine:
    tasks = World(fingerprint=lambda task: Fingerprint(family=task.program.function), profile=profile)
    tasks.otherwise = otherwise
    engine = RiggedEngine(tasks)
    small = [task(f"small {n}", family="small", steps=40_000) for n in range(4)]
    others = [task(f"{family} {n}", family=family, steps=3_600) for family in ("middle", "large") for n in range(2)]
    found = controller(workload(*small, *others), Store(None, write=True), on=cluster(2), engine=engine)
    found.reconcile()
    found.measure()
    engine.store = found.store
    return engine


def test_only_what_could_shorten_the_plan_is_tried(engine: RiggedEngine) -> None:
    tried = [(order.family, order.technique, len(order.devices)) for order in engine.orders if order.family]
    alone = [("small", "resident", 1), ("middle", "resident", 1), ("large", "resident", 1)]
    assert tried == [*alone, ("small", "fuse", 1)]


def test_what_a_device_could_measure_does_not_wait_for_another_family(engine: RiggedEngine) -> None:
    ends = {event.profile.technique: event.at_seconds for event in events_of(engine.store, "measured")}
    assert ends["fuse"] == ends["resident"]


def carry_out_with_bad(faults: Faults, *, devices: int = 2) -> tuple[Controller, RiggedEngine]:
    """Four good tasks and two of programs of their own whose workers may die."""
    engine = RiggedEngine(world(), faults)
    tasks = [*(task(f"bad {n}", family=f"bad{n}") for n in range(2)), *(task(f"good {n}") for n in range(4))]
    found = carry_out(controller(workload(*tasks), Store(None, write=True), on=cluster(devices), engine=engine))
    return found, engine


def is_bad(order: Order) -> bool:
    return order.purpose == "measure" and order.family.startswith("bad")


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_program_whose_trial_dies_twice_in_the_same_way_is_set_aside(devices: int) -> None:
    found, engine = carry_out_with_bad(Faults(killed=is_bad, ending="SIGSEGV"), devices=devices)
    assert statuses(found) == {"bad 0": "failed", "bad 1": "failed", **{f"good {n}": "finished" for n in range(4)}}
    assert sum(map(is_bad, engine.orders)) == 4  # twice each, on one device
    reasons = {one.reason for one in found.progress.values() if one.status == "failed"}
    assert all("its program ended its worker 2 times in the same way: its worker died" in each for each in reasons)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_good_tasks_start_while_bad_ones_are_tried_again(devices: int) -> None:
    found, _ = carry_out_with_bad(Faults(killed=is_bad), devices=devices)
    losses = [event.at_seconds for event in events_of(found.store, "lost")]
    assert len(losses) == 2 * (1 + 3)  # once and as many retries as there are, on one device alone
    first = min(event.at_seconds for event in events_of(found.store, "started"))
    assert first <= sorted(losses)[2]


def test_what_is_lost_once_while_it_is_measured_is_trained() -> None:
    dead: list[str] = []

    def once(order: Order) -> bool:
        doomed = is_bad(order) and order.family not in dead
        dead.extend([order.family] if doomed else [])
        return doomed

    found, _ = carry_out_with_bad(Faults(killed=once, ending="exit 1"))
    assert set(statuses(found).values()) == {"finished"}


def test_a_program_that_dies_while_it_is_built_keeps_nobody_waiting() -> None:
    def builds_bad(order: Order) -> bool:
        return order.purpose == "fingerprint" and any("bad" in member.task.name for member in order.members[:1])

    found, engine = carry_out_with_bad(Faults(killed=builds_bad, ending="exit 1"))
    assert statuses(found) == {"bad 0": "failed", "bad 1": "failed", **{f"good {n}": "finished" for n in range(4)}}
    assert len([order for order in engine.orders if builds_bad(order)]) <= 2 * 2


def test_where_every_program_is_bad_all_fail_and_the_run_ends() -> None:
    engine = RiggedEngine(world(), Faults(killed=is_bad, ending="exit 1"))
    tasks = [task(f"bad {n}", family=f"bad{n}") for n in range(3)]
    found = carry_out(controller(workload(*tasks), Store(None, write=True), engine=engine))
    assert set(statuses(found).values()) == {"failed"}
    assert not any(plan.schedule.placements for _, plan in found.plans)


def test_families_of_many_tasks_are_tried_before_those_of_few() -> None:
    engine = RiggedEngine(world())
    tasks = [*(task(f"single {n}", family=f"single{n}") for n in range(3)), *(task(f"many {n}") for n in range(4))]
    carry_out(controller(workload(*tasks), Store(None, write=True), on=cluster(1), engine=engine))
    tried = [order.family for order in engine.orders if order.purpose == "measure"]
    assert tried == ["f", "single0", "single1", "single2"]


def test_good_tasks_start_beside_a_trial_that_hangs() -> None:
    slow = world()
    engine = RiggedEngine(slow)

    def start(order: Order) -> None:
        slow.trial_seconds = 1e6 if is_bad(order) else 1.0
        RiggedEngine.start(engine, order)

    engine.start = start  # type: ignore[method-assign]
    tasks = [task("bad", family="bad"), *(task(f"good {n}") for n in range(3))]
    found = carry_out(controller(workload(*tasks), Store(None, write=True), on=cluster(2), engine=engine))
    ends = {found.tasks[event.task].name: event.at_seconds for event in events_of(found.store, "finished")}
    assert max(ends[f"good {n}"] for n in range(3)) < 1e6 < ends["bad"]
    assert min(event.at_seconds for event in events_of(found.store, "started")) == pytest.approx(PATIENCE_SECONDS)


def test_what_is_measured_and_cancelled_is_stopped_at_once() -> None:
    engine = RiggedEngine(world())
    stopped: list[str] = []

    def stop(name: str, *, reason: str, save: bool = True) -> None:
        stopped.append(f"{reason}, {'saved' if save else 'at once'}")
        RiggedEngine.stop(engine, name, reason=reason, save=save)

    def observe(found: Controller) -> None:
        if any(order.family == "bad" for order in engine.orders) and "bad" in statuses(found):
            found.post("cancel", task="bad")

    engine.stop = stop  # type: ignore[method-assign]
    tasks = [task("bad", family="bad"), task("good")]
    found = controller(workload(*tasks), Store(None, write=True), on=cluster(2), engine=engine, observe=observe)
    assert statuses(carry_out(found)) == {"bad": "cancelled", "good": "finished"}
    assert set(stopped) <= {"cancelled, at once"}


def test_what_killed_its_worker_in_an_earlier_run_is_tried_again() -> None:
    store, tasks = Store(None, write=True), [task("bad", family="bad0"), task("good")]
    first = RiggedEngine(world(), Faults(killed=is_bad, ending="SIGSEGV"))
    assert statuses(carry_out(controller(workload(*tasks), store, engine=first)))["bad"] == "failed"
    again = carry_out(controller(workload(*tasks), store, engine=RiggedEngine(world())))
    assert set(statuses(again).values()) == {"finished"}


def test_orders_carry_what_was_measured_of_a_feed() -> None:
    stage = StageProfile(name="read", worker="thread", service_seconds=1e-3)

    def fed(family: str, kind: str, count: int) -> Profile:
        found = profile(family, kind, count)
        waits = found.step_seconds / 4
        return dataclasses.replace(found, waits_seconds=waits, feed=(stage,) if family == "small" else ())

    engine = RiggedEngine(World(fingerprint=lambda task: Fingerprint(family=task.program.function), profile=fed))
    tasks = [task("one", family="small", steps=100), task("other", family="large", steps=100)]
    carry_out(controller(workload(*tasks), Store(None, write=True), on=cluster(2), engine=engine))
    carried = {
        member.task.name: member.feed for order in engine.orders if order.purpose == "train" for member in order.members
    }
    assert carried == {"one": (stage,), "other": ()}
    # What a step takes beyond waiting, by the option that is ordered: its feed is planned for that.
    (order,) = (each for each in engine.orders if each.purpose == "train" and each.members[0].task.name == "one")
    measured = fed("small", "cpu", len(order.devices))
    assert order.members[0].computing_seconds == pytest.approx(0.75 * measured.step_seconds)
