"""Fused functions: what is traced, what is guarded, and what is NumPy's to compute."""

import collections
import dataclasses
import pickle
import threading

import numpy
import pytest

import dovetail.frame as df
from dovetail.frame import fused as module

X = numpy.linspace(0.1, 2.0, 40_000)  # more than what may be left to NumPy
RATE = 2.0


def compiled(function, *args):
    """Fused, called once, and compiled."""
    found = df.fuse(function)
    found(*args)
    assert found.wait(120), found.explain()
    return found


def test_several_results_keep_their_structure():
    fused = compiled(lambda x: {"a": (x + 1, [x.sum()]), "b": 3}, X)
    found = fused(X)
    numpy.testing.assert_array_equal(found["a"][0], X + 1)
    assert found["a"][1][0] == pytest.approx(X.sum(), rel=1e-14)
    assert found["b"] == 3
    assert isinstance(found["a"][1][0], numpy.float64)


def test_other_sizes_are_not_traced_again():
    runs = []
    fused = compiled(lambda x, y: (runs.append(1), x * y)[1], X, X)
    for size in (35_000, 36_000, 5):
        numpy.testing.assert_array_equal(fused(X[:size], X[:size]), X[:size] ** 2)
    assert len(runs) == 2  # the second is NumPy's own, for the small one


def test_a_function_that_asks_for_the_shape_is_traced_for_each():
    fused = compiled(lambda x: x / len(x), X)
    numpy.testing.assert_array_equal(fused(X[:33_000]), X[:33_000] / 33_000)


def test_numbers_are_arguments_and_those_on_which_the_path_depends_are_guarded():
    def choose(x, rate):
        return x * rate if rate > 1 else x - rate

    fused = compiled(choose, X, 2.0)
    for rate in (2.0, 3.0, 0.5, 2.0):
        numpy.testing.assert_array_equal(fused(X, rate), choose(X, rate))
    many = df.fuse(choose)
    for rate in numpy.linspace(0, 2, 12).tolist():
        numpy.testing.assert_array_equal(many(X, rate), choose(X, rate))
    assert "depends on the value of a number" in many.explain()


def test_one_array_for_two_arguments_in_one_call_is_two_in_the_next():
    fused = compiled(lambda x, y, a, b: x * a - y * b, X, X, 0.5, 0.5)
    half = 0.5
    numpy.testing.assert_array_equal(fused(X, X, half, half), X * 0)
    numpy.testing.assert_array_equal(fused(X, X + 1, 2.0, 3.0), X * 2.0 - (X + 1) * 3.0)


def test_numbers_alone_are_computed_as_python_does():
    def scale(x, rate):
        return x * (-rate * 2 + 1) + numpy.exp(rate) - (rate / 3).real

    fused = compiled(scale, X, 0.25)
    for rate in (0.25, 0.5):
        numpy.testing.assert_allclose(fused(X, rate), scale(X, rate), rtol=1e-15)
    single = X.astype("f4")
    assert df.fuse(lambda x, rate: x * (rate * 2))(single, 0.25).dtype == numpy.float32
    assert df.fuse(lambda x, rate: x * numpy.exp(rate))(single, 0.25).dtype == numpy.float64


def test_names_of_the_module_are_guarded(monkeypatch):
    fused = compiled(lambda x: x * RATE, X)
    monkeypatch.setitem(globals(), "RATE", 3.0)
    numpy.testing.assert_array_equal(fused(X), X * 3.0)


def test_an_array_from_around_is_read_each_time():
    weights = X.copy()
    fused = compiled(lambda x: x * weights, X)
    weights[:] = 7
    numpy.testing.assert_array_equal(fused(X), X * 7)
    assert fused.explain().startswith("<lambda>: 1 operation in 1 loop")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "bool needs a value at once"),
        (lambda x: x + numpy.random.default_rng(0).normal(size=x.shape), "an array is made inside the function"),
        (lambda x: [float(x.max()), x], "float needs a value at once"),
        (lambda x: numpy.histogram(x)[0] + 0, "histogram gives a tuple"),
    ],
)
def test_what_needs_values_runs_each_time(function, why):
    fused = df.fuse(function)
    for _ in range(3):
        for one, other in zip(
            numpy.atleast_1d(*map(numpy.asarray, listed(fused(X)))),
            numpy.atleast_1d(*map(numpy.asarray, listed(function(X)))),
            strict=True,
        ):
            numpy.testing.assert_array_equal(one, other)
    assert "runs each time" in fused.explain()
    assert why in fused.explain()


