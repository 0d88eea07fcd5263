"""Objectives and times as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary import OBJECTIVES, InvalidRecord, Objective
from dovetail.vocabulary.units import parse_seconds


@pytest.mark.parametrize("text", OBJECTIVES.values())
def test_what_is_written_can_be_read_again(text: str) -> None:
    found = Objective.parse(text)
    assert Objective.parse(str(found)) == found
    assert found.name in OBJECTIVES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "objective must be one of"),
        ("cost:deadline=2h", "did you mean 'spend:deadline=2h'"),
        ("makspan", "did you mean 'makespan'"),
        ("mean:3", "must be written as 'mean'"),
        ("first", "a number of results of at least 1"),
        ("first:0", "a number of results of at least 1"),
        ("first:many", "must be written as 'first:3'"),
        ("spend", "a deadline later than now"),
        ("spend:deadline=soon", "a time must be a number with units"),
        ("spend:by=2h", "must be written as 'spend:deadline=2h'"),
        ("target:chance=1", "a chance above 0 and below 1"),
        ("target:chance=nan", "a chance above 0 and below 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_form(text: str, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        Objective.parse(text)


def test_what_belongs_to_another_objective_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="chance belongs to objective 'target', got it with 'mean'"):
        Objective(name="mean", chance=0.5)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_hours_minutes_and_seconds_add_up(hours: int, minutes: int, seconds: int) -> None:
    whole = 3600 * hours + 60 * minutes + seconds
    assert parse_seconds(f"{hours}h{minutes}min {seconds} s") == whole
    assert parse_seconds(str(whole)) == parse_seconds(whole) == whole


@pytest.mark.parametrize("text", ["", "h", "2 fortnights", "-1s", "2h!", "1.2.3s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time must be a number with units such as '2h'"):
        parse_seconds(text)
