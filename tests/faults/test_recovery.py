"""What follows from faults, in the real loop on the simulated engine: pauses between tries, options that are tried no
more, and who is set aside."""

import dataclasses
import math

import pytest

from dovetail.control import Controller, Settings
from dovetail.control.state.recovery import pause_seconds
from dovetail.engines import MemberOrder, Order, SimulatedEngine, World
from dovetail.planning import PLANNERS
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Fingerprint, Kind, Profile, Rejection
from dovetail.vocabulary.events import AttemptLost, TaskFailed
from tests.control.simulations import (
    Faults,
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    same_moment,
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
    assert [event.reason for event in lost] == ["its worker died"] * 4
    assert [event.again_in_seconds for event in lost] == [0.0, 1.0, 2.0, 4.0]
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
    assert (rejected.rejection.technique, rejected.rejection.count) == ("resident", 2)
    assert rejected.rejection.reason.startswith("its trial was lost each time: a task may be lost 1 times in a row")


CARD = Kind(name="card", processor="cuda", memory_bytes=8 << 30)


class Tight(SimulatedEngine):
    """Tasks that are resident run out of memory in their first step of training, which no trial showed, unless their
    batches are in as many parts as they need, or activations are computed again where that helps."""

    needed_parts = math.inf
    again_helps = False

    def wait(self):
        def failing(event):
            technique, parts, again = self.runs.get(event.task, ("", 0, False))
            is_tight = technique == "resident" and parts < self.needed_parts and not (again and self.again_helps)
            if event.kind in ("finished", "saved") and event.attempt and is_tight:
                data = {"reason": "CUDA out of memory", "cause": "memory", "log": ""}
                return [] if event.kind == "saved" else [same_moment(TaskFailed, event, **data)]
            return [event]

        return [each for event in super().wait() for each in failing(event)]

    runs: dict[str, tuple[str, int, bool]]

    def start(self, order):
        if order.purpose == "train":
            how = order.technique, order.knobs.get("microbatches", 1), order.knobs.get("recompute", False)
            self.runs |= {member.task.identity: how for member in order.members}
        super().start(order)


def tight(
    store, *, spills: bool, parts: float = math.inf, again: bool = False, exact: bool = False, retries: int = 3
) -> Controller:
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
    engine.runs, engine.needed_parts, engine.again_helps = {}, parts, again
    return Controller(
        workload(task("a", steps=5)),
        cluster=on,
        store=store,
        engine=engine,
        settings=Settings(exact=exact, retries=retries),
        planner=PLANNERS["list"],
    )


def steps_down(store):
    """The techniques that were started, with the number of parts of each batch."""
    options = [event.option for event in events_of(store, "started")]
    again = [" again" if option.knobs.get("recompute") else "" for option in options]
    parts = [option.knobs.get("microbatches", 1) for option in options]
    return [(option.technique + more, n) for option, more, n in zip(options, again, parts, strict=True)]


def test_running_out_of_memory_takes_the_same_batches_in_more_parts(store):
    found = carry_out(tight(store, spills=True, parts=4, retries=0))  # it is the option's fault: no budget is used up
    assert statuses(found) == {"a": "finished"}
    assert steps_down(store) == [("resident", 1), ("resident", 2), ("resident", 4)]
    said = [event.message for event in events_of(store, "divided")]
    assert said == [
        f"ran out of memory: from now on it may be trained with each batch, as large as before, in {parts} parts"
        for parts in (2, 4)
    ]
    reasons = [event.because for event in events_of(store, "planned")]
    assert reasons[1:] == ["a worker was lost"] * 2


def test_parts_are_known_after_a_restart_and_gone_once_they_are_refused(store):
    carry_out(tight(store, spills=True, parts=4))
    again = tight(store, spills=True, parts=4)
    ((profile, knobs),) = again._ledger.divided()
    assert (profile.technique, knobs) == ("resident", {"microbatches": 4})
    (last,) = events_of(store, "finished")
    data = {"reason": "its loss is no mean", "cause": "refused", "log": ""}
    order = Order(
        name="o",
        purpose="train",
        members=(MemberOrder(task=task("a", steps=5), attempt=last.attempt),),
        devices=(again.cluster.devices[0].name,),
        technique="resident",
        knobs={"microbatches": 4},
    )
    refused = same_moment(TaskFailed, last, **data)
    again._ledger.record(again._state.recovery.accept(refused, order))
    assert [knobs for _, knobs in again._ledger.divided()] == [{"recompute": True}]  # whole batches, then
    order = dataclasses.replace(order, knobs={"recompute": True})
    again._ledger.record(again._state.recovery.accept(refused, order))
    assert again._ledger.divided() == []


def test_where_no_parts_help_something_else_is_tried_at_the_same_batch(store):
    found = carry_out(tight(store, spills=True))
    assert statuses(found) == {"a": "finished"}
    assert steps_down(store) == [*(("resident", 1 << n) for n in range(7)), ("resident again", 64), ("spill", 1)]
    reasons = [e.rejection.reason for e in events_of(store, "rejected") if e.rejection.technique == "resident"]
    assert reasons[0] == "ran out of memory while training: CUDA out of memory"
    assert reasons[-1] == (
        "ran out of memory while training, each batch, as large as before, in 64 parts, activations computed again in "
        "backward: CUDA out of memory"
    )


def test_where_bits_count_batches_stay_whole(store):
    carry_out(tight(store, spills=True, exact=True))
    assert steps_down(store) == [("resident", 1), ("resident again", 1), ("spill", 1)]


def test_computing_activations_again_comes_before_other_techniques(store):
    found = carry_out(tight(store, spills=True, exact=True, again=True, retries=0))
    assert statuses(found) == {"a": "finished"}
    assert steps_down(store) == [("resident", 1), ("resident again", 1)]
    (said,) = events_of(store, "divided")
    assert said.message.endswith("with each batch, as large as before, activations computed again in backward")


def test_a_row_that_does_not_fit_is_not_taken_in_more_parts(store):
    again = tight(store, spills=True)
    carry_out(again)
    (last,) = events_of(store, "finished")
    order = Order(
        name="o",
        purpose="train",
        members=(MemberOrder(task=task("a", steps=5), attempt=last.attempt),),
        devices=(again.cluster.devices[0].name,),
        technique="resident",
        knobs={"microbatches": 4},
    )
    data = {"reason": "one row", "cause": "memory", "smallest": True, "log": ""}
    again._ledger.record(again._state.recovery.accept(same_moment(TaskFailed, last, **data), order))
    assert [knobs for _, knobs in again._ledger.divided()] == [{"microbatches": 4, "recompute": True}]


def test_where_nothing_is_left_the_task_fails_with_every_reason(store):
    found = carry_out(tight(store, spills=False))
    assert statuses(found) == {"a": "failed"}
    (one,) = found.progress.values()
    assert "ran out of memory while training, each batch, as large as before, in 64 parts" in one.reason
    assert "not for that." in one.reason


def test_what_was_found_not_to_fit_is_known_after_a_restart(tmp_path):
    with Store(tmp_path, write=True) as store:
        carry_out(tight(store, spills=True))
        assert [profile.technique for profile in tight(store, spills=True)._ledger.profiles()] == ["spill"]


class Infected(RiggedEngine):
    """Whoever runs in one order with the task `bad` is lost with it."""

    def _ended(self, event):
        last = next(o for o in reversed(self.orders) if event.task in {m.task.identity for m in o.members})
        if "bad" in {member.task.name for member in last.members}:
            yield same_moment(AttemptLost, event, reason="its worker died")
        else:
            yield from super()._ended(event)


def infected(store, *, retries: int) -> Controller:
    def alone(family, kind, count):
        return Profile(family=family, kind=kind, count=count, step_seconds=1.0, peak_bytes=1 << 30)

    def otherwise(technique, family, kind, count):
        if technique == "fuse":
            return dataclasses.replace(alone(family, kind, count), technique="fuse", knobs={"members": 4})
        return Rejection(families=(family,), technique=technique, kind=kind, count=count, reason="not for that.")

    found = World(fingerprint=lambda task: Fingerprint(family="f"), profile=alone, otherwise=otherwise)
    what = workload(*(task(name) for name in ("a", "b", "c", "bad")))
    engine = Infected(found, kind_of=lambda device: "card")
    return controller(what, store, on=Cluster.uniform(CARD, cores=8), engine=engine, retries=retries)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_after_losses_of_a_gang_each_is_tried_alone_and_only_the_guilty_is_set_aside(store, retries):
    found = carry_out(infected(store, retries=retries))
    assert statuses(found) == {"a": "finished", "b": "finished", "c": "finished", "bad": "failed"}
    techniques = [event.option.technique for event in events_of(store, "started", task("a"))]
    assert techniques == ["fuse", "fuse", "resident"]
    alone = [event for event in events_of(store, "started", task("bad")) if event.attempt > 2]
    assert [event.option.technique for event in alone] == ["resident"] * (retries + 1)
    said = {event.message for event in events_of(store, "warned")}
    assert said == {"lost 2 times in a row together with others: tried alone from now on, to see whose fault it is"}


def test_a_damaged_store_is_told_of(tmp_path):
    with Store(tmp_path, write=True) as store:
        carry_out(controller(workload(*OTHERS), store))
    path = tmp_path / "store.sqlite"
    path.write_bytes(path.read_bytes().replace(b"other a", b"other b"))
    with Store(tmp_path, write=True) as store:
        found = carry_out(controller(workload(*OTHERS), store))
        assert set(statuses(found).values()) == {"finished"}
        (warned,) = events_of(store, "warned")
    assert warned.message.startswith("the store was damaged and set aside as damaged-store.sqlite: row ")
