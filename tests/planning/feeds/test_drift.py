"""What is believed of stages after watching them, and what is not."""

import dataclasses

import pytest

from dovetail.planning.feeds import StageObservation, decide, plan_feed
from dovetail.planning.feeds.drift import follow_drift, free_cores
from dovetail.planning.feeds.feed_prediction import predict_feed
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, StagePlan, StageProfile

DECODE = StageProfile(name="decode", worker="thread", service_seconds=4e-3, cpu_seconds=3e-3, lock_seconds=1e-3)
PROCESS = dataclasses.replace(DECODE, worker="process", service_seconds=5e-3, lock_seconds=1e-4)


def plan(workers: int) -> FeedPlan:
    return FeedPlan(stages=(StagePlan(name="decode", worker="thread", workers=workers),))


def seen(items: int, *, cpu: float, waited: float, most_bytes: int = 0) -> StageObservation:
    return StageObservation(
        name="decode",
        items=items,
        busy_seconds=items * (cpu + waited),
        cpu_seconds=items * cpu,
        most_bytes=most_bytes,
    )


def followed(profiles: list[StageProfile], observation: StageObservation, *, workers: int = 1, cores: float = 8):
    found = tuple(profiles)
    for _ in range(30):  # each look goes half of the way
        found = follow_drift(found, plan(workers), [observation], seconds=1.0, cores=cores)
    return found


def test_heavier_items_and_what_they_hold_are_believed() -> None:
    (now,) = followed([DECODE], seen(100, cpu=6e-3, waited=1e-3, most_bytes=77))
    assert now.service_seconds == pytest.approx(7e-3)
    assert now.cpu_seconds == pytest.approx(6e-3)
    assert now.lock_seconds == pytest.approx(2e-3)
    assert now.most_bytes == 77


def test_one_look_counts_for_half() -> None:
    (now,) = follow_drift([DECODE], plan(1), [seen(100, cpu=5e-3, waited=1e-3)], seconds=1.0, cores=8)
    assert now.service_seconds == pytest.approx(5e-3)


def test_waiting_for_a_turn_on_a_core_is_not_the_stages_own() -> None:
    """Four who compute on two cores take twice as long by the clock; nothing has changed about the stage."""
    (now,) = followed([DECODE], seen(650, cpu=3e-3, waited=4e-3), workers=4, cores=2)
    assert now.service_seconds == pytest.approx(4e-3)


def test_what_others_take_of_the_cores_is_not_the_stages_own() -> None:
    """A stage that only computes takes twice as long by the clock, and the feed uses half of the cores: others use the
    rest. A stage beside it that waits seems to wait longer by what it computes, and no more is concluded."""
    loop = StageProfile(name="loop", worker="process", service_seconds=2e-3, cpu_seconds=2e-3)
    both = [loop, DECODE]
    now = FeedPlan(stages=(StagePlan(name="loop", worker="process", workers=2), *plan(2).stages))
    crowded = [
        StageObservation(name="loop", items=200, busy_seconds=0.8, cpu_seconds=0.4),
        StageObservation(name="decode", items=200, busy_seconds=200 * 7e-3, cpu_seconds=200 * 3e-3),
    ]
    found = follow_drift(both, now, crowded, seconds=1.0, cores=2)
    assert [each.service_seconds for each in found] == pytest.approx([2e-3, 4e-3])
    assert free_cores(both, now, crowded, seconds=1.0, cores=2) == pytest.approx(1.0)
    decision = decide(
        both,
        dataclasses.replace(now, items_per_second=400.0),
        crowded,
        seconds=1.0,
        measured_per_second=200.0,
        cores=2,
        budget_bytes=0,
        horizon_seconds=1000.0,
        switch_seconds=0.1,
    )
    assert decision.reason == ""


def test_a_lock_that_the_consumer_holds_is_nobody_elses_doing() -> None:
    """Two threads got one of two cores: others have the rest, unless it was the lock that they waited for."""
    loop = StageProfile(name="decode", worker="thread", service_seconds=1e-3, cpu_seconds=1e-3, lock_seconds=2e-4)
    crowded = [seen(1000, cpu=1e-3, waited=1e-3)]
    launching = FeedConsumer(per_second=100.0, lock_seconds=9e-3)
    found = [
        free_cores([loop], plan(2), crowded, seconds=1.0, cores=2, measured_per_second=90.0, consumer=consumer)
        for consumer in (FeedConsumer(), launching)
    ]
    assert found == [1.0, 2]


def test_a_slower_disk_is_told_from_full_cores() -> None:
    (now,) = followed([DECODE], seen(650, cpu=3e-3, waited=40e-3), workers=4, cores=2)
    assert now.service_seconds == pytest.approx(40e-3)


def test_a_few_items_prove_nothing() -> None:
    assert followed([DECODE], seen(19, cpu=1.0, waited=1.0)) == (DECODE,)


def test_the_other_kind_of_worker_changes_in_proportion() -> None:
    _, now = followed([DECODE, PROCESS], seen(100, cpu=6e-3, waited=2e-3))
    assert now.cpu_seconds == pytest.approx(6e-3)
    assert now.service_seconds == pytest.approx(6e-3 + 2 * 2e-3)
    assert now.lock_seconds == PROCESS.lock_seconds  # sending takes as long as before


def decided(profile: StageProfile, now: FeedPlan, observation: StageObservation, *, rate: float, **more):
    """What is decided of one stage of which this was seen for a second, on two cores and for long."""
    how = {"budget_bytes": 0, **more}
    return decide(
        [profile],
        now,
        [observation],
        seconds=1.0,
        measured_per_second=rate,
        cores=2,
        horizon_seconds=1000.0,
        switch_seconds=0.1,
        **how,
    )


