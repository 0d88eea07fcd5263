import dataclasses
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary import (
    Halving,
    InvalidRecord,
    InvalidWorkload,
    Program,
    Stop,
    Task,
    Workload,
    from_json,
    parse_device_memory,
    to_json,
)
from dovetail.vocabulary.work import MOST_STEPS

TASK = Task(
    name="small", program=Program(reference="/home/me/a.py:f", source="9f"), parameters={"width": 8}, stop=Stop(steps=9)
)


def but(**changes):
    return dataclasses.replace(TASK, **changes)


@pytest.mark.parametrize(
    ("fields", "goal", "target"),
    [
        ({"metric": "loss", "patience": 3}, "min", "loss not better for 3 evaluations"),
        ({"metric": "f1", "patience": 1}, "max", "f1 not better for 1 evaluations"),
        ({"metric": "wer", "patience": 3, "goal": "min"}, "min", "wer not better for 3 evaluations"),
        ({"metric": "loss", "patience": 2, "at_least": 3.0}, "max", "loss ≥ 3 or loss not better for 2 evaluations"),
        ({}, None, ""),
    ],
)
def test_patience_and_what_better_is(fields, goal, target):
    stop = Stop(steps=9, **fields)
    assert (stop.direction, stop.target) == (goal, target)
    assert stop.reached({"loss": 3.0}) == ("at_least" in fields)
    assert from_json(Stop, to_json(stop)) == stop


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric": "speed", "patience": 3}, "whether more of 'speed' is better; its name does not say"),
        ({"metric": "loss", "patience": 0}, "patience must be a whole number of at least 1, got 0"),
        ({"patience": 3}, "a target must be a metric with"),
        ({"metric": "loss", "patience": 3, "goal": "up"}, "a goal must be max or min for 'loss', got 'up'"),
        ({"metric": "a", "at_least": 1.0, "goal": "min"}, "a goal must be max for 'a', got 'min'"),
        ({"goal": "min"}, "a goal must go with a metric"),
    ],
)
def test_patience_that_cannot_be(fields, message):
    with pytest.raises(InvalidWorkload, match=message):
        Stop(steps=9, **fields)


def test_a_task_given_more_steps_is_the_same_task():
    assert but(stop=Stop(epochs=3)).identity == TASK.identity


def test_a_project_that_moves_has_the_same_tasks():
    assert but(program=Program(reference="/elsewhere/a.py:f", source="9f")).identity == TASK.identity


def test_the_order_of_parameters_is_nobodys_business():
    one, other = but(parameters={"a": 1, "b": [1, 2]}), but(parameters={"b": (1, 2), "a": 1})
    assert one.identity == other.identity


@pytest.mark.parametrize(
    "other",
    [
        but(name="other"),
        but(parameters={"width": 9}),
        but(parameters={"width": 8.5}),
        but(parameters={"width": "8"}),
        but(parameters={"width": 8, "depth": 1}),
        but(program=Program(reference="/home/me/a.py:f", source="aa")),
        but(program=Program(reference="/home/me/b.py:f", source="9f")),
        but(program=Program(reference="/home/me/a.py:g", source="9f")),
    ],
)
def test_another_name_code_or_parameter_is_another_task(other):
    assert other.identity != TASK.identity


def test_the_seed_is_a_parameter():
    assert TASK.seed == 0
    assert but(parameters={"seed": 7}).seed == 7


@pytest.mark.parametrize("name", ["", "a/b", ".hidden"])
def test_names_that_cannot_be_directories(name):
    with pytest.raises(InvalidWorkload, match="non-empty, without '/' or a leading dot"):
        but(name=name)


def test_parameters_must_be_plain_data():
    with pytest.raises(InvalidRecord, match="must be plain data"):
        but(parameters={"layer": object()})


