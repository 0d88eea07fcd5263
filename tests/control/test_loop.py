"""The loop on the simulated engine: what it does when all goes well and when something breaks."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import Controller
from dovetail.metrics.progress import ENDED
from dovetail.planning import check
from dovetail.store import Store
from dovetail.vocabulary import Event, Halving
from dovetail.vocabulary.events import CheckpointSaved, TaskFailed
from tests.control.simulations import (
    Faults,
    RiggedEngine,
    carry_out,
    cluster,
    controller,
    events_of,
    happened,
    hasty_planning,
    same_moment,
    statuses,
    task,
    workload,
    world,
)

OTHERS = [task("other a", steps=60), task("other b", steps=80, family="g")]


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def spans(store, record):
    return [(event.step, event.until) for event in events_of(store, "started", record)]


def finishing(what, store, **more):
    found = carry_out(controller(what, store, **more))
    check(happened(store), found.cluster)
    assert found.phase == "done"
    return found


# All is well


def test_every_task_runs_once_to_its_own_end(store):
    tasks = [task(f"t{n}", steps=10 * (n + 1), family="fg"[n % 2]) for n in range(7)]
    found = finishing(workload(*tasks), store, on=cluster(3))
    assert set(statuses(found).values()) == {"finished"}
    assert all(spans(store, one) == [(0, one.stop.steps)] for one in tasks)


def test_what_was_measured_once_is_not_measured_again(store):
    finishing(workload(*OTHERS), store)
    engine = RiggedEngine(world())
    finishing(workload(*OTHERS, task("new", family="f")), store, engine=engine)
    assert [order.purpose for order in engine.orders] == ["fingerprint", "train"]


def test_a_prediction_that_holds_leaves_the_plan_alone(store):
    found = finishing(workload(*(task(f"t{n}", steps=50 + n) for n in range(9))), store)
    assert len(found.plans) == 1


def test_drift_makes_a_new_plan_and_says_why(store):
    # Everything of one family takes four times as long as measured, so that one device runs dry early.
    tasks = [task(f"t{n}", steps=200 + 20 * n, family="fg"[n % 2]) for n in range(12)]
    engine = RiggedEngine(world(slowness=lambda order: 4.0 if order.members[0].task.program.function == "g" else 0.5))
    found = finishing(workload(*tasks), store, engine=engine)
    assert len(found.plans) > 1
    reasons = [event.because for event in events_of(store, "planned")]
    assert reasons[0] == "the run began"
    assert any(reason.startswith("a placement took ") for reason in reasons[1:])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_whatever_happens_everything_ends_and_no_law_is_broken(seed):
    chance = random.Random(seed)
    tasks = [task(f"t{n}", steps=chance.randrange(1, 300), family=chance.choice("fgh")) for n in range(12)]
    fates = {
        (name.name, attempt): chance.choices([None, 0, 1, "it broke"], [8, 2, 2, 1])[0]
        for name in tasks
        for attempt in range(1, 40)
    }
    faults = Faults(
        outcome=lambda name, attempt, until: fates.get((name, attempt)) if until > 1 else None,
        score=lambda name, step: float(int(name[1:]) * 7 % 5),
    )
    noise = random.Random(seed)
    engine = RiggedEngine(world(slowness=lambda order: noise.uniform(0.3, 3.0)), faults)
    with Store(None, write=True) as store, hasty_planning():
        found = finishing(
            workload(*tasks),
            store,
            on=cluster(chance.randrange(1, 4), nodes=chance.randrange(1, 3), memory_bytes=2 << 30),
            engine=engine,
        )
        for identity, one in found.progress.items():
            assert one.status in ("finished", "failed")
            if one.status == "finished":
                assert one.step == found.tasks[identity].stop.steps
        for record in tasks:
            attempts = [event.attempt for event in events_of(store, "started", record)]
            assert attempts == list(range(1, len(attempts) + 1))


# Something breaks


def test_a_task_that_is_lost_is_tried_again_from_its_last_save(store):
    unlucky = task("unlucky", steps=100)
    faults = Faults(outcome=lambda name, attempt, until: 30 * attempt if name == "unlucky" and attempt < 3 else None)
    found = finishing(workload(unlucky, *OTHERS), store, engine=RiggedEngine(world(), faults))
    assert set(statuses(found).values()) == {"finished"}
    assert spans(store, unlucky) == [(0, 100), (30, 100), (60, 100)]


def test_a_task_lost_too_often_in_a_row_fails_and_the_others_finish(store):
    unlucky = task("unlucky")
    faults = Faults(outcome=lambda name, attempt, until: 0 if name == "unlucky" else None)
    found = finishing(workload(unlucky, *OTHERS), store, engine=RiggedEngine(world(), faults), retries=2)
    assert statuses(found) == {"unlucky": "failed", "other a": "finished", "other b": "finished"}
    assert len(spans(store, unlucky)) == 3
    (failed,) = events_of(store, "failed", unlucky)
    assert failed.reason == (
        "a task may be lost 2 times in a row without anything newly saved; this was loss 3: its worker died"
    )
    assert failed.log == "the tail"


def test_losses_with_something_newly_saved_in_between_are_forgiven(store):
    unlucky = task("unlucky", steps=100)
    faults = Faults(outcome=lambda name, attempt, until: 10 * attempt if attempt < 9 else None)
    found = finishing(workload(unlucky), store, engine=RiggedEngine(world(), faults), retries=1)
    assert statuses(found) == {"unlucky": "finished"}


def test_a_failure_never_stops_the_others_and_is_not_tried_again_by_itself(store):
    bad = task("bad")
    faults = Faults(outcome=lambda name, attempt, until: "the loss was nan" if name == "bad" else None)
    found = finishing(workload(bad, *OTHERS), store, engine=RiggedEngine(world(), faults))
    assert statuses(found) == {"bad": "failed", "other a": "finished", "other b": "finished"}
    assert found.progress[bad.identity].reason == "the loss was nan"
    assert len(spans(store, bad)) == 1


def test_a_failed_task_is_tried_again_when_the_workload_is_run_again(store):
    bad = task("bad")
    faults = Faults(outcome=lambda name, attempt, until: "the loss was nan" if name == "bad" else None)
    finishing(workload(bad, *OTHERS), store, engine=RiggedEngine(world(), faults))
    found = finishing(workload(bad, *OTHERS), store)
    assert statuses(found)["bad"] == "finished"
    assert [len(spans(store, one)) for one in OTHERS] == [1, 1]


def test_what_a_stale_attempt_says_is_neither_believed_nor_kept(store):
    lazy = task("lazy", steps=100)

    def from_the_grave(event: Event) -> list[Event]:
        if event.attempt < 2:
            return []
        stale = dataclasses.replace(event, attempt=event.attempt - 1)
        return [
            same_moment(CheckpointSaved, stale, step=99),
            same_moment(TaskFailed, stale, reason="I am stale"),
        ]

    faults = Faults(outcome=lambda name, attempt, until: 40 if attempt < 3 else None, strangers=from_the_grave)
    found = finishing(workload(lazy), store, engine=RiggedEngine(world(), faults))
    assert statuses(found) == {"lazy": "finished"}
    assert events_of(store, "failed") == []
    assert [event.step for event in events_of(store, "saved")] == [40, 40, 100]


def test_what_fits_nowhere_fails_with_the_reason_while_the_others_run(store):
    huge = task("huge", family="huge")
    engine = RiggedEngine(world(peak_bytes=lambda family: 100 << 30 if family == "huge" else 1 << 30))
    found = finishing(workload(huge, *OTHERS), store, engine=engine)
    assert statuses(found) == {"huge": "failed", "other a": "finished", "other b": "finished"}
    reason = found.progress[huge.identity].reason
    assert reason.startswith("no option fits it: needs ")
    assert "the largest that could hold it has 64.0 GiB" in reason
    assert spans(store, huge) == []


def test_a_worker_that_dies_while_measuring_is_measured_again(store):
    deaths = []

    def killed(order):
        deaths.append(order) if order.purpose == "measure" else None
        return order.purpose == "measure" and len(deaths) < 3

    found = finishing(workload(*OTHERS), store, engine=RiggedEngine(world(), Faults(killed=killed)))
    assert set(statuses(found).values()) == {"finished"}


def test_a_program_that_kills_its_worker_when_built_takes_nobody_along(store):
    killer = task("killer", family="k")
    faults = Faults(killed=lambda order: any(member.task.name == "killer" for member in order.members))
    found = finishing(workload(killer, *OTHERS), store, on=cluster(1), engine=RiggedEngine(world(), faults), retries=1)
    assert statuses(found) == {"killer": "failed", "other a": "finished", "other b": "finished"}


# Commands


def once(when, command, **arguments):
    """An observer that posts a command the first time `when(controller)` holds."""
    posted = []

    def observe(found: Controller) -> None:
        if not posted and when(found):
            posted.append(command)
            found.post(command, **arguments)

    return observe


def test_a_pending_task_is_cancelled_and_never_starts(store):
    late = task("late", steps=1)  # the shortest comes last
    observe = once(lambda found: "finished" in statuses(found).values(), "cancel", task="late")
    found = finishing(workload(late, *OTHERS), store, on=cluster(1), observe=observe)
    assert statuses(found) == {"late": "cancelled", "other a": "finished", "other b": "finished"}
    assert spans(store, late) == []


def test_a_running_task_is_saved_and_cancelled(store):
    long = task("long", steps=1000)
    # Something else ends while it runs, at which the loop looks up.
    observe = once(lambda found: statuses(found)["other a"] == "finished", "cancel", task="long")
    found = finishing(workload(long, *OTHERS), store, observe=observe)
    assert statuses(found) == {"long": "cancelled", "other a": "finished", "other b": "finished"}
    (saved,) = events_of(store, "saved", long)
    (cancelled,) = events_of(store, "cancelled", long)
    assert 0 < saved.step == cancelled.step < 1000


def test_a_cancelled_task_stays_so_when_the_workload_is_run_again(store):
    observe = once(lambda found: "finished" in statuses(found).values(), "cancel", task="late")
    finishing(workload(task("late", steps=1), *OTHERS), store, on=cluster(1), observe=observe)
    assert statuses(finishing(workload(task("late", steps=1), *OTHERS), store))["late"] == "cancelled"


def test_a_task_is_cancelled_while_it_is_being_built(store):
    found = controller(workload(task("late"), *OTHERS), store, on=cluster(1))
    found.post("cancel", task="late")
    carry_out(found)
    assert statuses(found) == {"late": "cancelled", "other a": "finished", "other b": "finished"}


def test_a_task_lost_on_its_way_to_being_cancelled_is_not_started_again(store):
    class LosesWhatItStops(RiggedEngine):
        def stop(self, name, *, reason, save=True):
            super().stop(name, reason=reason, save=False)

    observe = once(lambda found: statuses(found)["other a"] == "finished", "cancel", task="long")
    found = finishing(
        workload(task("long", steps=1000), *OTHERS), store, engine=LosesWhatItStops(world()), observe=observe
    )
    assert statuses(found)["long"] == "cancelled"


def test_a_stop_saves_everything_and_the_next_run_goes_on_from_there(store):
    tasks = [task("long", steps=1000), *OTHERS]
    observe = once(lambda found: statuses(found)["other a"] == "finished", "stop", reason="enough")
    stopped = carry_out(controller(workload(*tasks), store, observe=observe))
    assert stopped.phase == "stopped"
    assert statuses(stopped)["long"] == "pending"
    step = stopped.progress[tasks[0].identity].saved_step
    assert 0 < step < 1000
    assert statuses(finishing(workload(*tasks), store))["long"] == "finished"
    assert spans(store, tasks[0]) == [(0, 1000), (step, 1000)]


def test_a_stop_while_measuring_ends_the_measuring(store):
    found = controller(workload(*OTHERS), store)
    found.post("stop", reason="enough")
    carry_out(found)
    assert found.phase == "stopped"
    assert events_of(store, "started") == []
    assert set(statuses(finishing(workload(*OTHERS), store)).values()) == {"finished"}


def test_what_was_stopped_while_measuring_is_not_held_against_it(store):
    found = controller(workload(*OTHERS), store, retries=0)
    found.post("stop", reason="enough")
    carry_out(found)
    assert set(statuses(found).values()) == {"pending"}


# Run again


def test_more_steps_go_on_from_the_last_one(store):
    finishing(workload(task("a", steps=100)), store)
    longer = task("a", steps=150)
    finishing(workload(longer), store)
    assert spans(store, longer) == [(0, 100), (100, 150)]


def test_a_finished_workload_run_again_does_nothing(store):
    finishing(workload(*OTHERS), store)
    engine = RiggedEngine(world())
    finishing(workload(*OTHERS), store, engine=engine)
    assert engine.orders == []


class Killed(Exception):
    pass


@settings(max_examples=12, deadline=None)
@given(moments=st.lists(st.integers(1, 12), max_size=4), seed=st.integers(0, 1 << 30))
def test_a_controller_killed_at_any_moment_is_replaced_by_the_next(moments, seed):
    chance = random.Random(seed)
    tasks = [task(f"t{n}", steps=chance.randrange(1, 100), family=chance.choice("fg")) for n in range(6)]
    with Store(None, write=True) as store:
        for moment in moments:
            left = [moment]

            def observe(found: Controller, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed

            try:
                carry_out(controller(workload(*tasks), store, observe=observe))
            except Killed:
                continue
        found = carry_out(controller(workload(*tasks), store))
        assert set(statuses(found).values()) == {"finished"}
        for record in tasks:
            attempts = [event.attempt for event in events_of(store, "started", record)]
            assert attempts == sorted(set(attempts))
            assert events_of(store, "saved", record)[-1].step == record.stop.steps
            assert len(events_of(store, "finished", record)) == 1


# Halving and the rest


RULE = Halving(metric="score", first_steps=10, factor=2)


def halve(store, faults=None, **more):
    """Three tasks side by side, of which t0 scores worst and takes longest."""
    tasks = [task(f"t{n}", steps=40) for n in range(3)]
    faults = faults or Faults()
    faults.score = lambda name, step: float(name[1:])
    engine = RiggedEngine(world(slowness=lambda order: 3.0 if order.members[0].task.name == "t0" else 1.0), faults)
    return carry_out(controller(workload(*tasks, halving=RULE), store, on=cluster(3), engine=engine, **more))


def test_a_rung_is_not_held_up_by_a_task_that_was_lost_for_good(store):
    lost = Faults(outcome=lambda name, attempt, until: 0 if name == "t0" else None)
    found = halve(store, lost, retries=1)
    assert statuses(found) == {"t0": "failed", "t1": "halved", "t2": "finished"}


def test_a_rung_is_not_held_up_by_a_task_that_was_cancelled(store):
    resting = once(lambda found: "resting" in statuses(found).values(), "cancel", task="t0")
    found = halve(store, observe=resting)
    assert all(status in ENDED for status in statuses(found).values())


def test_a_rung_completed_as_the_controller_was_killed_is_judged_by_the_next(store):
    record = store.add

    def dies_before_judging(**more):
        if any(event.kind in ("promoted", "halved") for event in more.get("events", ())):
            raise Killed
        record(**more)

    store.add = dies_before_judging
    with pytest.raises(Killed):
        halve(store)
    store.add = record
    assert sorted(statuses(halve(store)).values()) == ["finished", "halved", "halved"]


def test_a_task_lost_at_a_rung_is_judged_there_all_the_same(store):
    lost = Faults(outcome=lambda name, attempt, until: 10 if name == "t0" and attempt == 1 else None)
    found = halve(store, lost)
    assert found.progress[task("t0", steps=40).identity].step == 10
    assert statuses(found)["t0"] == "halved"
