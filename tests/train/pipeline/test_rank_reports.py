"""What ranks record of their steps: their own timetable, in the order of time, and nothing that training notices."""

import pytest

from dovetail.planning.pipeline.timetables import ASYNCHRONOUS, recorded
from dovetail.planning.pipeline.timetables.picture import text
from dovetail.train import PIPELINE
from dovetail.train.pipeline.course import Course
from dovetail.train.pipeline.pipeline_layout import PipelineLayout
from tests.train.pipeline import towers

pytestmark = pytest.mark.process
STEPS = 4


def timed(followers, timetable):
    session = followers.open(PIPELINE, towers.of(dropout=0.1), knobs={"timetable": timetable})
    losses = []
    for _ in range(STEPS):
        losses.append(session.advance()[0].loss)
        found = session.timings()
    return found, losses


@pytest.mark.parametrize("timetable", ["1f1b", "zero_bubble", "stashing", "2bw"])
def test_ranks_record_what_their_timetable_says(followers, timetable):
    found, _ = timed(followers, timetable)
    assert (found["step"], found["timetable"], found["microbatches"]) == (STEPS, timetable, 4)
    layout = PipelineLayout.read({"timetable": timetable}, size=2, accumulate=4)
    for rank, rows in enumerate(found["ranks"]):
        course = Course(layout, rank=rank)
        steps = [course.step(number) for number in range(STEPS)]
        kept = [a for step in steps[-3 if layout.is_asynchronous else -1 :] for a in step]
        expected = [(action.operation, action.stage, action.microbatch) for action in kept]
        assert [tuple(row[:3]) for row in rows if layout.is_asynchronous or row[0] != "update"] == expected
        moments = [moment for *_, start, end in rows for moment in (start, end)]
        assert moments == sorted(moments)


@pytest.mark.parametrize("timetable", ["1f1b", "2bw"])
def test_nothing_begins_before_what_it_needs(followers, timetable):
    found, _ = timed(followers, timetable)
    starts = {(o, stage, m): start for rank in found["ranks"] for o, stage, m, start, _ in rank}
    pairs = [
        (start, starts[operation, stage - step, microbatch])
        for (operation, stage, microbatch), start in starts.items()
        for step in [{"forward": 1, "backward": -1}.get(operation, 0)]
        if step and (operation, stage - step, microbatch) in starts
    ]
    assert pairs
    assert all(start > needed for start, needed in pairs)


def test_the_record_is_drawn_as_one_step(followers):
    for timetable in ("1f1b", "2bw"):
        found, _ = timed(followers, timetable)
        drawn = text(recorded(found, flushes=timetable not in ASYNCHRONOUS), columns=80)
        rows = drawn.splitlines()
        assert len(rows) == 2
        assert all("F" in row and "B" in row for row in rows)


def test_recording_changes_no_loss(followers):
    _, losses = timed(followers, "1f1b")
    session = followers.open(PIPELINE, towers.of(dropout=0.1), knobs={"timetable": "1f1b"})
    assert [float(session.advance()[0].loss) for _ in range(STEPS)] == [float(loss) for loss in losses]
