"""What follows from faults, in the real loop on the simulated engine: pauses between tries, options that are tried no
more, and who is set aside."""

import dataclasses

import pytest

from dovetail.control import Controller, Settings
from dovetail.control.recovery import pause_seconds
from dovetail.engines import SimulatedEngine, World
from dovetail.plan import PLANNERS
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Fingerprint, Kind, Profile, Rejection
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

OTHERS = [task("other a"), task("other b")]


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_tries_are_further_and_further_apart_and_the_reason_is_on_record(store):
    unlucky = task("unlucky")
    faults = Faults(outcome=lambda name, attempt, until: 0 if name == "unlucky" and attempt < 5 else None)
    found = carry_out(
        controller(workload(unlucky), store, on=cluster(1), engine=RiggedEngine(world(), faults), retries=9)
    )
    assert statuses(found) == {"unlucky": "finished"}
    lost = events_of(store, "lost", unlucky)
    started = events_of(store, "started", unlucky)
    assert [event.data["reason"] for event in lost] == ["its worker died"] * 4
    assert [event.data.get("again_in_seconds", 0.0) for event in lost] == [0.0, 1.0, 2.0, 4.0]
    waited = [after.at_seconds - before.at_seconds for before, after in zip(lost, started[1:], strict=True)]
    assert waited == pytest.approx([pause_seconds(n) for n in (1, 2, 3, 4)], abs=1e-6)


def test_whoever_waits_holds_up_nobody(store):
    unlucky = task("unlucky", steps=10)
    faults = Faults(outcome=lambda name, attempt, until: 0 if name == "unlucky" else None)
    what = workload(unlucky, *OTHERS)
    found = carry_out(controller(what, store, on=cluster(1), engine=RiggedEngine(world(), faults), retries=2))
    assert statuses(found) == {"unlucky": "failed", "other a": "finished", "other b": "finished"}


def test_a_trial_that_is_lost_each_time_costs_its_option_and_not_the_task(store):
    faults = Faults(killed=lambda order: order.purpose == "measure" and len(order.devices) == 2)
    found = controller(workload(*OTHERS), store, engine=RiggedEngine(world(), faults), retries=1)
    found.reconcile()
    found.measure(everything=True)
    found.run()
    assert set(statuses(found).values()) == {"finished"}
    (rejected,) = events_of(store, "rejected")
    assert (rejected.data["technique"], rejected.data["count"]) == ("resident", 2)
    assert rejected.data["reason"].startswith("its trial was lost each time. a task may be lost 1 times in a row")


CARD = Kind(name="card", processor="cuda", memory_bytes=8 << 30)


class Tight(SimulatedEngine):
    """Tasks that are resident run out of memory in their first step of training, which no trial showed."""

    def wait(self):
        def failing(event):
            run = self.techniques.get(event.task)
            if event.kind in ("finished", "saved") and event.attempt and run == "resident":
                data = {"reason": "CUDA out of memory", "cause": "memory", "log": ""}
                return [] if event.kind == "saved" else [dataclasses.replace(event, kind="failed", data=data)]
            return [event]

        return [each for event in super().wait() for each in failing(event)]

    techniques: dict[str, str]

    def start(self, order):
        if order.purpose == "train":
            self.techniques |= {member.task.identity: order.technique for member in order.members}
        super().start(order)


def tight(store, *, spills: bool) -> Controller:
    def resident(family, kind, count):
        return Profile(family=family, kind=kind, count=count, step_seconds=1.0, peak_bytes=7 << 30)

    def otherwise(technique, family, kind, count):
        if technique == "spill" and spills:
            return Profile(
                family=family, kind=kind, count=count, technique="spill", step_seconds=3.0, peak_bytes=4 << 30
            )
        return Rejection(families=(family,), technique=technique, kind=kind, count=count, reason="not for that.")

    on = Cluster.uniform(CARD, cores=8)
    found = World(fingerprint=lambda task: Fingerprint(family="f"), profile=resident, otherwise=otherwise)
    engine = Tight(found, kind_of=lambda device: "card")
    engine.techniques = {}
    return Controller(
        workload(task("a", steps=5)),
        cluster=on,
        store=store,
        engine=engine,
        settings=Settings(),
        planner=PLANNERS["at once"],
    )


def test_running_out_of_memory_while_training_goes_down_to_what_fits_at_the_same_batch(store):
    found = carry_out(tight(store, spills=True))
    assert statuses(found) == {"a": "finished"}
    techniques = [event.data["option"]["technique"] for event in events_of(store, "started")]
    assert techniques == ["resident", "spill"]
    reasons = [e.data["reason"] for e in events_of(store, "rejected") if e.data["technique"] == "resident"]
    assert reasons == ["ran out of memory while training: CUDA out of memory"]


def test_where_nothing_is_left_the_task_fails_with_every_reason(store):
    found = carry_out(tight(store, spills=False))
    assert statuses(found) == {"a": "failed"}
    (one,) = found.progress.values()
    assert "ran out of memory while training: CUDA out of memory" in one.reason
    assert "not for that." in one.reason


def test_what_was_found_not_to_fit_is_known_after_a_restart(tmp_path):
    with Store(tmp_path, write=True) as store:
        carry_out(tight(store, spills=True))
        assert [profile.technique for profile in tight(store, spills=True)._ledger.profiles()] == ["spill"]


def test_a_damaged_store_is_told_of(tmp_path):
    with Store(tmp_path, write=True) as store:
        carry_out(controller(workload(*OTHERS), store))
    path = tmp_path / "store.sqlite"
    path.write_bytes(path.read_bytes().replace(b"other a", b"other b"))
    with Store(tmp_path, write=True) as store:
        found = carry_out(controller(workload(*OTHERS), store))
        assert set(statuses(found).values()) == {"finished"}
        (warned,) = events_of(store, "warned")
    assert warned.data["message"].startswith("the store was damaged and set aside as damaged-store.sqlite: row ")
