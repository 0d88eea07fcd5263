"""A feed is resized where that wins more than it takes."""

import pytest

from dovetail.planning.feeds import worth_resizing
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
