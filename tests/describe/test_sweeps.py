import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.describe import grid, join, log_uniform, sample, task, uniform, workload
from dovetail.vocabulary import Halving, InvalidWorkload


def program(width=1, rate=0.1, name="x", sizes=(), seed=0):
    return None


def needy(width):
    return None


def test_every_combination_in_order():
    found = grid(program, width=[1, 2], rate=[0.1, 0.25], sizes=(3, 4), steps=10)
    assert [task.name for task in found.tasks] == [
        "program width=1 rate=0.1",
        "program width=1 rate=0.25",
        "program width=2 rate=0.1",
        "program width=2 rate=0.25",
    ]
    assert dict(found.tasks[2].parameters) == {"width": 2, "rate": 0.1, "sizes": (3, 4)}
    assert found.name == "", "named after its file, or by whoever runs it"
    assert {task.stop.steps for task in found.tasks} == {10}


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=4), st.lists(st.booleans(), unique=True, min_size=1))
def test_a_grid_is_a_product(widths, rates):
    found = grid(program, width=widths, rate=rates, epochs=1)
    assert len(found.tasks) == len(widths) * len(rates)
    assert len({task.identity for task in found.tasks}) == len(found.tasks)


def test_ranges_and_arrays_are_axes_and_their_numbers_plain():
    found = grid(program, width=range(1, 3), rate=numpy.array([0.1, 0.123456]), seed=numpy.int64(4), steps=1)
    assert [task.name for task in found.tasks][:2] == ["program width=1 rate=0.1", "program width=1 rate=0.123456"]
    assert {type(value) for task in found.tasks for value in task.parameters.values()} == {int, float}
    same = grid(program, width=[1, 2], rate=[0.1, 0.123456], seed=4, steps=1)
    assert [task.identity for task in found.tasks] == [task.identity for task in same.tasks]
    drawn = sample(program, count=9, width=range(3), rate=numpy.geomspace(1e-3, 1, 4), steps=1)
    assert {type(value) for task in drawn.tasks for value in task.parameters.values()} == {int, float}


def test_without_lists_a_grid_is_one_task():
    (one,) = grid(program, width=3, steps=1).tasks
    assert one.name == "program"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grid(program, width=[], steps=1), "at least one value for each parameter; 'width' has none"),
        (lambda: grid(program, width=[1]), "one of the two, got steps=None"),
        (lambda: grid(program, widht=[1], steps=1), "not 'widht'. Did you mean 'width'"),
        (lambda: grid(needy, steps=1), "must get all its parameters"),
        (lambda: grid(program, width=[1, 1], steps=1), "'program width=1' is there more than once"),
        (lambda: sample(program, count=0, steps=1), "a count of at least 1, got 0"),
        (
            lambda: sample(program, count=1, width=[], steps=1),
            "at least one value for each parameter; 'width' has none",
        ),
        (lambda: uniform(2, 1), "low <= high, got 2 and 1"),
        (lambda: log_uniform(0, 1), "0 < low <= high, got 0 and 1"),
        (lambda: uniform(math.nan, 1), "low <= high"),
        (lambda: join(name="none"), "workload 'none' must have at least one task"),
        (
            lambda: join(grid(program, steps=1), grid(program, steps=1), name="twice"),
            "'program' is there more than once",
        ),
        (lambda: task(program, name="a/b", steps=1), "without '/'"),
        (lambda: grid(program, rate=uniform(0, 1), steps=1), "'rate' has a distribution, from which only dt.sample"),
        (lambda: grid(program, rate=[uniform(0, 1)], steps=1), "'rate' has a distribution"),
        (lambda: task(program, name="a", rate=uniform(0, 1), steps=1), "'rate' has a distribution"),
        (
            lambda: grid(program, rate=object(), steps=1),
            "numbers, text, or lists and dicts of these; 'rate' is of type object",
        ),
        (lambda: grid(program, rate=Halving(metric="m", first_steps=1), steps=1), "'rate' is of type Halving.*asdict"),
        (lambda: task(program, name="a", steps=1, wdth=3), "Did you mean 'width'"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(InvalidWorkload, match=message):
        make()


def test_a_sample_is_the_same_for_the_same_seed():
    def drawn(seed):
        found = sample(
            program, count=20, sample_seed=seed, steps=1, width=[1, 2, 3], rate=log_uniform(1e-4, 1e-1), name="s"
        )
        return [dict(task.parameters) for task in found.tasks]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert {each["width"] for each in drawn(0)} == {1, 2, 3}
    assert all(1e-4 <= each["rate"] <= 1e-1 for each in drawn(0))


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers())
def test_draws_are_between_their_ends(one, other, seed):
    low, high = min(one, other), max(one, other)
    for distribution in (uniform(low, high), log_uniform(low, high)):
        found = sample(program, count=3, sample_seed=seed, steps=1, rate=distribution)
        for each in found.tasks:
            assert low * (1 - 1e-9) <= each.parameters["rate"] <= high * (1 + 1e-9)


