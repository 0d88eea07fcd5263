"""What was planted is found in the half where it was planted, by the real folds, and its interval holds it."""

import random

import pytest

from dovetail.metrics.race.speed_up import compare_contestants
from tests.metrics.race.planted import judge, make_task, straight_run

RUNS = 10


def race_of(**faster):
    """A reference of about 200 steps of about 50 ms, ten seeds, and a contestant whose steps or step seconds are
    multiplied."""
    dice = random.Random(0)
    events, tasks = [], []
    for name, steps, seconds in (
        ("reference", 1.0, 1.0),
        ("faster", faster.get("steps", 1.0), faster.get("seconds", 1.0)),
    ):
        for seed in range(RUNS):
            task = make_task(name, seed)
            tasks.append(task)
            events += straight_run(
                task,
                steps=10 * round(steps * dice.gauss(200, 6) / 10),
                step_seconds=seconds * dice.gauss(0.05, 0.001),
                start_seconds=dice.uniform(1.0, 5.0),
            )
    found = judge(events, tasks)
    return compare_contestants(found["reference"], found["faster"], clock="mlperf")


def holds(estimate, value):
    return estimate.low <= value <= estimate.high


def test_a_faster_step_is_the_systems():
    found = race_of(seconds=0.8)
    assert found.systems.value == pytest.approx(1.25, rel=0.02)
    assert found.statistical.value == pytest.approx(1.0, rel=0.05)
    assert found.other.value == pytest.approx(1.0, rel=0.1)
    assert holds(found.systems, 1.25)
    assert not holds(found.systems, 1.0)
    assert holds(found.statistical, 1.0)
    assert "does not converge faster" in found.verdict or "chance allows" in found.verdict


def test_fewer_steps_are_the_learnings():
    found = race_of(steps=0.8)
    assert found.statistical.value == pytest.approx(1.25, rel=0.04)
    assert found.systems.value == pytest.approx(1.0, rel=0.02)
    assert found.other.value == pytest.approx(1.0, rel=0.02)
    assert holds(found.statistical, 1.25)
    assert not holds(found.statistical, 1.0)
    assert holds(found.systems, 1.0)
    assert "it converges faster" in found.verdict


def test_the_whole_is_the_product_of_its_parts():
    found = race_of(steps=0.8, seconds=0.8)
    assert found.total.value == pytest.approx(found.systems.value * found.statistical.value * found.other.value)
    assert found.total.value == pytest.approx(1.25**2, rel=0.1)


def test_who_never_arrives_is_compared_all_the_same():
    tasks = [make_task(name, seed) for name in ("a", "b") for seed in range(4)]
    events = [
        event
        for task in tasks
        for event in straight_run(task, steps=100, step_seconds=0.1, arrives=task.program.function == "a")
    ]
    (found,) = judge(events, tasks).speed_ups
    assert found.total.value == 0.0
    assert found.systems.value == pytest.approx(1.0)
    assert "never arriving" in found.verdict
