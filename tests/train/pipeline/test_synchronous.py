"""Synchronous timetables give the bits of one device."""

import pytest

from dovetail.testing import programs
from dovetail.train import PIPELINE, RESIDENT
from tests.train.pipeline import towers
from tests.train.pipeline.comparing import CPU, assert_equal, run

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "knobs",
    [
        {"timetable": "1f1b"},
        {"timetable": "1f1b", "recompute": True},
        {"timetable": "gpipe", "replicas": (1, 2, 1)},
        {"timetable": "interleaved", "chunks": 2},
        {"timetable": "zero_bubble"},
        {"timetable": "1f1b", "replicas": (2, 1, 1)},
        {"timetable": "1f1b", "replicas": (1, 3)},
        {"timetable": "1f1b", "replicas": (4,)},
        {"timetable": "1f1b", "replicas": (1, 1), "copies": 2},
    ],
    ids=lambda knobs: "-".join(map(str, knobs.values())),
)
@pytest.mark.parametrize("program", [towers.of(), towers.language], ids=["tower", "tied"])
def test_one_device_gives_the_same_bits(four, knobs, program):
    assert_equal(four.open(PIPELINE, program, knobs=knobs), program)


@pytest.mark.parametrize(
    "knobs",
    [
        {"timetable": "1f1b"},
        {"timetable": "gpipe", "replicas": (1, 2, 1)},
        {"timetable": "interleaved", "chunks": 2},
        {"timetable": "zero_bubble"},
        {"timetable": "1f1b", "replicas": (2, 2), "recompute": True},
    ],
    ids=lambda knobs: "-".join(map(str, knobs.values())),
)
@pytest.mark.parametrize("program", [towers.thrice, towers.noisy], ids=["thrice", "noisy"])
def test_ties_within_a_stage_and_losses_that_draw(four, knobs, program):
    assert_equal(four.open(PIPELINE, program, knobs=knobs), program, steps=3)


def test_backward_in_two_puts_weights_off(four):
    session = four.open(PIPELINE, towers.of(), knobs={"timetable": "zero_bubble"})
    session.advance()
    assert session._deferred._changed


@pytest.mark.parametrize("replicas", [(1, 3), (1, 1, 2), (4,)])
def test_what_was_saved_goes_on_at_another_depth(four, replicas):
    program = towers.of(evaluates=True)
    resident = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    expected = [float(resident.advance()[0].loss) for _ in range(6)], resident.evaluate()
    session = four.open(PIPELINE, program)
    first, state = run(session, 3)
    again = four.open(PIPELINE, program, knobs={"replicas": replicas})
    again.load(state)
    rest, _ = run(again, 3)
    assert (first + rest, again.evaluate()) == expected
