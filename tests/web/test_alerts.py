"""What a person should look at first, and only that."""

import pytest

from dovetail.store import Store
from dovetail.vocabulary import FrozenDict, read_event
from dovetail.vocabulary.events import DevicesReleased
from dovetail.web.alerts import MOST_ALERTS, alerts
from dovetail.web.reading import read_whole
from tests.web.synthetic import START, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def kinds(store: Store, *, now: float) -> list[str]:
    return [each["kind"] for each in alerts(read_whole(store), now=now)]


def test_failed_and_slow_and_late_are_told(store: Store):
    tasks = fill_sweep(store)
    assert kinds(store, now=START + 620) == ["failed"]
    assert kinds(store, now=START + 2000) == ["failed", "slow"]
    dated = read_event("dated", task=tasks[11].identity, at_seconds=START, data={"deadline_seconds": START + 100})
    store.add(events=[dated])
    found = alerts(read_whole(store), now=START + 700)
    assert [each["kind"] for each in found][:2] == ["failed", "late"]
    assert found[1]["text"] == "its deadline passed 10 min 0 s ago"


def test_a_deadline_that_cannot_be_kept_is_told_before_it_passes(store: Store):
    running = fill_sweep(store)[10].identity
    for after, expected in ((5000, ["failed"]), (650, ["failed", "late"])):
        dated = read_event("dated", task=running, at_seconds=START, data={"deadline_seconds": START + after})
        store.add(events=[dated])
        found = alerts(read_whole(store), now=START + 620)
        assert [each["kind"] for each in found] == expected
    assert found[1]["text"].startswith("it will miss its deadline by about ")


def test_devices_that_wait_for_data_and_that_left_are_told(store: Store):
    seconds = FrozenDict({"step": 10.0, "reading": 30.0})
    order = {"placement": "p", "purpose": "train", "devices": ("n0:0",), "duration_seconds": 40.0}
    left = read_event("departed", at_seconds=9.0, data={"devices": ["n0:1"], "reason": "it fell silent"})
    store.add(events=[DevicesReleased(at_seconds=50.0, seconds=seconds, **order), left])
    found = alerts(read_whole(store), now=60.0)
    assert [each["text"] for each in found] == [
        "waited for its batches for 75% of the time",
        "device n0:1 left the cluster: it fell silent",
    ]


def test_a_clock_that_went_back_is_no_alert(store: Store):
    fill_sweep(store)
    assert kinds(store, now=START - 10_000) == ["failed"]


def test_thousands_are_cut(store: Store):
    tasks = [make_task(f"t{n}") for n in range(300)]
    events = [read_event("failed", task=task.identity, at_seconds=1.0, data={"reason": "nan"}) for task in tasks]
    store.add(tasks=[("w", task) for task in tasks], events=events)
    assert len(kinds(store, now=2.0)) == MOST_ALERTS
