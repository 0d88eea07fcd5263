import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.serving import (
    FrontEnd,
    KindOffer,
    LatencyCurve,
    ReplicaGroup,
    arrivals_at,
    arrivals_of_trace,
    check_serving,
    forecast,
    plan_serving,
)
from dovetail.vocabulary import DovetailError

CURVE = LatencyCurve(((1, 0.010), (8, 0.017), (32, 0.041)))


def test_a_single_replica_waits_as_the_formula_says():
    """M/D/1: the mean wait is load / (2 (1 - load)) calls; the median and busyness follow it closely."""
    group = ReplicaGroup("cpu", 1, 1, LatencyCurve(((1, 0.01),)))
    found = forecast([group], arrivals_at(70.0, 40_000))
    assert found.busy == pytest.approx(0.7, abs=0.02)
    assert found.mean_rows == 1.0
    assert 0.0100 < found.p50 < 0.025
    assert 0.04 < found.p99 < 0.09


def test_two_replicas_without_a_queue_take_what_they_take():
    group = ReplicaGroup("cpu", 2, 4, CURVE)
    found = forecast([group], [0.0, 1.0, 2.0, 3.0], overhead=0.001)
    assert (found.p50, found.p99) == (pytest.approx(0.011), pytest.approx(0.011))


def test_a_call_waits_for_others_and_is_full_at_once():
    group = ReplicaGroup("cpu", 1, 2, LatencyCurve(((1, 0.01), (2, 0.01))))
    assert forecast([group], [0.0], wait_seconds=0.5).p50 == pytest.approx(0.51)
    both = forecast([group], [0.0, 0.1], wait_seconds=0.5)
    assert (both.p99, both.mean_rows) == (pytest.approx(0.11), 2.0)


def test_the_front_end_does_one_thing_after_another():
    """Two requests at once: read for 1 s each, then their calls, one replica for each; the first answer is handled
    between, and each is written for 1 s."""
    group = ReplicaGroup("cpu", 2, 1, LatencyCurve(((1, 10.0),)))
    found = forecast([group], [0.0, 0.0], front=FrontEnd(request_seconds=2.0, call_seconds=0.5))
    # Read at 1 and 2, calls end at 11 and 12; 11 to 11.5 handled, 11.5 to 12.5 written; 12.5 to 13, 13 to 14.
    assert found.p99 == pytest.approx(14.0)
    assert forecast([group], [0.0], front=FrontEnd(request_seconds=2.0, call_seconds=0.5)).p99 == pytest.approx(12.5)


def test_replicas_share_what_the_front_end_leaves_of_the_cores():
    group = ReplicaGroup("cpu", 2, 1, LatencyCurve(((1, 1.0),)))
    assert forecast([group], [0.0, 0.0], front=FrontEnd(cores=2)).p99 == pytest.approx(1.0)
    assert forecast([group], [0.0, 0.0], front=FrontEnd(cores=1)).p99 == pytest.approx(2.0)
    # On one core the call of the first stands still while the second, at 0.5, is read for 0.1 s.
    one = ReplicaGroup("cpu", 1, 1, LatencyCurve(((1, 1.0),)))
    found = forecast([one], [0.0, 0.5], front=FrontEnd(request_seconds=0.2, cores=1))
    # Read 0.1, computed to 1.2 with a rest of 0.1, written to 1.3 while the next call, from 1.2, stands still to 2.3.
    assert found.p99 == pytest.approx(2.4 - 0.5)


