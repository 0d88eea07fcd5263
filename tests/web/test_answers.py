"""What views ask for: curves, plans, targets, pipelines."""

import json

import pytest

from dovetail.store import Point, Store
from dovetail.vocabulary import DovetailError, Plan, Schedule
from dovetail.vocabulary.events import TaskFailed, TaskFinished
from dovetail.web import answers, report
from dovetail.web.plain_data import dump
from dovetail.web.reading import read_whole
from tests.web.synthetic import START, fill_anew, fill_sweep, make_task


@pytest.fixture
def store():
    with Store(None, write=True) as opened:
        yield opened


def test_curves_are_over_steps_training_and_the_wall(store: Store):
    tasks = fill_sweep(store)
    reading, first = read_whole(store), tasks[0].identity
    found = json.loads(dump(answers.curves_of(reading, store, [first, "nobody"])))
    assert found.keys() == {first}
    assert found[first].keys() == {"loss", "accuracy"}
    curve = found[first]["loss"]
    assert len({len(curve[name]) for name in ("steps", "values", "trained", "wall", "at")}) == 1
    assert curve["trained"] == sorted(curve["trained"])
    only = answers.curves_of(reading, store, [first], metrics=["accuracy"])
    assert only[first].keys() == {"accuracy"}


def test_long_curves_keep_their_spikes_and_gaps(store: Store):
    task = make_task("a")
    values = [float("nan") if step == 700 else 9.0 if step == 3210 else 1.0 for step in range(5000)]
    points = [Point(task=task.identity, name="loss", step=s, value=v, at_seconds=s / 10) for s, v in enumerate(values)]
    store.add(tasks=[("w", task)], points=points)
    reading = read_whole(store)
    curve = answers.curves_of(reading, store, [task.identity])[task.identity]["loss"]
    assert len(curve["steps"]) <= answers.MOST_POINTS
    assert max(value for value in curve["values"] if value is not None) == 9.0
    small = answers.sparks_of(reading, store, [task.identity], metric="loss")[task.identity]
    assert len(small) <= answers.SPARK_POINTS
    assert 9.0 in small


def test_a_plan_names_tasks_and_says_what_does_not_fit(store: Store):
    tasks = fill_sweep(store)
    names = [task.name for task in tasks]
    plan = Plan(schedule=Schedule(placements=()), explanation=(f"{tasks[4].identity}: resident on 1 × h100",))
    number = store.add_plan(plan, workload="sweep", at_seconds=START + 200)
    reading = read_whole(store)
    found = json.loads(dump(answers.plan_of(reading, store, 1)))
    assert len(found["placements"]) == 10
    assert found["placements"][0][0] == [task.identity for task in tasks[:3]]
    assert [each["reason"][:16] for each in found["rejections"]] == ["needs 91.2 GiB o", "fused members mu"]
    assert found["rejections"][0]["tasks"] == [tasks[9].identity]
    assert answers.plan_of(reading, store, number)["explanation"] == [f"{names[4]}: resident on 1 × h100"]
    with pytest.raises(DovetailError, match="there is no plan 99"):
        answers.plan_of(reading, store, 99)


def test_targets_are_told_soonest_first(store: Store):
    fill_anew(store)
    found = answers.targets_of(read_whole(store), store)
    assert found[0]["reached"] == {"value": 0.6, "step": 300, "trained": 30.0, "wall": 30.0}
    assert found[1]["reached"] is None


def test_what_is_behind_failures_is_told_in_words_without_secrets(store: Store):
    tasks = [make_task(f"t{n}", rate=(0.1, 0.9)[n % 2], api_key="sk-hidden-0000") for n in range(40)]
    ends = [
        TaskFailed(task=task.identity, attempt=1, at_seconds=1.0, reason="no", phase="training")
        if number % 2
        else TaskFinished(task=task.identity, attempt=1, at_seconds=1.0, step=1)
        for number, task in enumerate(tasks)
    ]
    store.add(tasks=[("sweep", task) for task in tasks], events=ends)
    (found,) = answers.explain_outcomes(read_whole(store), store)
    assert found["question"] == "why did tasks fail: an error in training?"
    assert found["lines"][0].startswith("rate = 0.9: 20 of 20 such failures, nowhere else")
    assert answers.explain_outcomes(read_whole(store), store, workload="sweep") == [found]
    assert report.freeze(store, written_seconds=0.0)["why"] == [found]


def test_tasks_that_differ_in_nothing_are_said_to(store: Store):
    tasks = [make_task(f"t{n}") for n in range(4)]
    fails = [TaskFailed(task=t.identity, attempt=1, at_seconds=1.0, reason="no", phase="training") for t in tasks[:2]]
    ends = [TaskFinished(task=task.identity, attempt=1, at_seconds=1.0, step=1) for task in tasks[2:]]
    store.add(tasks=[("sweep", task) for task in tasks], events=[*fails, *ends])
    (found,) = answers.explain_outcomes(read_whole(store), store)
    assert found["lines"] == [
        "tasks must differ in something to explain by; all of these have the same parameters and ran alike."
    ]


def test_of_more_tasks_than_are_read_it_is_said_where_to_ask(store: Store, monkeypatch):
    monkeypatch.setattr(answers, "MOST_EXPLAINED", 3)
    fill_sweep(store)
    (found,) = answers.explain_outcomes(read_whole(store), store)
    assert found["lines"] == ["left out here for 12 tasks, more than 3: 'dovetail why' answers"]


def test_where_nothing_failed_there_is_nothing_to_explain(store: Store):
    assert answers.explain_outcomes(read_whole(store), store) == []


def test_no_pipeline_is_no_drawing(store: Store):
    fill_anew(store)
    assert answers.pipelines_of(read_whole(store), store) == []
