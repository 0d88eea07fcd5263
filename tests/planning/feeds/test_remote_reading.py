"""Workers on other nodes are planned where they are worth it, and nowhere else; the best of all counts."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.feeds import StageObservation, decide, plan_feed, predict_feed
from dovetail.vocabulary import InvalidRecord
from dovetail.vocabulary.feeds import FeedConsumer, FeedPlan, RemoteProfile, StageProfile

MIB = 1 << 20
LINK = RemoteProfile(cores=4, latency_seconds=1e-3, bytes_per_second=1e9, cpu_seconds=1e-4, cpu_seconds_per_byte=1e-10)


def stages(*, cpu_seconds=10e-3, item_bytes=MIB, portable=True) -> list[StageProfile]:
    """Batches of eight items of a stage that computes, on cores that are its wall."""
    common = {"item_bytes": item_bytes // 8, "most_bytes": item_bytes // 8, "portable": portable}
    return [
        StageProfile(name="read", worker="thread", service_seconds=1e-6, cpu_seconds=1e-6, **common),
        StageProfile(name="decode", worker="thread", service_seconds=10e-3, cpu_seconds=cpu_seconds, **common),
        StageProfile(
            name="batch",
            worker="thread",
            service_seconds=1e-4,
            cpu_seconds=1e-4,
            item_bytes=item_bytes,
            most_bytes=item_bytes,
            inputs=8,
        ),
    ]


def planned(profiles=None, **more) -> FeedPlan:
    return plan_feed(profiles or stages(), **({"cores": 2, "budget_bytes": 1 << 30, "remote": LINK} | more))


def test_where_the_own_cores_are_the_wall_idle_ones_of_other_nodes_add_to_them() -> None:
    alone, plan = planned(remote=None), planned()
    assert (alone.wall, alone.remote_workers) == ("cores", 0)
    assert plan.remote_workers == 4
    # Four more cores of as many as two, less what is under way and handed over.
    assert 2.8 * alone.items_per_second < plan.items_per_second < 3 * alone.items_per_second
    assert plan.stages == alone.stages
    assert plan.reasons[-1].startswith("4 of 4 idle cores of other nodes read whole batches, too: ")
    assert "over a link of 953.7 MiB a second" in plan.reasons[-1]


def test_where_the_link_is_the_wall_other_nodes_are_left_alone() -> None:
    slow = dataclasses.replace(LINK, bytes_per_second=1e6)  # one batch a second
    plan = planned(remote=slow)
    assert (plan.remote_workers, plan.wall) == (0, "cores")
    assert plan.items_per_second == planned(remote=None).items_per_second
    assert "nothing that counts would be added" in plan.reasons[-1]


def test_no_more_workers_are_borrowed_than_the_link_can_carry() -> None:
    narrow = dataclasses.replace(LINK, cores=64, bytes_per_second=50 * MIB)
    plan = planned(remote=narrow)
    assert plan.wall == "the link"
    assert 0 < plan.remote_workers < 8  # of batches that take 80 ms each there, and 20 ms on the link
    fewer = dataclasses.replace(plan, remote_workers=plan.remote_workers - 1)
    assert predict_feed(stages(), fewer, cores=2, remote=narrow)[0] < plan.items_per_second


def test_no_more_are_borrowed_than_the_consumer_needs() -> None:
    alone = planned(remote=None).items_per_second
    plan = planned(consumer=FeedConsumer(per_second=1.3 * alone))
    assert (plan.wall, plan.remote_workers) == ("the consumer", 1)
    assert planned(consumer=FeedConsumer(per_second=0.9 * alone)).remote_workers == 0


def test_where_stages_wait_other_nodes_are_left_alone() -> None:
    """More threads wait as well as other nodes' cores do."""
    plan = planned(stages(cpu_seconds=0.0)[:2], most_workers=4)
    assert plan.remote_workers == 0
    assert plan.reasons[-1] == (
        "Idle cores of other nodes are left alone: 'decode' is the wall, and not the cores here."
    )


def test_what_cannot_travel_stays() -> None:
    plan = planned(stages(portable=False))
    assert plan.remote_workers == 0
    assert plan.reasons[-1] == "Idle cores of other nodes are left alone: 'read', 'decode' cannot travel."


