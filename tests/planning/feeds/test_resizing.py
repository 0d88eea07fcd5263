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


def test_a_trial_in_vain_is_taken_back_once_and_holds_nothing_up() -> None:
    before, judge = plan(100), ResizeJudge()
    assert judge.may_try(100.0, now_seconds=0.0)
    judge.begin(before, rate=100.0, expected=115.0, from_seconds=1.0, is_trial=True)
    assert judge.judge(105.0, since_seconds=1.0, now_seconds=2.0) is before
    assert judge.may_resize(100.0, now_seconds=2.0)
    assert not judge.may_try(70.0, now_seconds=31.0)  # however much changes, not at once
    rates = (100.0, 90.0, 120.0, 70.0, 130.0)
    assert [judge.may_try(rate, now_seconds=33.0) for rate in rates] == [False, False, False, True, True]


def test_a_trial_that_brought_something_stays_and_another_may_follow() -> None:
    judge = ResizeJudge()
    judge.begin(plan(100), rate=100.0, expected=115.0, from_seconds=1.0, is_trial=True)
    assert judge.judge(107.0, since_seconds=1.0, now_seconds=2.0) is None
    assert judge.may_try(107.0, now_seconds=2.0)


def test_a_resize_after_which_the_consumer_is_served_is_never_taken_back() -> None:
    judge = ResizeJudge()
    judge.begin(plan(100), rate=100.0, expected=200.0, from_seconds=1.0)
    judge.settle()
    assert judge.judge(50.0, since_seconds=9.0, now_seconds=9.0) is None
    assert judge.may_resize(100.0, now_seconds=9.0)