@given(st.floats(1e-5, 1e-3), st.floats(0, 1e-3), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_nobody_waits_less_because_of_a_front_end(request, call, cores):
    group, arrivals = ReplicaGroup("cpu", 2, 4, CURVE), arrivals_at(150.0, 300)
    before = forecast([group], arrivals)
    after = forecast([group], arrivals, front=FrontEnd(request_seconds=request, call_seconds=call, cores=cores))
    assert after.p50 >= min(before.p50, CURVE.seconds(1) + request + call) - 1e-9
    assert after.mean_rows >= 1


@given(st.integers(1, 3), st.sampled_from([1, 4, 16]), st.floats(5, 400), st.floats(0, 0.01), st.floats(1, 2))
@settings(max_examples=40, deadline=None)
def test_nobody_is_lost_or_answered_before_a_call_could_be(count, rows, rate, wait, spread):
    group = ReplicaGroup("cpu", count, rows, dataclasses.replace(CURVE, spread=spread))
    found = forecast([group], arrivals_at(rate, 400), wait_seconds=wait)
    assert found.p50 <= found.p99
    if spread == 1:
        assert found.p50 >= CURVE.seconds(1) - 1e-9
    assert 0 < found.busy <= 1
    assert 1 <= found.mean_rows <= rows


def test_curves_are_straight_between_what_was_measured_and_never_fall():
    curve = LatencyCurve.measured({1: [1.0, 1.1, 1.2], 4: [1.0], 8: [2.0, 2.0, 4.0]})
    assert curve.points == ((1, 1.1), (4, 1.1), (8, 2.0))
    assert curve.spread == 2.0
    assert curve.seconds(6) == pytest.approx(1.55)
    assert LatencyCurve(((1, 1.0),)).seconds(3) == 3.0


@pytest.mark.parametrize("points", [(), ((2, 1.0), (1, 1.0)), ((1, 0.0),), ((1, math.inf),), ((0, 1.0),)])
def test_curves_that_cannot_be_are_refused(points):
    with pytest.raises(DovetailError, match="latencies must be above 0"):
        LatencyCurve(points)


SLOW = KindOffer("cpu", 0.1, 10, {"plain": LatencyCurve(((1, 0.030), (32, 0.300)))})
FAST = KindOffer("gpu", 1.0, 4, {"plain": LatencyCurve(((1, 0.008), (64, 0.040)))})


def exhaustive(offers, arrivals, p99):
    """The price of the cheapest mix that keeps the promise, of all counts and the planner's own batch sizes."""
    best = math.inf
    for cpus in range(offers[0].most + 1):
        for gpus in range(offers[1].most + 1):
            for rows in (1, 2, 4, 8, 16, 32):
                for more in (1, 2, 4, 8, 16, 32, 64):
                    groups = [
                        ReplicaGroup("cpu", cpus, rows, offers[0].curves["plain"]),
                        ReplicaGroup("gpu", gpus, more, offers[1].curves["plain"]),
                    ]
                    groups = [group for group in groups if group.count]
                    price = 0.1 * cpus + gpus
                    if not groups or price >= best or sum(group.rate for group in groups) < arrivals[1]:
                        continue
                    if forecast(groups, arrivals[0], wait_seconds=0.0).p99 <= p99:
                        best = price
    return best


@pytest.mark.parametrize("rate", [60.0, 300.0])
def test_the_cheapest_mix_is_found(rate):
    offers, arrivals = [dataclasses.replace(SLOW, most=4), dataclasses.replace(FAST, most=2)], arrivals_at(rate, 300)
    plan = plan_serving(offers, arrivals, p99=0.25)
    assert check_serving(plan, offers, rate=rate, p99=0.25) == []
    assert plan.price <= exhaustive(offers, (arrivals, rate), 0.25) + 0.1 + 1e-9


def test_a_mix_is_cheaper_than_one_kind_for_all():
    arrivals = arrivals_at(2000.0, 6000)
    offers = [SLOW, FAST]
    mixed = plan_serving(offers, arrivals, p99=0.3)
    assert mixed.price <= plan_serving([FAST], arrivals, p99=0.3).price
    with pytest.raises(DovetailError, match="enough devices"):
        plan_serving([SLOW], arrivals, p99=0.3)


def test_the_way_of_answering_is_chosen_with_the_rest():
    offer = KindOffer("cpu", 0.1, 10, {"plain": CURVE, "cascade": LatencyCurve(((1, 0.002), (32, 0.01)))})
    plan = plan_serving([offer], arrivals_at(900.0, 3000), p99=0.1)
    assert plan.way == "cascade"
    assert "cascade: 1 × cpu" in str(plan)


def test_what_cannot_be_kept_is_said_with_the_nearest():
    with pytest.raises(DovetailError, match=r"within 20 ms at .* the nearest is|no kind has a call of one row"):
        plan_serving([SLOW], arrivals_at(100.0, 500), p99=0.02)
    with pytest.raises(DovetailError, match=r"the nearest is|enough devices"):
        plan_serving([dataclasses.replace(SLOW, most=1)], arrivals_at(5000.0, 500), p99=0.2)
    for offers, moments, p99, message in (
        ([], [0.0, 1.0], 1.0, "must be kinds"),
        ([SLOW], [0.0], 1.0, "must be requests"),
        ([SLOW], [0.0, 1.0], 0.0, "more than 0 seconds"),
    ):
        with pytest.raises(DovetailError, match=message):
            plan_serving(offers, moments, p99=p99)
    with pytest.raises(DovetailError, match="more than 0 requests"):
        arrivals_at(0.0, 3)


def test_the_checker_counts_for_itself():
    plan = plan_serving([SLOW, FAST], arrivals_at(60.0, 500), p99=0.3)
    assert check_serving(plan, [SLOW, FAST], rate=60.0, p99=0.3) == []
    assert check_serving(dataclasses.replace(plan, price=9.0), [SLOW, FAST], rate=60.0, p99=0.3)
    assert check_serving(plan, [SLOW, FAST], rate=1e6, p99=0.3)
    assert check_serving(plan, [FAST], rate=60.0, p99=1e-6)


def test_a_trace_has_its_rates_in_their_order():
    moments = arrivals_of_trace([100.0, 0.0, 50.0], second=10.0)
    assert moments == sorted(moments)
    assert 900 < sum(each < 10 for each in moments) < 1100
    assert not [each for each in moments if 10 <= each < 20]


def test_more_than_one_process_can_read_is_refused():
    offer = dataclasses.replace(FAST, most=1000)
    front = FrontEnd(request_seconds=0.001)
    with pytest.raises(DovetailError, match="can pass on 970 a second, and 2000 come; serve at several ports"):
        plan_serving([offer], arrivals_at(2000.0, 500), p99=0.3, front=front)
    plan = plan_serving([offer], arrivals_at(500.0, 500), p99=0.3, front=front)
    assert check_serving(plan, [offer], rate=500.0, p99=0.3, front=front) == []
    assert check_serving(plan, [offer], rate=1500.0, p99=0.3, front=front)