@pytest.mark.parametrize("reference", ["", "f", ":f", "a.py:", "a.py"])
def test_programs_are_named_by_place_and_function(reference):
    with pytest.raises(InvalidWorkload, match=r"must be named 'file.py:function'"):
        Program(reference=reference)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of the two, got steps=None and epochs=None"),
        ({"steps": 1, "epochs": 1}, "one of the two, got steps=1 and epochs=1"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": True}, "steps must be a whole number of at least 1, got True"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
        ({"steps": 1, "metric": "loss"}, "a metric with either at_least or at_most"),
        ({"steps": 1, "at_least": 1.0}, "a metric with either at_least or at_most"),
        ({"steps": 1, "metric": "loss", "at_least": 1.0, "at_most": 2.0}, "a metric with either at_least or at_most"),
    ],
)
def test_stopping_rules_that_cannot_be(fields, message):
    with pytest.raises(InvalidWorkload, match=message):
        Stop(**fields)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_targets(target, value):
    assert Stop(steps=1, metric="m", at_least=target).reached({"m": value}) == (value >= target)
    assert Stop(steps=1, metric="m", at_most=target).reached({"m": value}) == (value <= target)
    assert not Stop(steps=1, metric="m", at_most=target).reached({"other": value})
    assert not Stop(steps=1).reached({"m": value})


def test_the_last_step():
    assert Stop(steps=7).last_step(None) == 7
    assert Stop(epochs=3).last_step(5) == 15
    with pytest.raises(InvalidWorkload, match="must go with batches that have a length"):
        Stop(epochs=3).last_step(None)


def test_rules_in_words():
    assert str(Stop(steps=5)) == "5 steps"
    assert str(Stop(epochs=2, metric="loss", at_most=0.25)) == "loss ≤ 0.25, at most 2 epochs"


def test_a_workload_has_tasks_with_names_of_their_own():
    with pytest.raises(InvalidWorkload, match="workload 'w' must have at least one task"):
        Workload(name="w", tasks=())
    with pytest.raises(InvalidWorkload, match=r"'small' is there more than once. Rename or drop the copies"):
        Workload(name="w", tasks=(TASK, TASK))
    with pytest.raises(InvalidWorkload, match=r"objective must be one of .*, got 'cost'"):
        Workload(name="w", tasks=(TASK,), objective="cost")


def test_deadlines_are_of_tasks_and_lie_ahead():
    assert Workload(name="w", tasks=(TASK,), deadlines={"small": 5.0}).deadlines == {"small": 5.0}
    with pytest.raises(InvalidWorkload, match="a deadline must be for a task of the workload; there is no 'third'"):
        Workload(name="w", tasks=(TASK,), deadlines={"third": 5.0})
    with pytest.raises(InvalidWorkload, match="a deadline must lie ahead, got nan s for 'small'"):
        Workload(name="w", tasks=(TASK,), deadlines={"small": float("nan")})


def test_weights_are_of_tasks_above_zero_and_only_where_they_count():
    assert Workload(name="w", tasks=(TASK,), objective="weighted", weights={"small": 5.0}).weights == {"small": 5.0}
    with pytest.raises(InvalidWorkload, match="a weight must be for a task of the workload; there is no 'third'"):
        Workload(name="w", tasks=(TASK,), objective="weighted", weights={"third": 5.0})
    with pytest.raises(InvalidWorkload, match="weights belong to objective 'weighted', got them with 'mean'"):
        Workload(name="w", tasks=(TASK,), objective="mean", weights={"small": 5.0})
    with pytest.raises(InvalidWorkload, match=r"a weight must be above 0, got 0\.0 for 'small'"):
        Workload(name="w", tasks=(TASK,), objective="weighted", weights={"small": 0.0})


@pytest.mark.parametrize(
    "given", ["spill,resident", ["resident", "spill"], {"resident", "spill"}, ("spill , resident",)]
)
def test_techniques_are_allowed_by_name_however_they_are_listed(given):
    found = Workload(name="w", tasks=(TASK,), techniques=given)
    assert found.techniques == ("resident", "spill")
    assert [found.allows(each) for each in ("resident", "spill", "fuse")] == [True, True, False]


