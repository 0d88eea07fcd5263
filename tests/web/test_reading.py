"""A store is read once, row by row as it grows, and secrets are masked on the way."""

import math

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import read_event
from dovetail.web.plain_data import dump
from dovetail.web.reading import StoreReading, read_whole
from dovetail.web.snapshot import snapshot
from tests.web.synthetic import START, fill_anew, fill_many, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_what_is_read_bit_by_bit_is_what_is_read_at_once(store: Store):
    reading = StoreReading()
    for fill in (lambda: fill_many(store, count=5), lambda: fill_sweep(store), lambda: fill_anew(store)):
        fill()
        while reading.read(store, most=7):
            pass
        reading.look_at_running(store)
        reading.summarise(store, most=100)
    whole = read_whole(store)
    assert dump(snapshot(reading, now=START)) == dump(snapshot(whole, now=START))


def test_only_what_is_new_is_told(store: Store):
    tasks = fill_sweep(store)
    reading = StoreReading()
    assert reading.read(store) == {task.identity for task in tasks}
    assert reading.read(store) == set()
    store.add(events=[read_event("paused", task=tasks[11].identity, at_seconds=START + 900)])
    assert reading.read(store) == {tasks[11].identity}
    assert reading.progress[tasks[11].identity].status == "paused"


def test_a_running_task_stands_where_its_points_are(store: Store):
    running = fill_sweep(store)[10].identity
    reading = read_whole(store)
    assert reading.progress[running].step == 289
    store.add(points=[Point(task=running, name="loss", step=300, value=math.inf, at_seconds=START + 700)])
    assert reading.look_at_running(store) == {running}
    assert reading.progress[running].step == 300
    summary = reading.metrics[running]["loss"]
    assert (summary.last, summary.count) == (math.inf, 73)
    assert math.isfinite(summary.high)


def test_best_values_are_finite_and_of_the_right_end(store: Store):
    task = make_task("a", target=0.9)
    values = {"accuracy": (0.1, math.nan, math.inf, 0.5), "loss": (3.0, -math.inf, 2.0, math.nan)}
    points = [
        Point(task=task.identity, name=name, step=step, value=value, at_seconds=float(step))
        for name, each in values.items()
        for step, value in enumerate(each)
    ]
    store.add(tasks=[("w", task)], points=points)
    reading = read_whole(store)
    found = {name: reading.best(task.identity, each) for name, each in reading.metrics[task.identity].items()}
    assert found == {"accuracy": 0.5, "loss": 2.0}


def test_one_workload_stays_alone(store: Store):
    fill_sweep(store)
    fill_many(store, count=3)
    assert len(read_whole(store, workload="many").tasks) == 3
    assert {option.technique for option in read_whole(store, workload="many").options.values()} == {"resident"}


def test_begun_anew_forgets_its_points(store: Store):
    task = fill_anew(store)[0].identity
    reading = read_whole(store)
    assert reading.metrics[task]["accuracy"].count == 2
    store.add(
        events=[read_event("restarted", task=task, attempt=2, at_seconds=START + 99_999)], without_points_of=[task]
    )
    reading.read(store)
    reading.summarise(store, most=9)
    assert not reading.metrics[task]


def test_secrets_are_masked_everywhere(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEAM_WEBHOOK", "opensesame")
    task = make_task("run-hunter22", dsn="hunter22", source="postgres://me:swordfish@db.example.com/x")
    said = "hunter22 aHVudGVyMjI= opensesame swordfish ghp_0123456789abcdef"
    events = [
        read_event("failed", task=task.identity, at_seconds=1.0, data={"reason": said, "log": said}),
        read_event("finished", task=task.identity, at_seconds=2.0, data={"step": 1, "metrics": {f"loss {said}": 1.0}}),
        read_event("departed", at_seconds=2.0, data={"devices": ["n0:0"], "reason": said}),
    ]
    points = [Point(task=task.identity, name=f"loss {said}", step=1, value=1.0, at_seconds=1.0)]
    store.add(tasks=[(f"sweep {said}", task)], events=events, points=points)
    reading = read_whole(store)
    found = dump(snapshot(reading, now=3.0))
    for secret in ("hunter22", "aHVudGVyMjI", "opensesame", "swordfish", "ghp_0123456789abcdef"):
        assert secret not in found
    assert reading.names()[task.identity] == "run-***"


def test_a_record_that_cannot_be_read_harms_nobody_else(store: Store):
    fill_many(store, count=2)
    store._connection.execute("UPDATE tasks SET record = '{' WHERE rowid = 1")
    store._connection.execute("UPDATE events SET data = 'x' WHERE number = 1")
    reading = read_whole(store)
    assert len(reading.tasks) == 2
    assert sorted(one.status for one in reading.progress.values()) == ["finished", "finished"]