def listed(value):
    return [*value, 0] if isinstance(value, list) else [value, 0]


def increase(x):
    x += 1
    return x


@pytest.mark.parametrize(
    ("function", "argument", "why"),
    [
        (increase, X, "in place"),
        (lambda x: x + 1j, X.astype(complex), "complex128"),
        (lambda x: x + 1, X.astype(">f8"), ">f8"),
        (lambda x: x + 1, numpy.ma.masked_array(X, X > 1), "MaskedArray"),
        (lambda x: x + x, numpy.array(["a", "b"], object), "object"),
        (lambda x: x + 1, X.astype("f2"), "float16"),
    ],
)
def test_what_loops_do_not_hold_is_numpys(function, argument, why):
    fused = df.fuse(function)
    found, wanted = fused(argument.copy()), function(argument.copy())
    assert type(found) is type(wanted)
    assert found.dtype == wanted.dtype
    numpy.testing.assert_array_equal(found, wanted)
    assert why in fused.explain()


def test_a_change_in_place_reaches_the_caller():
    mine = X.copy()
    df.fuse(increase)(mine)
    numpy.testing.assert_array_equal(mine, X + 1)


def test_a_change_in_place_of_what_nobody_holds_is_fused():
    def accumulate(x):
        total = x * 2
        total += x
        total *= 3
        return total

    fused = compiled(accumulate, X)
    numpy.testing.assert_array_equal(fused(X), accumulate(X))
    assert "4 operations in 1 loop" not in fused.explain()
    assert "in 1 loop" in fused.explain()


@pytest.mark.parametrize(
    "function", [lambda x: x + "a", lambda x: x.reshape(7, -1), lambda x: x + numpy.ones(3), lambda x: x.nothing]
)
def test_errors_are_numpys(function):
    with pytest.raises(Exception) as wanted:
        function(X)
    with pytest.raises(type(wanted.value)) as found:
        df.fuse(function)(X)
    assert str(found.value) == str(wanted.value)


def test_unknown_functions_stand_between_loops():
    fused = compiled(lambda x: numpy.cumsum(x * 2)[::-1] + numpy.sort(x), X)
    numpy.testing.assert_array_equal(fused(X), numpy.cumsum(X * 2)[::-1] + numpy.sort(X))
    assert "NumPy itself, between loops: cumsum, [], sort" in fused.explain()
    assert fused._last.mode == "loops"


def test_broadcasting_computes_small_shapes_once():
    def outer(x, y):
        return numpy.exp(x)[:, None] * numpy.sin(y)[None, :] + x[:, None]

    x, y = X[:300], X[:200]
    fused = compiled(outer, x, y)
    numpy.testing.assert_allclose(fused._loops(fused._last, [x, y], (x, y), {}), outer(x, y), rtol=1e-15)


def test_normalising_takes_as_many_loops_as_it_has_reductions():
    fused = compiled(lambda x: (x - x.mean()) / x.std(), X)
    numpy.testing.assert_allclose(fused(X), (X - X.mean()) / X.std(), atol=1e-12)
    assert "in 3 loops" in fused.explain()


def test_results_are_not_held_after_the_call():
    import sys

    mine = X.copy()
    before = sys.getrefcount(mine)
    fused = compiled(lambda x: numpy.sort(x) + x, mine)
    fused(mine)
    assert sys.getrefcount(mine) == before


def test_small_inputs_are_whichever_is_faster():
    fused = compiled(lambda x: x + 1, X[:10])
    for _ in range(20):
        numpy.testing.assert_array_equal(fused(X[:10]), X[:10] + 1)
    (dispatch,) = fused._dispatch.values()
    assert dispatch.plain == (min(dispatch.plain_seconds) < min(dispatch.loop_seconds))


