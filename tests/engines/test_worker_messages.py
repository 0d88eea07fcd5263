"""What workers may say: anything at all, and only they lose by it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.engines import worker_messages
from dovetail.engines.worker_messages import MessageReader, read_message, read_reported
from dovetail.vocabulary.events import EVENTS

STEPS = {"kind": "progress", "task": "a", "attempt": 1, "at_seconds": 5.0, "data": {"step": 3}}


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), max_size=5), st.integers(1, 7))
def test_messages_come_whole_however_they_are_cut(texts, size):
    lines = [json.dumps({"doing": text.hex()}).encode() + b"\n" for text in texts]
    data, reader = b"".join(lines), MessageReader()
    found = [each for at in range(0, len(data), size) for each in reader.take(data[at : at + size])]
    assert found == [json.loads(line) for line in lines]


def test_a_line_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(worker_messages, "LINE_BYTES", 100)
    reader = MessageReader()
    reader.take(b"x" * 60)
    with pytest.raises(ValueError, match="a message must have at most 100 bytes"):
        reader.take(b"x" * 60)


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"",
        b"\xff",
        b"3",
        b"[1]",
        b'{"doing": 3}',
        b'{"idle": "long"}',
        b'{"released": null}',
        b'{"seconds": {"step": "many"}, "released": "a"}',
        b'{"event": []}',
        b'{"idle": 1' + b"0" * 30 + b"}",
        b'{"idle": 1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_message(line):
    with pytest.raises((ValueError, RecursionError)):
        read_message(line)


def test_halves_of_characters_are_replaced_and_whole_ones_are_not():
    line = json.dumps({"event": {"half \ud800": ["\udfff", "\N{SNOWFLAKE}", "\N{GRINNING FACE}"]}}).encode()
    assert read_message(line) == {"event": {"half ?": ["?", "\N{SNOWFLAKE}", "\N{GRINNING FACE}"]}}
    assert read_message(b'{"doing": "\xed\xa0\x80"}')["doing"].encode()


def test_an_event_of_ones_own_is_read():
    points = [["loss", 3, 0.5], ["accuracy", 3, {"__float__": "NaN"}]]
    found = read_reported({**STEPS, "data": {"step": 3, "points": points}}, tasks={"a"})
    assert found.points[0] == ("loss", 3, 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "b"},
        {"task": ["a"]},
        {"task": ""},
        {"attempt": "first"},
        {"kind": "flew"},
        {"kind": ["progress"]},
        {"at_seconds": {"__float__": "NaN"}},
        {"at_seconds": "now"},
        {"data": []},
        {"data": {}},
        {"data": {"step": "3"}},
        {"data": {"step": 3, "points": [["loss", 3]]}},
        {"data": {"step": 3, "points": [[1, 3, 0.5]]}},
        {"data": {"step": 3, "points": [["loss", "3", 0.5]]}},
        {"data": {"step": 3, "points": [["loss", 3, "small"]]}},
        {"data": {"step": 3, "points": [5]}},
        {"data": {"step": 3, "steps_per_second": {"__float__": "Infinity"}}},
        {"data": {"step": 3, "steps_per_second": -1.0}},
        {"more": 1},
        # Not a worker's to say: these would take devices, plans and other tasks from everybody.
        {"kind": "departed", "data": {"devices": ["n0:0"]}},
        {"kind": "released", "data": {"placement": "x"}},
        {"kind": "submitted", "data": {"priority": 1.0}},
        {"kind": "cancelled", "data": {}},
    ],
)
def test_an_event_that_is_no_workers_own_is_refused(changes):
    with pytest.raises(ValueError):
        read_reported(STEPS | changes, tasks={"a"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(EVENTS)), ANYTHING, st.dictionaries(st.sampled_from(["step", "points", "path"]), ANYTHING)
)
def test_whatever_comes_is_an_event_or_a_value_error(kind, at, data):
    try:
        found = read_reported({**STEPS, "kind": kind, "at_seconds": at, "data": data}, tasks={"a"})
    except ValueError:
        return
    assert found.task == "a"