def test_techniques_are_forbidden_by_name_with_a_minus():
    found = Workload(name="w", tasks=(TASK,), techniques=["-fuse", "-replicate"])
    assert [found.allows(each) for each in ("resident", "fuse", "replicate")] == [True, False, False]
    with pytest.raises(InvalidWorkload, match="either all be allowed, as in 'resident,spill', or all be forbidden"):
        Workload(name="w", tasks=(TASK,), techniques="resident,-fuse")
    with pytest.raises(InvalidWorkload, match="techniques must be names"):
        Workload(name="w", tasks=(TASK,), techniques=[1])


def test_a_workload_of_an_older_version_has_none_of_the_newer_fields():
    old = {"name": "w", "tasks": [to_json(TASK)], "objective": "mean", "halving": None, "open": False}
    assert from_json(Workload, old) == Workload(name="w", tasks=(TASK,), objective="mean")


@pytest.mark.parametrize(("given", "bytes_"), [("24 GiB", 24 << 30), (24 << 30, 24 << 30), (None, None)])
def test_device_memory_is_bytes_or_text_with_a_unit(given, bytes_):
    assert parse_device_memory(given) == bytes_


def test_device_memory_that_cannot_be():
    with pytest.raises(InvalidWorkload, match="device memory: bytes must be a number with a unit such as '8 GiB'"):
        parse_device_memory("much")
    with pytest.raises(InvalidWorkload, match="device memory must be above 0 bytes, got 0"):
        Workload(name="w", tasks=(TASK,), device_memory_bytes=0)


@pytest.mark.parametrize("fields", [{"first_steps": 0}, {"factor": 1}, {"goal": "best"}])
def test_halvings_that_cannot_be(fields):
    with pytest.raises(InvalidWorkload, match="halving must have first_steps of at least 1"):
        Halving(**{"metric": "m", "first_steps": 1} | fields)


@given(st.integers(1, 100), st.integers(2, 5), st.integers(1, 10_000))
def test_rungs_grow_by_the_factor_and_end_before_the_end(first, factor, last):
    rungs = Halving(metric="m", first_steps=first, factor=factor).rungs(last)
    assert all(rung < last for rung in rungs)
    assert rungs == tuple(first * factor**n for n in range(len(rungs)))


def test_lists_and_dicts_among_parameters_keep_the_identity_they_had():
    given = {"sizes": [3, [4]], "more": {"a": [1]}}
    one = Task(name="n", program=Program(reference="a.b:f", source="s"), parameters=given, stop=Stop(steps=1))
    assert one.identity == "abf6230f6580a3a4"


@pytest.mark.parametrize("unit", ["steps", "epochs"])
def test_steps_are_as_many_as_a_float_can_count(unit):
    assert Stop(**{unit: MOST_STEPS}).last_step(MOST_STEPS) == MOST_STEPS
    for count in (MOST_STEPS + 1, 10**400, 10**5000):
        with pytest.raises(InvalidWorkload, match=f"{unit} must be at most {MOST_STEPS}, got one of"):
            Stop(**{unit: count})


@pytest.mark.parametrize(
    ("value", "because"),
    [
        (10**400, "must have numbers of at most"),
        ("x" * (1 << 20), "must take at most 1.0 MiB"),
        (functools.reduce(lambda inner, _: [inner], range(485), 1), "must be nested at most"),
        (functools.reduce(lambda inner, _: {"a": inner}, range(300), 1), "must be nested at most"),
    ],
)
def test_parameters_that_somebody_could_not_read_are_refused(value, because):
    with pytest.raises(ValueError, match=f"a task's parameters {because}"):
        Task(name="n", program=Program(reference="a.b:f"), parameters={"x": value}, stop=Stop(steps=1))