def test_nothing_is_resized_where_nothing_changed() -> None:
    now = plan_feed([DECODE], cores=2, budget_bytes=0)
    found = decided(DECODE, now, seen(500, cpu=3e-3, waited=1e-3), rate=0.9 * now.items_per_second)
    assert (found.plan, found.reason) == (now, "")


@pytest.mark.parametrize(
    ("may_try", "budget_bytes", "workers"), [(True, 1 << 20, 100), (True, 60_000, 50), (False, 1 << 20, 50)]
)
def test_threads_that_wait_are_tried_where_the_lock_is_thought_to_be_the_wall(may_try, budget_bytes, workers) -> None:
    read = dataclasses.replace(DECODE, service_seconds=5e-3, cpu_seconds=1e-4, lock_seconds=1e-4, most_bytes=1000)
    now = plan_feed([read], cores=2, budget_bytes=budget_bytes)
    assert (now.stages[0].workers, now.wall) == (50, "the interpreter's lock")
    observed = seen(10_000, cpu=1e-4, waited=4.9e-3)
    found = decided(read, now, observed, rate=10_000.0, budget_bytes=budget_bytes, may_try=may_try)
    assert (found.plan.stages[0].workers, found.is_trial) == (workers, workers == 100)
    assert found.expected_per_second == (pytest.approx(11_500.0) if workers == 100 else 0.0)


def test_threads_that_compute_are_not_tried() -> None:
    loop = dataclasses.replace(DECODE, service_seconds=1e-3, cpu_seconds=1e-3, lock_seconds=1e-3)
    now = plan(4)
    observed = seen(1000, cpu=1e-3, waited=3e-3)
    found = decided(loop, now, observed, rate=1000.0, budget_bytes=1 << 20, may_try=True)
    assert found.plan is now


@pytest.mark.parametrize(
    ("rate", "cpu", "budget_bytes", "kind"),
    [
        (300.0, 3e-3, 1 << 30, "thread"),  # 400 by processes were expected
        (350.0, 3e-3, 1 << 30, "process"),  # little less than that
        (300.0, 4e-3, 1 << 30, "process"),  # threads promise no more than came
        (300.0, 3e-3, 1000, "process"),  # and have no room
    ],
)
def test_workers_of_the_other_kind_are_tried_where_less_comes_than_was_expected(rate, cpu, budget_bytes, kind) -> None:
    process = dataclasses.replace(DECODE, worker="process", service_seconds=5e-3, cpu_seconds=5e-3, lock_seconds=1e-4)
    thread = dataclasses.replace(
        DECODE, service_seconds=cpu, cpu_seconds=cpu, lock_seconds=cpu * 0.8, worker_bytes=2000
    )
    now = FeedPlan(stages=(StagePlan(name="decode", worker="process", workers=2),))
    found = decide(
        [thread, process], now, [seen(400, cpu=5e-3, waited=0.0)], seconds=1.0, measured_per_second=rate, cores=2,
        budget_bytes=budget_bytes, horizon_seconds=1000.0, switch_seconds=0.1, may_try=True,
    )  # fmt: skip
    assert (found.plan.stages[0].worker, found.is_trial) == (kind, kind == "thread")
    if found.is_trial:
        assert found.reason == "400 a second were expected, and 300 came"


def test_a_plan_for_another_load_is_made_again_and_names_its_wall() -> None:
    now = dataclasses.replace(plan(1), items_per_second=250.0, wall="decode")
    found = decide(
        [DECODE],
        now,
        [seen(250, cpu=3e-3, waited=1e-3)],
        seconds=1.0,
        measured_per_second=250.0,
        cores=2,
        budget_bytes=0,
        horizon_seconds=10.0,
        switch_seconds=0.1,
    )
    assert found.plan.stages[0].workers == 3
    assert found.reason == "decode was the wall: 667 a second are expected instead of 250."


def test_what_is_beside_the_stage_is_neither_seen_nor_forgotten() -> None:
    """Workers' clocks show 3 ms an item; to hand it over takes another 1 ms, which holds the lock for 0.4 ms."""
    process = dataclasses.replace(
        PROCESS, service_seconds=4e-3, cpu_seconds=4e-3, lock_seconds=4e-4, beside_seconds=1e-3
    )
    thread = dataclasses.replace(DECODE, service_seconds=4e-3, cpu_seconds=4e-3, lock_seconds=2e-3, beside_seconds=1e-3)
    for own, other in ((process, thread), (thread, process)):
        now = FeedPlan(stages=(StagePlan(name="decode", worker=own.worker, workers=1),))
        found = (own, other)
        for _ in range(30):
            found = follow_drift(found, now, [seen(100, cpu=3e-3, waited=0.0)], seconds=1.0, cores=8)
        for before, after in zip((own, other), found, strict=True):
            assert dataclasses.astuple(after)[2:6] == pytest.approx(dataclasses.astuple(before)[2:6])
        for _ in range(30):  # items become twice as heavy
            found = follow_drift(found, now, [seen(100, cpu=6e-3, waited=0.0)], seconds=1.0, cores=8)
        for before, after in zip((own, other), found, strict=True):
            assert after.cpu_seconds == pytest.approx(7e-3)
            assert after.lock_seconds == pytest.approx(before.lock_seconds * (1.5 if before is thread else 1))
    chain = [dataclasses.replace(process, name=name) for name in ("read", "decode", "batch")]
    now = FeedPlan(stages=tuple(StagePlan(name=each.name, worker="process", workers=1) for each in chain))
    watched = [dataclasses.replace(seen(100, cpu=3e-3, waited=0.0), name=each.name) for each in chain]
    later = follow_drift(chain, now, watched, seconds=1.0, cores=8)
    assert predict_feed(later, now, cores=8)[0] == pytest.approx(predict_feed(chain, now, cores=8)[0])
