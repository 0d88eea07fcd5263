import dataclasses
import json
import math
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.vocabulary import (
    FrozenDict,
    InvalidRecord,
    Node,
    Option,
    Plan,
    Profile,
    Program,
    Stop,
    Task,
    dumps,
    from_json,
    loads,
    to_json,
)
from dovetail.vocabulary.events import StepsDone
from dovetail.vocabulary.records import DEPTH, check_bounds
from dovetail.vocabulary.records import plain as plain_of
from tests.vocabulary.strategies import RECORDS, plain, records


@pytest.mark.parametrize("cls", RECORDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_record_goes_to_json_and_comes_back(cls, data):
    record = data.draw(records(cls))
    line = dumps(record)
    assert "\n" not in line
    found = loads(cls, line)
    assert found == record
    assert dumps(found) == line
    assert hash(found) == hash(record)


@pytest.mark.parametrize("cls", RECORDS)
def test_every_record_is_frozen_and_keyword_only(cls):
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))


@given(plain)
def test_plain_data_comes_back(value):
    assert plain_of(json.loads(dumps(value))) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_spell(value):
    line = dumps(StepsDone(at_seconds=value, step=1, points=(("loss", 1, value),)))
    assert "NaN" not in line.replace('"NaN"', "")
    found = loads(StepsDone, line)
    assert repr(found.at_seconds) == repr(value)
    assert repr(found.points[0][2]) == repr(value)


@pytest.mark.parametrize(
    ("cls", "text", "message"),
    [
        (Stop, "{", "Stop must be read from a line of JSON"),
        (Stop, "", "Stop must be read from a line of JSON"),
        (Stop, b"\xff\xfe", "Stop must be read from a line of JSON"),
        (Stop, "[]", r"Stop must be an object, got \[\]"),
        (Stop, '{"steps": "5"}', "Stop.steps must be of type int, got '5'"),
        (Stop, '{"steps": true}', "Stop.steps must be of type int, got True"),
        (Stop, '{"steps": 5.0}', "Stop.steps must be of type int, got 5.0"),
        (Stop, '{"stepps": 5}', r"Stop must be one with fields among \['at_least'.*\], got \['stepps'\]"),
        (Stop, '{"steps": 5, "metric": 3}', "Stop.metric must be of type str, got 3"),
        (Plan, '{"explanation": "why"}', "Plan.explanation must be a list, got 'why'"),
        (Plan, '{"explanation": [1]}', r"Plan.explanation\[0\] must be of type str, got 1"),
        (Plan, '{"schedule": {"placements": [3]}}', r"Plan.schedule.placements\[0\] must be an object, got 3"),
        (Profile, '{"family":"f","kind":"c","count":1,"step_seconds":1,"peak_bytes":0,"edges":[["a"]]}', "a list of 2"),
    ],
)
def test_bad_json_is_refused_with_its_place(cls, text, message):
    with pytest.raises(InvalidRecord, match=message):
        loads(cls, text)


def test_what_is_no_plain_data_is_refused():
    with pytest.raises(InvalidRecord, match=r"must be plain data .*got set: \{1\}. Pass it by name"):
        to_json({"a": [{1}]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step_seconds": ()}, "one step_seconds for each family of its gang, got 0 for 1"),
        ({"count": 0}, "count >= 1 and step_seconds > 0, got 0"),
        ({"step_seconds": (0.0,)}, "count >= 1 and step_seconds > 0"),
        ({"step_seconds": (math.nan,)}, "count >= 1 and step_seconds > 0"),
    ],
)
def test_options_that_cannot_be(fields, message):
    good = {"families": ("f",), "technique": "t", "kind": "cpu", "count": 1, "step_seconds": (1.0,)}
    with pytest.raises(InvalidRecord, match=message):
        Option(**good | fields)


@pytest.mark.parametrize(
    "fields", [{"step_seconds": math.nan}, {"step_seconds": 0.0}, {"peak_bytes": -1}, {"count": 0}]
)
def test_profiles_that_cannot_be(fields):
    good = {"family": "f", "kind": "cpu", "count": 1, "step_seconds": 1.0, "peak_bytes": 0}
    with pytest.raises(InvalidRecord, match="step_seconds > 0, peak_bytes >= 0 and count >= 1"):
        Profile(**good | fields)


def test_profiles_and_nodes_written_before_a_field_was_added_are_read():
    old = {"family": "f", "kind": "cpu", "count": 1, "step_seconds": 1.0, "peak_bytes": 0}
    profile = from_json(Profile, old)
    assert (profile.knobs, profile.accumulate, profile.clips, profile.precision) == ({}, 1, False, "fp32")
    assert hash(profile) == hash(Profile(**old, knobs={}))
    assert from_json(Node, {"name": "n0", "cores": 2, "memory_bytes": 1}).update_parameters_per_second == 0.0


@given(st.dictionaries(st.text(max_size=3), plain, max_size=3))
def test_frozen_dicts_equal_their_dicts_and_can_be_hashed(items):
    frozen = FrozenDict(items)
    assert frozen == FrozenDict(frozen) == pickle.loads(pickle.dumps(frozen))
    assert hash(frozen) == hash(FrozenDict(dict(reversed(items.items()))))
    assert list(frozen) == list(items)


def test_fields_that_a_record_works_out_are_not_written():
    task = Task(name="a", program=Program(reference="a.py:f"), stop=Stop(steps=1))
    assert "identity" not in to_json(task)
    with pytest.raises(InvalidRecord, match="identity"):
        from_json(Task, {**to_json(task), "identity": "forged"})


def nested(depth, kind=list):
    found = 1
    for _ in range(depth):
        found = [found] if kind is list else {"a": found}
    return found


@pytest.mark.parametrize("kind", [list, dict])
def test_data_is_nested_so_deep_and_no_deeper(kind):
    check_bounds(nested(DEPTH, kind), where="it")
    for depth in (DEPTH + 1, 5000):
        with pytest.raises(InvalidRecord, match=f"it must be nested at most {DEPTH} deep; it is deeper"):
            check_bounds(nested(depth, kind), where="it")


def test_data_that_holds_itself_is_too_deep():
    found = []
    found.append(found)
    with pytest.raises(InvalidRecord, match="nested at most"):
        check_bounds(found, where="it")


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_whole_numbers_fit_a_float(number):
    check_bounds({"a": [10**300, -(10**300), True]}, where="it")
    with pytest.raises(InvalidRecord, match=r"it must have numbers of at most .*, got one of 1329 bits"):
        check_bounds({"a": [number]}, where="it")
    with pytest.raises(InvalidRecord, match="at_least must be a number that fits a float"):
        from_json(Stop, {"steps": 1, "metric": "accuracy", "at_least": number})


@pytest.mark.parametrize("depth", [485, 100_000])
def test_what_is_read_too_deep_is_no_record(depth):
    text = '{"name": "a", "program": {"reference": "a.py:f"}, "stop": {"steps": 1}, "parameters": {"x": %s}}'
    with pytest.raises(InvalidRecord, match=r"Task must be|a task's parameters must be nested"):
        loads(Task, text % ("[" * depth + "]" * depth))
