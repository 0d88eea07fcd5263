"""What a parameter may be, in grids and in samples."""

import random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.describe import choice, grid, integers, log_uniform, sample, uniform, when
from dovetail.vocabulary import InvalidWorkload


def program(kind="adam", momentum=0.0, width=1, depth=1, rate=0.1, sizes=(), seed=0):
    return None


def drawn(space, count=200):
    generator = random.Random(0)
    return [space.draw(generator) for _ in range(count)]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.booleans())
def test_integers_are_whole_steps_within_both_ends(low, more, step, log):
    found = drawn(integers(low, low + more, step=step, log=log), 30)
    assert all(type(value) is int and low <= value <= low + more and (value - low) % step == 0 for value in found)


def test_every_integer_is_drawn_the_ends_too():
    assert set(drawn(integers(3, 6))) == {3, 4, 5, 6}
    assert set(drawn(integers(1, 4, log=True))) == {1, 2, 3, 4}
    assert set(drawn(integers(16, 70, step=16))) == {16, 32, 48, 64}


def test_logarithmic_integers_favour_small_ones_evenly_by_magnitude():
    found = drawn(integers(1, 999, log=True), 3000)
    counts = [sum(low <= value < 10 * low for value in found) for low in (1, 10, 100)]
    assert all(800 < count < 1200 for count in counts), counts


@pytest.mark.parametrize("make", [uniform, log_uniform])
def test_quantised_ranges_give_the_decimals_that_were_meant(make):
    assert set(drawn(make(0.1, 0.5, step=0.1))) == {0.1, 0.2, 0.3, 0.4, 0.5}


def test_ranges_without_a_step_draw_as_before():
    generator = random.Random(7)
    assert drawn(uniform(0, 2), 1) == [random.Random(0).uniform(0, 2)]
    assert 1e-4 <= log_uniform(1e-4, 1e-2).draw(generator) <= 1e-2


def test_a_choice_may_have_lists_for_values_and_weights():
    found = grid(program, sizes=choice([1, 2], (3,), "none"), steps=1)
    assert [task.parameters["sizes"] for task in found.tasks] == [(1, 2), (3,), "none"]
    assert set(drawn(choice("a", "b", weights=[0, 1]))) == {"b"}
    assert choice([1, 2]) == choice(range(1, 3)) == choice(numpy.array([1, 2])) == choice(1, 2)
    assert choice([[1, 2]]).values == ([1, 2],)
    assert choice("ab").values == ("ab",)
    assert {task.parameters["sizes"] for task in sample(program, count=20, sizes=choice([1], [2]), steps=1).tasks} == {
        (1,),
        (2,),
    }


def test_a_condition_gives_a_parameter_to_some_tasks_alone_and_no_task_twice():
    found = grid(program, kind=["adam", "sgd"], momentum=when([0.8, 0.9], kind="sgd"), width=[1, 2], steps=1)
    assert [dict(task.parameters) for task in found.tasks] == [
        {"kind": "adam", "width": 1},
        {"kind": "adam", "width": 2},
        {"kind": "sgd", "momentum": 0.8, "width": 1},
        {"kind": "sgd", "momentum": 0.8, "width": 2},
        {"kind": "sgd", "momentum": 0.9, "width": 1},
        {"kind": "sgd", "momentum": 0.9, "width": 2},
    ]


def test_conditions_take_values_lists_functions_and_other_conditions():
    found = sample(
        program,
        count=60,
        kind=["adam", "sgd", "rmsprop"],
        momentum=when(uniform(0.5, 0.9), kind=["sgd", "rmsprop"]),
        depth=when(integers(1, 4), momentum=lambda momentum: momentum > 0.7),
        width=when(7, depth=numpy.array([3, 4])),
        steps=1,
    )
    for each in (task.parameters for task in found.tasks):
        assert ("momentum" in each) == (each["kind"] != "adam")
        assert ("depth" in each) == (each.get("momentum", 0) > 0.7)
        assert ("width" in each) == (each.get("depth", 0) > 2)
    assert any("width" in task.parameters for task in found.tasks)


def test_what_one_parameter_draws_does_not_depend_on_who_has_another():
    spaces = {"kind": ["adam", "sgd"], "rate": uniform(0, 1)}
    plain = sample(program, count=9, momentum=uniform(0, 1), **spaces, steps=1)
    some = sample(program, count=9, momentum=when(uniform(0, 1), kind="sgd"), **spaces, steps=1)
    assert [task.parameters["rate"] for task in plain.tasks] == [task.parameters["rate"] for task in some.tasks]


def test_numbers_of_numpy_in_lists_have_plain_names():
    found = grid(program, rate=list(numpy.array([0.1, 0.123456])), width=list(numpy.arange(2)), steps=1)
    assert [task.name for task in found.tasks][1:3] == ["program rate=0.1 width=1", "program rate=0.123456 width=0"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: integers(1, 2.5), "whole numbers; high is 2.5. Use uniform"),
        (lambda: integers(3, 2), "low <= high"),
        (lambda: integers(0, 2, log=True), "with log 1 <= low"),
        (lambda: integers(1, 2, step=0), "step greater than 0, got 0"),
        (lambda: uniform(0, 1, step=-1), "step greater than 0, got -1"),
        (lambda: choice(), "at least one value"),
        (lambda: choice(1, 2, weights=[1]), "a weight of at least 0 for each of 2 values"),
        (lambda: when([1]), "must name the parameter that it depends on"),
        (lambda: when(when([1], a=1), b=1), "not another `when`"),
        (lambda: grid(program, momentum=when([1], kidn="sgd"), kind=["sgd"], steps=1), "'kidn' is none. Did you mean"),
        (lambda: grid(program, rate=uniform(0, 1), steps=1), "from which only dt.sample draws"),
        (lambda: grid(program, rate=when(uniform(0, 1), width=1), width=1, steps=1), "from which only dt.sample draws"),
        (lambda: sample(program, rate=when([], width=1), width=1, steps=1, count=1), "'rate' has none"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InvalidWorkload, match=message):
        make()
