"""Stashing, vertical sync and 2BW equal their recurrence on one device, bit by bit."""

import pytest

from tests.train.pipeline.asynchrony import assert_recurrence

pytestmark = pytest.mark.process


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    ("timetable", "replicas", "count"),
    [
        ("stashing", (1, 1, 1, 1), 1),
        ("vertical_sync", (1, 1, 1, 1), 1),
        ("2bw", (1, 1, 1, 1), 4),
        ("stashing", (2, 1, 1), 2),
        ("vertical_sync", (1, 2, 1), 4),
        ("2bw", (2, 1, 1), 4),
        ("stashing", (1, 3), 3),
        ("vertical_sync", (3, 1), 3),
        ("2bw", (1, 3), 6),
    ],
)
def test_the_recurrence_gives_the_same_bits(four, timetable, replicas, count, optimizer):
    assert_recurrence(four, timetable, replicas, optimizer=optimizer, count=count)
