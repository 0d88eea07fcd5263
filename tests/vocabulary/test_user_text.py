"""Texts of others: bounded where they are kept, harmless where they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary import read_event
from dovetail.vocabulary.user_text import (
    MOST_CHARACTERS,
    escape_controls,
    escape_controls_but_colours,
    shorten,
)


@given(st.text(max_size=400), st.integers(min_value=100, max_value=200))
def test_what_is_shortened_is_no_longer_and_stays_so(text: str, most: int):
    found = shorten(text, most=most)
    assert len(found) <= most
    assert shorten(found, most=most) == found
    assert found == text or "bytes left out" in found


def test_head_and_tail_are_kept_and_what_is_left_out_is_counted():
    text = "first " + "é" * 20_000_000 + " last"
    found = shorten(text)
    assert found.startswith("first é")
    assert found.endswith("é last")
    kept = found.count("é")
    assert f"{2 * (20_000_000 - kept):,} bytes left out" in found


def test_an_event_takes_up_no_more_than_can_be_shown():
    found = read_event("failed", at_seconds=1.0, data={"reason": "r" * 20_000_000, "log": "l" * 20_000_000})
    assert len(found.reason) <= MOST_CHARACTERS
    assert len(found.log) <= MOST_CHARACTERS
    assert read_event("failed", at_seconds=1.0, data={"reason": "r" * 100}).reason == "r" * 100


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("over\rwritten", r"over\rwritten"),
        ("\x9b31m", r"\x9b31m"),
        ("abc\u202edef", r"abc\u202edef"),
        ("half \ud800", r"half \ud800"),
        ("two\nlines\tand é 漢 🙂", "two\nlines\tand é 漢 🙂"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str):
    assert escape_controls(text) == shown


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_nothing_that_steers_a_terminal_is_left(text: str):
    found = escape_controls(text)
    assert all(letter in "\n\t" or letter.isprintable() or ord(letter) > 0x9F for letter in found)
    found.encode()


def test_colours_of_a_program_stay_and_nothing_else():
    assert escape_controls_but_colours("\x1b[31mred\x1b[0m\x1b[2K\x1b[1A") == "\x1b[31mred\x1b[0m\\x1b[2K\\x1b[1A"
    assert escape_controls_but_colours("1%\r2%\r\ndone\n") == "1%\n2%\ndone\n"
