"""A feed is resized where that wins more than it takes."""

import pytest

from dovetail.planning.feeds import worth_resizing
from dovetail.planning.feeds.resizing import ResizeJudge
from dovetail.vocabulary.feeds import FeedPlan


def plan(rate: float) -> FeedPlan:
    return FeedPlan(stages=(), items_per_second=rate)


@pytest.mark.parametrize(
    ("now", "then", "measured", "horizon", "switch", "worth"),
    [
        (100, 150, 100, 60, 1, True),
        (100, 104, 100, 3600, 0, False),  # within what rates vary by
        (100, 150, 100, 2.9, 1, False),  # ends before the switch is made up for
        (100, 150, 100, 3.1, 1, True),
        (100, 120, 50, 60, 1, True),  # both fall short alike: 60 instead of 50
        (100, 104, 50, 60, 1, False),
        (100, 90, 100, 60, 0, False),
        (0, 10, 0, 60, 1, True),
    ],
)
def test_what_is_won_is_set_against_what_is_missed(
    now: float, then: float, measured: float, horizon: float, switch: float, worth: bool
) -> None:
    found = worth_resizing(
        plan(now), plan(then), measured_per_second=measured, horizon_seconds=horizon, switch_seconds=switch
    )
    assert found is worth


def judged(rate: float, *, now: float, judge: ResizeJudge) -> FeedPlan | None:
    return judge.judge(rate, since_seconds=now - 1, now_seconds=now)


def test_a_resize_that_brings_too_little_is_taken_back_and_the_next_waits_for_longer_each_time() -> None:
    before, judge, now = plan(100), ResizeJudge(), 0.0
    for hold in (10, 20, 40):
        assert judge.may_resize(100.0, now_seconds=now)
        judge.begin(before, rate=100.0, expected=150.0, from_seconds=now + 1)
        assert not judge.may_resize(100.0, now_seconds=now)
        assert judged(90.0, now=now + 1.5, judge=judge) is None, "its workers are starting"
        assert judged(119.0, now=now + 2, judge=judge) is before
        now += 2
        assert not judge.may_resize(100.0, now_seconds=now + hold - 0.1)
        assert judge.may_resize(79.0, now_seconds=now), "it is another feed, or another machine"
        now += hold
    judge.begin(before, rate=100.0, expected=150.0, from_seconds=now)
    assert judged(121.0, now=now + 1, judge=judge) is None
    assert judge.may_resize(121.0, now_seconds=now + 1), "what brought enough stays, and more may follow"
    judge.begin(before, rate=121.0, expected=200.0, from_seconds=now)
    assert judged(121.0, now=now + 1, judge=judge) is before
    assert judge.may_resize(121.0, now_seconds=now + 11)


def steady(judge: ResizeJudge, rate: float, *, now: float) -> bool:
    """Whether a trial may be made of a feed that has given this rate twice."""
    judge.may_try(rate, now_seconds=now)
    return judge.may_try(rate, now_seconds=now)


def test_a_trial_in_vain_is_taken_back_once_and_holds_nothing_up() -> None:
    before, judge = plan(100), ResizeJudge()
    assert steady(judge, 100.0, now=0.0)
    judge.begin(before, rate=100.0, expected=115.0, from_seconds=1.0, is_trial=True)
    assert judge.judge(105.0, since_seconds=1.0, now_seconds=2.0) is before
    assert judge.may_resize(100.0, now_seconds=2.0)
    assert not steady(judge, 70.0, now=31.0)  # however much changes, not at once
    assert [steady(judge, rate, now=33.0) for rate in (100.0, 90.0, 120.0, 70.0, 130.0)] == [False] * 3 + [True] * 2


def test_no_trial_is_made_of_a_moment() -> None:
    judge = ResizeJudge()
    assert [judge.may_try(rate, now_seconds=9.0) for rate in (100.0, 75.0, 100.0, 106.0)] == [False, False, False, True]
    judge.begin(plan(100), rate=98.0, expected=112.7, from_seconds=10.0, is_trial=True)
    assert judge.judge(111.0, since_seconds=10.0, now_seconds=11.0) is not None  # 6% more than the better of two looks


def test_a_trial_begun_in_a_slow_moment_must_bring_more_than_the_moment_was_slow_by() -> None:
    for rates in ((106.0, 98.0), (98.0, 106.0)):
        judge = ResizeJudge()
        assert [judge.may_try(rate, now_seconds=9.0) for rate in rates] == [False, True]
        judge.begin(plan(100), rate=rates[-1], expected=1.15 * rates[-1], from_seconds=10.0, is_trial=True)
        assert judge.judge(108.0, since_seconds=10.0, now_seconds=11.0) is not None
        assert not steady(judge, 100.0, now=99.0)


def test_a_trial_that_brought_something_stays_and_another_may_follow() -> None:
    judge = ResizeJudge()
    judge.begin(plan(100), rate=100.0, expected=115.0, from_seconds=1.0, is_trial=True)
    assert judge.judge(107.0, since_seconds=1.0, now_seconds=2.0) is None
    assert steady(judge, 107.0, now=2.0)


def test_a_resize_that_serves_its_consumer_is_not_taken_back_and_a_pause_of_the_consumer_says_nothing() -> None:
    for rate, since, pending in ((120.0, 2.0, False), (120.0, 0.5, True), (60.0, 2.0, True)):
        judge = ResizeJudge()
        judge.begin(plan(100), rate=100.0, expected=200.0, from_seconds=1.0)
        judge.settle(rate, since_seconds=since)
        assert (judge.judge(50.0, since_seconds=9.0, now_seconds=9.0) is not None) == pending


def test_a_consumer_that_is_served_at_a_lower_rate_for_a_few_looks_leaves_nothing_to_judge() -> None:
    judge = ResizeJudge()
    judge.begin(plan(100), rate=100.0, expected=200.0, from_seconds=10.0)
    for since in (7.0, 8.0, 9.0, 10.0, 11.0):  # its workers are there from 10 on
        judge.settle(60.0, since_seconds=since)
        assert not judge.may_resize(60.0, now_seconds=since + 1)
    judge.settle(60.0, since_seconds=12.0)
    assert judge.may_resize(60.0, now_seconds=13.0)
    assert judge.judge(50.0, since_seconds=300.0, now_seconds=301.0) is None
    judge.begin(plan(100), rate=50.0, expected=100.0, from_seconds=310.0)
    judge.settle(40.0, since_seconds=310.0)
    assert judge.judge(50.0, since_seconds=311.0, now_seconds=312.0) is not None, "the next is counted anew"


def test_a_trial_in_vain_is_remembered_though_the_consumer_is_served_later() -> None:
    judge = ResizeJudge()
    judge.begin(plan(100), rate=100.0, expected=115.0, from_seconds=1.0, is_trial=True)
    judge.judge(90.0, since_seconds=1.0, now_seconds=2.0)
    judge.settle(100.0, since_seconds=3.0)
    assert not steady(judge, 100.0, now=99.0)
