"""Every second of a run is under one phase, whatever happens to it on the way."""

import pytest

from dovetail.metrics.race.run_clock import CLOCKS, PHASES, fold_clocks
from dovetail.vocabulary import FrozenDict
from dovetail.vocabulary.events import RUN_BEGAN, AttemptLost, AttemptStopped, CheckpointSaved, PlanMade, TaskFinished
from dovetail.vocabulary.request_events import TaskRestarted
from tests.metrics.race.planted import evaluated, make_task, started

TASK = make_task("net", 0)


def run_began(at):
    return PlanMade(at_seconds=at, plan=1, workload="w", makespan_seconds=1.0, bound_seconds=1.0, because=RUN_BEGAN)


def stopped(at, step, **seconds):
    return AttemptStopped(task=TASK.identity, attempt=1, at_seconds=at, step=step, seconds=FrozenDict(seconds))


def lost(at, *, attempt=1, of_run=False):
    return AttemptLost(task=TASK.identity, attempt=attempt, at_seconds=at, of_run=of_run)


def last_reading(*events):
    return fold_clocks(events)[TASK.identity].readings[-1]


def test_both_clocks_come_from_one_run():
    reading = last_reading(
        started(TASK, 10.0), evaluated(TASK, 30.0, 5, 0.9, train=10.0, read=2.0, compile=1.0, evaluate=3.0, save=0.5)
    )
    assert reading.seconds["start"] == 3.5
    assert sum(reading.seconds.values()) == 20.0
    assert reading.seconds_by("mlperf") == 16.5
    assert reading.seconds_by("dawnbench") == 13.0
    assert reading.step_seconds == 12.0 / 5


def test_clocks_count_phases_that_there_are():
    assert all(set(phases) <= PHASES.keys() for phases in CLOCKS.values())
    assert set(CLOCKS["mlperf"]) - set(CLOCKS["dawnbench"]) == {"evaluate", "save"}


def test_a_move_is_on_the_clock():
    """Stopped at 20, on another device from 25 on: the wait and the second start interrupt, saved steps are kept."""
    reading = last_reading(
        run_began(9.0),
        started(TASK, 10.0),
        evaluated(TASK, 18.0, 5, 0.5, train=6.0, evaluate=1.0),
        stopped(20.0, 6, train=7.0, evaluate=1.0, save=0.5),
        started(TASK, 25.0, attempt=2, step=6, devices=["n0:1"]),
        evaluated(TASK, 34.0, 10, 0.9, attempt=2, train=5.0, evaluate=1.0),
    )
    assert dict(reading.seconds) == pytest.approx(
        {"start": 1.5, "train": 12.0, "evaluate": 2.0, "save": 0.5, "interrupted": 5.0 + 3.0}
    )
    assert sum(reading.seconds.values()) == pytest.approx(34.0 - 10.0)
    assert reading.taken_steps == 10
    assert dict(reading.device_seconds) == {"n0:0": 10.0, "n0:1": 9.0}


def test_work_that_was_lost_interrupts_and_its_steps_were_taken_all_the_same():
    reading = last_reading(
        started(TASK, 0.0),
        evaluated(TASK, 10.0, 8, 0.5, train=8.0),
        lost(14.0),
        started(TASK, 20.0, attempt=2, step=4),
        evaluated(TASK, 30.0, 12, 0.9, attempt=2, train=8.0),
    )
    assert dict(reading.seconds) == pytest.approx({"start": 2.0, "train": 16.0, "interrupted": 4.0 + 6.0 + 2.0})
    assert reading.taken_steps == 8 + 8
    assert reading.step_seconds == 1.0


def test_a_race_that_was_stopped_and_goes_on_has_no_gap_on_its_clock():
    events = [
        run_began(0.0),
        started(TASK, 1.0),
        evaluated(TASK, 10.0, 8, 0.5, train=8.0),
        stopped(12.0, 9, train=9.0, save=1.0),
        run_began(5000.0),
        started(TASK, 5001.0, attempt=2, step=9),
        evaluated(TASK, 5006.0, 12, 0.9, attempt=2, train=3.0),
    ]
    found = fold_clocks(events)[TASK.identity]
    assert found.stopped_seconds == 4989.0
    assert found.interruptions == 1
    assert sum(found.readings[-1].seconds.values()) == pytest.approx(11.0 + 5.0)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_controller_that_was_killed_leaves_a_clock_that_stands_where_it_was_last_heard(says_so):
    """Whether or not the next controller wrote down that the attempt was lost."""
    events = [
        run_began(0.0),
        started(TASK, 1.0),
        evaluated(TASK, 10.0, 8, 0.5, train=8.0),
        CheckpointSaved(task=TASK.identity, attempt=1, at_seconds=11.0, step=8),
        *([lost(900.0, of_run=True)] if says_so else []),
        run_began(901.0),
        started(TASK, 902.0, attempt=2, step=8),
        evaluated(TASK, 908.0, 12, 0.9, attempt=2, train=4.0),
    ]
    found = fold_clocks(events)[TASK.identity]
    assert found.stopped_seconds == 902.0 - 11.0
    assert dict(found.readings[-1].seconds) == pytest.approx({"start": 1.0, "train": 12.0, "interrupted": 1.0 + 2.0})


def test_what_was_trained_before_it_was_to_start_anew_does_not_count():
    clock = fold_clocks(
        [
            started(TASK, 0.0),
            evaluated(TASK, 10.0, 8, 0.95, train=8.0),
            TaskFinished(task=TASK.identity, attempt=1, at_seconds=11.0, step=8),
            TaskRestarted(task=TASK.identity, attempt=1, at_seconds=50.0),
            started(TASK, 60.0, attempt=2),
        ]
    )[TASK.identity]
    assert clock.readings == []
    assert clock.started_seconds == 60.0


def test_a_stale_attempt_says_nothing():
    found = fold_clocks([started(TASK, 0.0, attempt=2), evaluated(TASK, 5.0, 3, 0.99, attempt=1, train=1.0)])
    assert found[TASK.identity].readings == []


def test_a_store_from_before_readings_has_clocks_without_them():
    found = fold_clocks([started(TASK, 0.0), TaskFinished(task=TASK.identity, attempt=1, at_seconds=9.0, step=8)])
    assert found[TASK.identity].readings == []
