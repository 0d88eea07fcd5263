"""What came of a workload, read back from a real store."""

import dataclasses
import math
import sys

import pytest

from dovetail.control import open_result, table
from dovetail.store import Point, Store
from dovetail.vocabulary import DovetailError, Stop, StoreError, read_event
from tests.control.simulations import Faults, RiggedEngine, carry_out, controller, task, workload, world

TASKS = [task("low", width=1), task("high", width=2), task("broken")]
SCORES = {"low": 0.2, "high": 0.9}


@pytest.fixture
def home(tmp_path):
    """A store in which two tasks finished and one failed, with two points of a metric each."""
    faults = Faults(outcome=lambda name, attempt, until: "it broke" if name == "broken" else None)
    with Store(tmp_path, write=True) as store:
        carry_out(controller(workload(*TASKS), store, engine=RiggedEngine(world(), faults)))
        for record in TASKS[:2]:
            values = (0.5, SCORES[record.name])
            store.add(
                points=[
                    Point(task=record.identity, name="accuracy", step=step, value=value, at_seconds=step)
                    for step, value in zip((50, 100), values, strict=True)
                ]
            )
    return tmp_path


def test_each_task_with_status_reason_history_and_last_metrics(home):
    found = open_result(home, workload="simulated")
    assert [(one.name, one.status, one.step) for one in found.tasks] == [
        ("low", "finished", 100),
        ("high", "finished", 100),
        ("broken", "failed", 0),
    ]
    assert found["broken"].reason == "it broke"
    assert found["high"].history == {"accuracy": ((50, 0.5), (100, 0.9))}
    assert found["high"].metrics == {"accuracy": 0.9}
    assert found["high"].directory == home / "checkpoints" / TASKS[1].identity
    assert found.makespan_seconds > 0
    assert found.planned_seconds > 0


def test_the_best_by_its_last_value(home):
    found = open_result(home)
    assert found.best("accuracy").name == "high"
    assert found.best("accuracy", goal="min").name == "low"


def test_the_best_of_a_loss_is_the_smallest(home):
    with Store(home, write=True) as store:
        for record, value in zip(TASKS[:2], (0.1, 0.9), strict=True):
            store.add(points=[Point(task=record.identity, name="loss", step=100, value=value, at_seconds=100)])
    found = open_result(home)
    assert found.best("loss").name == "low"
    assert found.best("loss", goal="max").name == "high"


def test_the_best_is_what_tasks_were_to_reach(tmp_path):
    stop = Stop(steps=9, metric="energy", at_most=0.0)
    records = [dataclasses.replace(task(name), stop=stop) for name in ("low", "high")]
    with Store(tmp_path, write=True) as store:
        points = [
            Point(task=record.identity, name="energy", step=9, value=value, at_seconds=9.0)
            for record, value in zip(records, (0.1, 0.9), strict=True)
        ]
        store.add(tasks=[("sweep", record) for record in records], points=points)
    assert open_result(tmp_path).best("energy").name == "low"


def test_a_metric_that_nobody_reported_is_refused_with_those_that_were(home):
    with pytest.raises(DovetailError, match=r"some task must have reported 'acuracy'.*\['accuracy'\]"):
        open_result(home).best("acuracy")


def test_a_goal_must_be_max_or_min(home):
    with pytest.raises(DovetailError, match="goal must be 'max' or 'min', got 'maximum'"):
        open_result(home).best("accuracy", goal="maximum")


@pytest.mark.parametrize("goal", ["max", "min"])
def test_nan_is_never_best(home, goal):
    with Store(home, write=True) as store:
        store.add(points=[Point(task=TASKS[0].identity, name="accuracy", step=100, value=math.nan, at_seconds=0.0)])
    assert open_result(home).best("accuracy", goal=goal).name == "high"


def test_what_vanished_is_not_in_the_result(home):
    with Store(home, write=True) as store:
        store.add(events=[read_event("vanished", task=TASKS[0].identity, at_seconds=0.0)])
    assert [one.name for one in open_result(home).tasks] == ["high", "broken"]


def test_rows_for_scripts(home):
    (row, *_) = table(open_result(home))
    assert row == {
        "task": "low",
        "id": TASKS[0].identity,
        "status": "finished",
        "step": 100,
        "reason": "",
        "metrics": {"accuracy": 0.2},
        "parameters": {"width": 1},
    }


def test_a_workload_that_the_store_does_not_hold_is_refused(home):
    with pytest.raises(StoreError, match=r"workload must be one of those in the store, \[.*\], got 'another'"):
        open_result(home, workload="another")


def test_no_store_no_result(tmp_path):
    with pytest.raises(StoreError, match=r"there must be a store at .*; found none\."):
        open_result(tmp_path / "nothing")


def test_a_frame_has_a_row_for_each_task(home):
    frame = open_result(home, workload="simulated").frame()
    assert list(frame["task"]) == ["low", "high", "broken"]
    assert list(frame["width"][:2]) == [1, 2]
    assert frame.set_index("task")["accuracy"]["high"] == 0.9
    assert frame.set_index("task")["reason"]["broken"] == "it broke"


def test_a_frame_of_the_history_has_a_row_for_each_value(home):
    frame = open_result(home).frame(history=True)
    rows = frame[frame["task"] == "high"]
    assert list(zip(rows["step"], rows["metric"], rows["value"], rows["width"], strict=True)) == [
        (50, "accuracy", 0.5, 2),
        (100, "accuracy", 0.9, 2),
    ]


def test_without_pandas_a_frame_says_how_to_get_it(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DovetailError, match="pip install pandas"):
        open_result(home).frame()


def test_a_clock_that_is_set_back_between_two_runs_makes_none_of_them_longer(tmp_path):
    year = 365 * 24 * 3600.0
    taken = []
    with Store(tmp_path, write=True) as store:
        for steps, began in ((100, year), (200, 0.0), (300, 2 * year)):
            engine = RiggedEngine(world())
            found = controller(workload(task("a", steps=steps)), store, engine=engine)
            engine._now = began
            found.reconcile()
            found.run()
            taken.append(open_result(tmp_path).makespan_seconds)
        spans = found.progress[found.workload.tasks[0].identity].spans
    assert all(50 < each < 300 for each in taken)
    assert all(span.end_seconds >= span.start_seconds for span in spans)