def test_empty_arrays_and_zero_dimensions():
    fused = compiled(lambda x: (x * 2, x.sum(), x.mean(axis=-1) if x.ndim > 1 else x), X)
    for shape in ((0,), (3, 0), (0, 3), ()):
        empty = numpy.ones(shape)
        with numpy.errstate(all="ignore"):
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = (empty * 2, empty.sum(), empty.mean(axis=-1) if empty.ndim > 1 else empty)
                found = fused(empty)
        for one, other in zip(found, wanted, strict=True):
            numpy.testing.assert_array_equal(one, other)


def test_threads_may_call_it_at_once():
    fused = compiled(lambda x: numpy.exp(x) + 1, X)
    wrong = []

    def ask(size):
        for _ in range(20):
            if not numpy.allclose(fused(X[:size]), numpy.exp(X[:size]) + 1, rtol=1e-14):
                wrong.append(size)

    threads = [threading.Thread(target=ask, args=(34_000 + number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


doubled = df.fuse(increase)


def test_it_travels_by_its_name_or_with_its_function():
    import cloudpickle

    assert pickle.loads(pickle.dumps(doubled_by_name)) is doubled_by_name
    fused = cloudpickle.loads(cloudpickle.dumps(df.fuse(lambda x: x + 1)))
    assert isinstance(fused, module.FusedFunction)
    numpy.testing.assert_array_equal(fused(X), X + 1)


@df.fuse
def doubled_by_name(x):
    return x * 2


def test_without_a_compiler_numpy_answers(monkeypatch):
    monkeypatch.setenv("PATH", "")
    fused = df.fuse(lambda x: numpy.exp(x) * 1.2345678 + x.max())
    numpy.testing.assert_allclose(fused(X), numpy.exp(X) * 1.2345678 + X.max(), rtol=1e-15)
    assert fused.wait(10) is False
    numpy.testing.assert_allclose(fused(X), numpy.exp(X) * 1.2345678 + X.max(), rtol=1e-15)
    assert "no compiler" in fused.explain()


def test_selections_that_happened_to_have_one_size_may_have_others_later():
    def means(x, label):
        return x[label == 0].mean(), x[label == 1].mean()

    row = numpy.arange(len(X))
    fused = compiled(means, X, row % 2)
    for label in (row % 2, (row % 3 == 0).astype(int), (row == 7).astype(int)):
        numpy.testing.assert_allclose(fused(X, label), means(X, label), rtol=1e-14)
    assert "runs each time" in fused.explain()
    assert "fit together otherwise" in fused.explain()


def test_sizes_that_were_looked_at_are_those_of_the_data():
    fused = compiled(lambda x: x / len(x[x > 1]), X)
    for x in (X, X + 0.5):
        numpy.testing.assert_array_equal(fused(x), x / len(x[x > 1]))


def sort_after_use(x):
    y = x * 2
    z = y + 1
    y.sort()
    return z


def count_into(x, into):
    numpy.add.at(into, [0, 1], 1)
    into[2] = x[0]
    return x + 1


def change_rows(x, into):
    for row in into[None, :]:
        row += 1
    numpy.asarray(into)[0] = 5
    into.ravel()[1] = 6
    return x + into


@pytest.mark.parametrize(
    "function",
    [
        lambda x, into: numpy.clip(x, 0, 1, out=into),
        lambda x, into: numpy.clip(x, 0, 1, into),
        lambda x, into: numpy.cumsum(x, out=into),
        lambda x, into: numpy.cumsum(x, None, None, into),
        lambda x, into: x.cumsum(out=into),
        lambda x, into: x.cumsum(None, None, into),
        lambda x, into: numpy.add.accumulate(x, out=into),
        lambda x, into: numpy.nan_to_num(into, copy=False) + x,
        lambda x, into: sort_after_use(x) + into,
        lambda x, into: (into.fill(3), x + 1)[1],
        count_into,
        change_rows,
    ],
)
def test_what_changes_an_array_is_called_as_it_is(function):
    fused, mine, right = df.fuse(function), -X, -X
    for number in range(3):
        numpy.testing.assert_array_equal(fused(X - number, mine), function(X - number, right))
        numpy.testing.assert_array_equal(mine, right)
    assert "is called as it is" in fused.explain()


def test_other_methods_of_arrays_stand_between_loops():
    fused = compiled(lambda x: x.cumsum().round(2) + x.ravel().cumsum(axis=0), X)
    numpy.testing.assert_array_equal(fused(X), X.cumsum().round(2) + X.ravel().cumsum(axis=0))
    assert fused._last.mode == "loops"


def test_results_are_arrays_of_their_own_where_numpys_are():
    def several(x):
        y = x + 1
        return y, x + 1, x.copy(), x.astype(x.dtype), numpy.asarray(x), y

    fused = df.fuse(several)  # which looks at values
    for _ in range(2):
        mine = X.copy()
        found = fused(mine)
        assert found[0] is found[5]
        for number, each in enumerate(found[:4]):
            each[:] = number
            assert each.flags.writeable
        numpy.testing.assert_array_equal(mine, X)
        assert [each[0] for each in found[:4]] == [0, 1, 2, 3]
    loops = compiled(lambda x: (x.copy(), x.astype("f8"), x + 1, x + 1), X)
    mine = X.copy()
    found = loops(mine)
    assert loops._last.mode == "loops"
    assert not any(numpy.shares_memory(one, other) for one in found for other in (mine, *found) if one is not other)


WEIGHTS = numpy.arange(3.0)
Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Held:
    value: object


def test_names_in_functions_within_are_guarded(monkeypatch):
    for function in (lambda x: sum(x * RATE for _ in range(2)), lambda x: (lambda y: y * RATE)(x)):
        monkeypatch.setitem(globals(), "RATE", 2.0)
        fused = compiled(function, X)
        monkeypatch.setitem(globals(), "RATE", 3.0)
        numpy.testing.assert_array_equal(fused(X), function(X))


def test_an_array_from_around_that_was_read_at_once_is_looked_at():
    fused, before = compiled(lambda x: x * WEIGHTS.max(), X), WEIGHTS.copy()
    try:
        WEIGHTS[:] = 9
        numpy.testing.assert_array_equal(fused(X), X * 9)
    finally:
        WEIGHTS[:] = before


def test_named_tuples_keep_their_kind_and_other_containers_hold_arrays():
    fused = compiled(lambda x: Pair(x + 1, [x * 2]), X)
    for _ in range(2):
        found = fused(X)
        assert isinstance(found, Pair)
        numpy.testing.assert_array_equal(found.second[0], X * 2)
    held = df.fuse(lambda x: Held(x + 1))
    for _ in range(2):
        assert type(held(X).value) is numpy.ndarray
    assert "gives a Held" in held.explain()


def test_whole_numbers_and_sizes_are_compiled_for_a_few_and_then_numpys():
    scaled = df.fuse(lambda x, n: x * n)
    for number in range(12):
        numpy.testing.assert_array_equal(scaled(X, number), X * number)
    assert "each value of a whole number" in scaled.explain()
    share = df.fuse(lambda x: x / len(x))
    for size in range(12):
        numpy.testing.assert_array_equal(share(X[size:]), X[size:] / (len(X) - size))
    assert "it looks at sizes" in share.explain()


def test_powers_of_truth_have_numpys_type():
    flags = X > 1
    fused = compiled(lambda x: (x**2, x**3), flags)
    for found in fused(flags), fused(flags):
        assert [each.dtype for each in found] == [(flags**2).dtype, (flags**3).dtype]


def test_what_changes_an_argument_on_some_paths_only_is_called_as_it_is_there():
    def halve(x, much):
        if x.sum() > much:
            x /= 2
        return x + 1

    fused, mine, right = df.fuse(halve), X.copy(), X.copy()
    for much in (1e9, 0.0, 1e9):
        numpy.testing.assert_array_equal(fused(mine, much), halve(right, much))
        numpy.testing.assert_array_equal(mine, right)