def test_workloads_are_joined():
    one, two = grid(program, width=[1, 2], steps=1), grid(needy, width=[1], steps=1)
    assert [task.name for task in join(one, two, name="both").tasks] == [
        "program width=1",
        "program width=2",
        "needy width=1",
    ]
    halving = Halving(metric="m", first_steps=1)
    assert join(grid(program, steps=1, halving=halving), name="one").halving == halving
    with pytest.raises(InvalidWorkload, match="must all have the same halving; these differ"):
        join(one, grid(needy, width=[1], steps=1, halving=halving), name="both")


@pytest.mark.parametrize("make", [grid, lambda *given, **named: sample(*given, count=2, **named)])
def test_what_is_wanted_of_the_whole_is_said_with_the_sweep(make):
    found = make(program, width=[1, 2], steps=1, objective="mean", techniques="-fuse", device_memory="24 GiB")
    assert (found.objective, found.techniques, found.device_memory_bytes) == ("mean", ("-fuse",), 24 << 30)
    weighted = make(program, steps=1, rate=[0.1], objective="weighted", name="w")
    assert weighted.objective == "weighted"
    with pytest.raises(InvalidWorkload, match=r"objective must be one of .*got 'mena'; did you mean 'mean'"):
        make(program, steps=1, objective="mena")


def test_weights_and_deadlines_of_a_list_of_tasks():
    one, two = (task(program, name=name, steps=1) for name in ("a", "b"))
    found = workload([one, two], objective="weighted", weights={"a": 2.0}, deadlines={"b": 60.0})
    assert (found.weights, found.deadlines) == ({"a": 2.0}, {"b": 60.0})


def test_joined_workloads_keep_what_was_wanted_of_them():
    one = workload([task(program, name="a", steps=1)], objective="weighted", weights={"a": 2.0}, techniques="resident")
    two = workload([task(program, name="b", steps=1)], objective="weighted", weights={"b": 3.0}, techniques="resident")
    both = join(one, two, name="both")
    assert (both.objective, both.weights, both.techniques) == ("weighted", {"a": 2.0, "b": 3.0}, ("resident",))
    with pytest.raises(InvalidWorkload, match="must all have the same objective; these differ: 'makespan', 'weighted'"):
        join(one, workload([task(program, name="b", steps=1)]), name="both")


def test_a_list_of_tasks_by_hand():
    found = workload([task(program, name="a", steps=1), task(program, name="b", epochs=2, width=3)], name="mine")
    assert [each.name for each in found.tasks] == ["a", "b"]
    assert found.tasks[1].stop.epochs == 2


def test_a_target_goes_to_every_task():
    found = grid(program, width=[1, 2], steps=5, metric="accuracy", at_least=0.9)
    assert all(str(task.stop) == "accuracy ≥ 0.9, at most 5 steps" for task in found.tasks)


def test_a_program_given_by_name_is_not_imported(tmp_path):
    (tmp_path / "costly.py").write_text("raise RuntimeError('imported')\ndef f(width): ...\n")
    assert len(grid(f"{tmp_path}/costly.py:f", width=[1, 2], steps=1).tasks) == 2


def hub(auth="", source=None, width=1):
    return None


def test_a_name_made_of_parameters_shows_no_secret():
    found = grid(hub, auth=["hunter22", "swordfish"], width=[1, 2], source={"jwt": "opensesame"}, steps=1)
    assert [task.name for task in found.tasks] == [
        "hub auth=*** width=1",
        "hub auth=*** width=2",
        "hub auth=*** width=1 #2",
        "hub auth=*** width=2 #3",
    ]
    (one,) = grid(hub, source=[{"jwt": "opensesame"}], steps=1).tasks
    assert one.name == "hub source={'jwt': '***'}"
    assert one.parameters["source"]["jwt"] == "opensesame"