def test_where_taking_a_batch_in_costs_more_than_making_it_none_is_borrowed() -> None:
    dear = dataclasses.replace(LINK, cpu_seconds=0.2)  # 80 ms to make it here
    assert planned(remote=dear).remote_workers == 0


def test_workers_elsewhere_that_are_seen_to_be_slow_count_for_what_they_give() -> None:
    slow = dataclasses.replace(LINK, worker_seconds=8.0)  # a hundredth of one here
    assert planned(remote=slow).remote_workers == 0


@given(
    cpu=st.sampled_from([1e-4, 3e-3, 10e-3]),
    size=st.sampled_from([0, 8000, MIB, 64 * MIB]),
    bandwidth=st.sampled_from([1e6, 1e8, 1e10]),
    hand=st.sampled_from([0.0, 1e-9, 1e-8]),
    cores=st.integers(1, 4),
    elsewhere=st.integers(1, 12),
    consumer=st.sampled_from([None, 5.0, 40.0, 500.0]),
    consumer_cpu=st.sampled_from([0.0, 2e-3]),
    consumer_lock=st.sampled_from([0.0, 0.0, 2e-3]),
)
@settings(max_examples=80, deadline=None)
def test_the_plan_is_the_best_of_all_counts(
    cpu, size, bandwidth, hand, cores, elsewhere, consumer, consumer_cpu, consumer_lock
) -> None:
    profiles = stages(cpu_seconds=cpu, item_bytes=size)
    link = dataclasses.replace(LINK, cores=elsewhere, bytes_per_second=bandwidth, cpu_seconds_per_byte=hand)
    taker = FeedConsumer(per_second=consumer, cpu_seconds=consumer_cpu, lock_seconds=consumer_lock)
    limits = {"cores": cores, "consumer": taker}
    plan = plan_feed(profiles, budget_bytes=1 << 40, remote=link, **limits)  # memory is never the wall
    rates = [
        predict_feed(profiles, dataclasses.replace(plan, remote_workers=count), remote=link, **limits)[0]
        for count in range(elsewhere + 1)
    ]
    assert rates[plan.remote_workers] == pytest.approx(plan.items_per_second)
    assert max(rates) <= 1.05 * plan.items_per_second * (1 + 1e-9)  # less is not worth it
    if plan.remote_workers:
        assert plan.items_per_second == pytest.approx(max(rates))
        assert rates[plan.remote_workers - 1] < plan.items_per_second


def observed(plan: FeedPlan, rate: float, seconds: float = 10.0) -> list[StageObservation]:
    items = {"read": 8, "decode": 8, "batch": 1}
    return [
        StageObservation(
            name=each.name,
            items=int(rate * items[each.name] * seconds),
            busy_seconds=rate * items[each.name] * seconds * each.service_seconds,
            cpu_seconds=rate * items[each.name] * seconds * each.cpu_seconds,
        )
        for each in stages()
    ]


def decided(plan: FeedPlan, remote: RemoteProfile | None, *, measured: float):
    return decide(
        stages(),
        plan,
        observed(plan, 25.0),
        seconds=10.0,
        measured_per_second=measured,
        cores=2,
        budget_bytes=1 << 30,
        horizon_seconds=60.0,
        switch_seconds=1.0,
        remote=remote,
    )


def test_a_feed_whose_cores_are_the_wall_borrows_when_cores_fall_idle_elsewhere() -> None:
    alone = planned(remote=None)
    assert not decided(alone, None, measured=25.0).reason
    found = decided(alone, LINK, measured=25.0)
    assert found.plan.remote_workers == 4
    assert found.reason.startswith("the cores here are the wall, and other nodes have idle ones: ")
    again = decided(found.plan, LINK, measured=found.plan.items_per_second)
    assert (again.plan, again.reason) == (found.plan, "")


def test_a_profile_of_other_nodes_must_be_one() -> None:
    with pytest.raises(InvalidRecord, match="bytes_per_second more than 0 and seconds at least 0; got 1, 0 and"):
        RemoteProfile(cores=1, latency_seconds=0.0, bytes_per_second=0)
    with pytest.raises(InvalidRecord, match="with remote_workers >= 0, got -1"):
        FeedPlan(stages=(), remote_workers=-1)
