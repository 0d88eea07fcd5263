import dataclasses
import math

from dovetail.metrics.race.contestants import find_equal_curves, group_tasks, name_without_seed
from tests.metrics.race.planted import DEVICE, judge, make_task, straight_run


def test_runs_of_one_contestant_differ_in_their_seed_alone():
    wide = [dataclasses.replace(make_task("net", seed), parameters={"seed": seed, "width": 9}) for seed in (0, 1)]
    other = [make_task("other", 0)]
    narrow = [make_task("net", seed) for seed in (0, 1)]
    groups = group_tasks([*wide, *other, *narrow])
    assert sorted(map(len, groups.values())) == [1, 2, 2]
    assert groups["net"] == wide
    assert groups["other"] == other


def test_a_name_keeps_other_words():
    assert name_without_seed(make_task("net", 1)) == "net"


def test_spend_is_price_times_the_time_that_devices_were_held():
    tasks = [make_task("net", seed) for seed in range(3)]
    events = [event for task in tasks for event in straight_run(task, steps=100, step_seconds=0.9, start_seconds=0.0)]
    found = judge(events, tasks, prices={DEVICE: 3.6})["net"]
    assert math.isclose(found.runs[0].spend, 0.001 * (90.0 + 10 * 0.2))
    assert math.isclose(found.spend.value, found.runs[0].spend)
    assert judge(events, tasks)["net"].spend is None


def test_equal_curves_are_found_whatever_their_length():
    falling = [("loss", step, 1 / step) for step in range(1, 9)]
    other = [("loss", step, 0.99 / step) for step in range(1, 9)]
    assert find_equal_curves({0: falling, 1: other, 2: falling[:5], 3: []}) == [[0, 2]]
    assert find_equal_curves({0: falling, 1: other}) == []
    assert find_equal_curves({0: falling[:2], 1: falling[:2]}) == []
