"""What is told of a race: who won, and what to know before one believes it."""

import json
import math
from types import SimpleNamespace

import pytest

from dovetail.metrics.progress import fold
from dovetail.metrics.race.outcome import judge_race
from dovetail.metrics.race.run_clock import fold_clocks
from dovetail.vocabulary.events import TaskFailed
from tests.metrics.race.planted import STOP, judge, make_task, started, straight_run


def race(**steps):
    tasks = [make_task(name, seed) for name in steps for seed in range(4)]
    events = [
        event for task in tasks for event in straight_run(task, steps=steps[task.program.function], step_seconds=0.1)
    ]
    return judge(events, tasks)


def test_the_fastest_wins_and_is_first():
    found = race(slow=300, fast=100)
    assert [each.name for each in found.contestants] == ["fast", "slow"]
    assert found.winner.name == "fast"
    assert found.reference == "slow"
    assert "fast is" in str(found)
    assert found["fast"].time("mlperf").value == pytest.approx(10.0 + 2.0)
    assert found["fast"].time("dawnbench").value == pytest.approx(10.0)


def test_a_notebook_shows_it():
    shown = race(slow=300, fast=100)._repr_html_()
    assert shown.index("fast") < shown.index("slow")
    assert "by seconds a step" in shown


def test_it_is_plain_data_too():
    found = race(slow=300, fast=100).record()
    again = json.loads(json.dumps(found))
    assert again["contestants"][0]["time"]["mlperf"]["value"] == pytest.approx(12.0)
    assert len(again["contestants"][0]["runs"][0]["curve"]) == 10


def test_who_never_arrives_is_last_and_told_of():
    tasks = [make_task(name, seed) for name in ("never", "fine") for seed in range(3)]
    events = [
        event
        for task in tasks
        for event in straight_run(task, steps=100, step_seconds=0.1, arrives=task.program.function == "fine")
    ]
    found = judge(events, tasks)
    assert found.contestants[-1].name == "never"
    assert found["never"].time("mlperf").value == math.inf
    assert any("3 of 3 runs never reached the target" in note for note in found.notes)
    assert found.winner.name == "fine"


def test_nobody_wins_where_nobody_arrives():
    task = make_task("never", 0)
    found = judge(straight_run(task, steps=100, step_seconds=0.1, arrives=False), [task])
    assert found.winner is None
    assert "never" in str(found)
    assert any("at least 3 runs" in note for note in found.notes)


def test_a_run_that_failed_never_arrives_and_its_reason_is_told():
    tasks = [make_task("net", seed) for seed in range(4)]
    events = [event for task in tasks[1:] for event in straight_run(task, steps=100, step_seconds=0.1)]
    events += [started(tasks[0], 0.0)]
    events += [TaskFailed(task=tasks[0].identity, attempt=1, at_seconds=1.0, reason="the loss was NaN")]
    found = judge(events, tasks)
    assert found["net"].arrived_count == 3
    assert any("1 of 4 runs failed and never arrive: the loss was NaN" in note for note in found.notes)


def test_seeds_that_change_nothing_are_found_out_by_equal_curves():
    tasks = [make_task("net", seed) for seed in range(3)]
    events = [event for task in tasks for event in straight_run(task, steps=100, step_seconds=0.1)]

    def notes(points):
        return judge_race(
            "race",
            {"net": tasks},
            stop=STOP,
            clocks=fold_clocks(events),
            progress=fold(events),
            points=points,
            prices={},
        ).notes

    def curve(seed):
        return [SimpleNamespace(name="loss", step=n, value=1 / (n + seed), at_seconds=0.0) for n in range(1, 9)]

    same = notes({task.identity: curve(0) for task in tasks})
    assert any("seeds 0, 1, 2 gave equal curves" in note and "Let the program draw" in note for note in same)
    assert not any("equal curves" in note for note in notes({task.identity: curve(task.seed) for task in tasks}))


def test_sparse_evaluations_are_told_of():
    task = make_task("net", 0)
    rare = judge(straight_run(task, steps=100, step_seconds=0.1, every=50), [task])
    often = judge(straight_run(task, steps=100, step_seconds=0.1, every=5), [task])
    assert any("Evaluate more often" in note for note in rare.notes)
    assert not any("Evaluate more often" in note for note in often.notes)


def test_a_contestant_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="must be one of"):
        race(slow=300, fast=100)["quick"]
