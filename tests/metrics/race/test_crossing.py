import math

import pytest

from dovetail.metrics.race.crossing import find_crossing
from dovetail.metrics.race.run_clock import ClockReading
from dovetail.vocabulary import Stop

UP, DOWN = Stop(steps=99, metric="accuracy", at_least=0.9), Stop(steps=99, metric="loss", at_most=1.0)


def readings(*pairs):
    return [
        ClockReading(step=step, value=value, at_seconds=0.0, seconds={"train": float(step), "evaluate": number})
        for number, (step, value) in enumerate(pairs, start=1)
    ]


def test_the_first_hit_counts_and_not_a_later_one():
    crossing = find_crossing(readings((10, 0.5), (20, 0.92), (30, 0.8), (40, 0.95)), UP)
    assert (crossing.hit.step, crossing.miss.step) == (20, 10)
    assert crossing.seconds("mlperf") == 22.0
    assert crossing.seconds("dawnbench") == 20.0


@pytest.mark.parametrize(
    ("stop", "pairs"), [(UP, ((10, 0.8), (20, 1.0))), (DOWN, ((10, 1.5), (20, 0.5)))], ids=["up", "down"]
)
def test_interpolation_meets_the_target_on_the_straight_line(stop, pairs):
    crossing = find_crossing(readings(*pairs), stop)
    assert crossing.interpolated_step == pytest.approx(15.0)
    assert crossing.interpolated_seconds("dawnbench") == pytest.approx(15.0)
    assert crossing.miss.seconds_by("mlperf") < crossing.interpolated_seconds("mlperf") < crossing.seconds("mlperf")
    assert crossing.error_seconds("mlperf") == 11.0


def test_a_first_evaluation_that_hits_tells_nothing_of_before():
    crossing = find_crossing(readings((10, 0.95)), UP)
    assert crossing.by_interpolation is None
    assert crossing.interpolated_seconds("mlperf") == crossing.seconds("mlperf")
    assert crossing.error_seconds("mlperf") == crossing.seconds("mlperf")


def test_a_miss_that_is_no_number_is_not_interpolated_from():
    assert find_crossing(readings((10, math.nan), (20, 0.95)), UP).by_interpolation is None


def test_the_last_miss_is_the_furthest_where_steps_were_taken_again():
    assert find_crossing(readings((10, 0.5), (20, 0.7), (10, 0.5), (30, 0.95)), UP).miss.step == 20


def test_who_never_meets_it_never_crosses():
    assert find_crossing(readings((10, 0.5), (20, math.nan)), UP) is None
