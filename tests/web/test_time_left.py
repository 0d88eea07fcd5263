"""When all should be over: never in the past, within bounds, and unknown where nothing is known."""

import pytest

from dovetail.store import Store
from dovetail.vocabulary import read_event
from dovetail.web.reading import read_whole
from dovetail.web.time_left import time_left
from tests.web.synthetic import START, fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_it_is_what_runs_and_what_waits_within_what_predictions_were(store: Store):
    fill_sweep(store)
    found = time_left(read_whole(store), now=START + 620)
    assert found is not None
    assert 0 < found["low"] <= found["seconds"] <= found["high"]


def test_nothing_is_left_where_all_have_ended(store: Store):
    fill_many(store, count=3)
    assert time_left(read_whole(store), now=START + 99) is None


def test_nothing_is_known_before_the_first_plan(store: Store):
    store.add(
        tasks=[("w", make_task("a"))], events=[read_event("described", task=make_task("a").identity, at_seconds=1)]
    )
    assert time_left(read_whole(store), now=2.0) is None


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_makes_no_time_negative(store: Store, jump: float):
    fill_sweep(store)
    found = time_left(read_whole(store), now=START + jump)
    assert found is not None
    assert found["seconds"] >= 0
