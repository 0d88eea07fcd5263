"""Times: nothing begins before what it needs, messages take their time beside computing, and pictures show it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.pipeline.timetables import TIMETABLES, Durations, Timetable, simulate
from dovetail.planning.pipeline.timetables.actions import done, needs
from dovetail.planning.pipeline.timetables.picture import text
from dovetail.vocabulary import InvalidRecord

seconds = st.floats(0.1, 5.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Timetable, Durations]:
    depth = draw(st.integers(1, 4))
    name = draw(st.sampled_from(["gpipe", "1f1b", "zero_bubble", "stashing", "2bw"]))
    made = TIMETABLES[name]([1] * depth, microbatches=depth + draw(st.integers(0, 4)))
    figures = [draw(st.tuples(*[seconds] * depth)) for _ in range(4)]
    forward, backward, transfer, update = figures
    return made, Durations(forward=forward, backward=backward, transfer=transfer, update=update)


@settings(max_examples=40, deadline=None)
@given(cases())
def test_nothing_begins_too_early_or_later_than_it_must(case: tuple[Timetable, Durations]) -> None:
    made, durations = case
    run = simulate(made, durations)
    ends = {done(t.action): t.end for rank in run.ranks for t in rank if t.action.operation != "update"}
    for rank in run.ranks:
        for number, timed in enumerate(rank):
            assert timed.end == pytest.approx(timed.start + durations.of(timed.action))
            before = rank[number - 1].end if number else 0.0
            arrivals = [
                ends[needed] + (durations.message(needed[1], timed.action.stage) if sent else 0.0)
                for needed, sent in needs(made, timed.action)
            ]
            earliest = max([before, *arrivals])
            assert timed.start >= earliest - 1e-9
            # Messages one behind another may come later than alone.
            assert timed.start == pytest.approx(earliest) or any(sent for _, sent in needs(made, timed.action))
    assert run.seconds >= max(run.busy)


def test_messages_overlap_with_computing() -> None:
    durations = Durations(forward=(1.0, 1.0), backward=(2.0, 2.0), transfer=(0.5,))
    made = TIMETABLES["1f1b"]([1, 1], microbatches=50)
    # Only the ends wait for messages: with two in flight the first rank always has something to do.
    assert simulate(made, durations).seconds <= 3 * 50 + 3 + 50 * 1.0
    assert simulate(TIMETABLES["gpipe"]([1, 1], microbatches=50), durations).seconds == pytest.approx(3 * 50 + 3 + 1)


def test_the_slowest_stage_sets_the_pace() -> None:
    durations = Durations(forward=(1.0, 3.0, 1.0), backward=(2.0, 6.0, 2.0))
    run = simulate(TIMETABLES["1f1b"]([1, 1, 1], microbatches=20), durations)
    assert 20 * 9 < run.seconds < 20 * 9 + 2 * 9


def test_stages_and_durations_must_be_as_many() -> None:
    with pytest.raises(InvalidRecord, match="for 3 stages, got 2"):
        simulate(TIMETABLES["1f1b"]([1, 1, 1], microbatches=3), Durations.equal(2))


def test_pictures_show_every_rank_and_action() -> None:
    run = simulate(TIMETABLES["zero_bubble"]([1] * 3, microbatches=4), Durations.equal(3))
    lines = text(run, columns=120).splitlines()
    assert len(lines) == 3
    assert all(len(line) == len("rank 0  ") + 120 for line in lines)
    assert all(f"{letter}{number}" in line for line in lines for letter in "FIW" for number in range(4))


def test_a_crowded_picture_keeps_its_width() -> None:
    run = simulate(TIMETABLES["1f1b"]([1] * 2, microbatches=200), Durations.equal(2))
    assert {len(line) for line in text(run, columns=90).splitlines()} == {len("rank 0  ") + 90}
