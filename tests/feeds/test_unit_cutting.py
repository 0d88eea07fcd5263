"""How an epoch is cut: small units until every stage has been seen, and for slow ones; larger ones for quick ones."""

import pytest

from dovetail.feeds.byte_budget import ByteBudget
from dovetail.feeds.definition import feed
from dovetail.feeds.unit_cutting import UnitCutter


def cut(*seconds: float | None) -> int:
    """The items of the next unit, where items take so long in each stage; None: nothing has been through it."""
    budget = ByteBudget(limit_bytes=1 << 30)
    budget.learn(items=1, held_bytes=8, most_bytes=8)
    cutter = UnitCutter(feed(range(10_000)).map(abs), budget)
    for stage, each in enumerate(seconds):
        if each is not None:
            cutter.learn(stage, each)
    unit = cutter.next_unit(workers=4)
    return unit.stop - unit.start


@pytest.mark.parametrize(
    ("seconds", "items"),
    [
        ((None, None), 1),
        ((1e-7, None), 1),  # the second stage may be slow: units are handed to it as they are
        ((1e-7, 5e-2), 1),
        ((1e-3, 1e-3), 5),
        ((1e-7, 1e-7), 512),
        ((0.0, 0.0), 512),
    ],
)
def test_a_unit_takes_a_worker_about_ten_milliseconds(seconds, items):
    assert cut(*seconds) == items
