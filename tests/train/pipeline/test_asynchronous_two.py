"""The same with two ranks, and what a checkpoint keeps of them."""

import pytest

from dovetail.testing import programs
from dovetail.train import RESIDENT, checkpoint
from tests.train.pipeline import towers
from tests.train.pipeline.asynchrony import assert_recurrence, assert_weights, expected, opened
from tests.train.pipeline.comparing import CPU

pytestmark = pytest.mark.process

MODES = [("stashing", 1), ("vertical_sync", 1), ("2bw", 4)]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(("timetable", "count"), MODES)
def test_the_recurrence_gives_the_same_bits(followers, timetable, count, optimizer):
    assert_recurrence(followers, timetable, (1, 1), optimizer=optimizer, count=count)


@pytest.mark.parametrize(("timetable", "count"), MODES)
def test_saving_evaluating_and_going_on_change_nothing(followers, timetable, count, tmp_path):
    program = towers.of(microbatches=count, evaluates=True)
    losses, weights = expected(timetable, (1, 1), program, count, steps=9)
    found = []
    session = opened(followers, timetable, (1, 1), program)
    for stop in (2, 5, 9):
        while len(found) < stop:
            found.append(float(session.advance()[0].loss))
            session.evaluate()
        path, _ = checkpoint.write(tmp_path / str(stop), session.state(), task="a", attempt=1)
        session = opened(followers, timetable, (1, 1), program)
        session.load(checkpoint.read(path))
    assert found == losses
    assert_weights(session.state(), weights)


def test_one_device_goes_on_with_it_and_it_with_one_device(followers):
    program = towers.of()
    session = opened(followers, "2bw", (1, 1), program)
    session.advance()
    state = session.state()
    assert any(name.startswith("before1/") for name in state.tensors)
    alone = RESIDENT.open([programs.fresh(program)], device=CPU, threads=1)
    alone.load(state)
    alone.advance()
    session.load(alone.state())
    assert session.advance()[0].step == 3
