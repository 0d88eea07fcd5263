"""A thousand random expressions, over types, shapes, views, NaN and infinities: compiled loops, the interpreter and
NumPy give the same. Whole numbers are equal; floats within some units in the last place of each operation."""

import numpy
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dovetail.frame as df
from dovetail.frame import runner
from dovetail.frame.lazy_array import LazyArray
from dovetail.frame.loops import plan_loops
from dovetail.frame.nodes import input_node

TYPES = ["?", "i1", "u1", "i2", "u4", "i4", "i8", "u8", "f4", "f8"]
SPECIAL = {"f": [0.0, -0.0, numpy.nan, numpy.inf, -numpy.inf, 1e300, -1e-310, 0.5, 7.25], "i": [0, 1, -1, 127, -128, 3]}
UNARY = ["negative", "absolute",
          "square", "sqrt", "exp", "log", "sin", "cos", "arctan", "floor", "rint", "sign", "isnan",
         "logical_not", "invert", "tanh", "isfinite", "positive", "reciprocal", "trunc"]  # fmt: skip
BINARY = ["add", "subtract", "multiply", "divide", "floor_divide", "remainder", "minimum", "maximum", "fmin", "fmax",
          "less",          "equal", "greater_equal", "logical_and", "bitwise_xor",
          "bitwise_or", "copysign", "hypot", "arctan2"]  # fmt: skip
SHAPES = [
    ((), (7,)),
    ((5,), (5,)),
    ((4, 5), (5,)),
    ((4, 1), (1, 5)),
    ((0,), (1,)),
    ((3, 2, 4), (2, 1)),
    ((300,), (300,)),
]


def array(generator, dtype, shape):
    """Random numbers, some special ones, and a view that is not contiguous now and then."""
    kind = numpy.dtype(dtype).kind
    wide = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
    if kind == "b":
        values = generator.random(wide) < 0.5
    elif kind == "f":
        values = (generator.normal(size=wide) * 10.0 ** generator.integers(-3, 4)).astype(dtype)
        with numpy.errstate(all="ignore"):
            values[generator.random(wide) < 0.1] = generator.choice(SPECIAL["f"])
    else:
        bounds = numpy.iinfo(dtype)
        values = generator.integers(max(bounds.min, -300), min(bounds.max, 300), size=wide).astype(dtype)
        values[generator.random(wide) < 0.1] = [bounds.min, bounds.max, 0][generator.integers(3)]
    choice = generator.integers(4)
    part = values[..., ::2] if choice == 0 else values[..., ::-2] if choice == 1 else values[..., : wide[-1] // 2]
    part = part if shape else part[0]
    return numpy.asarray(part if choice < 3 else part.copy())


@st.composite
def expressions(draw):
    """A function of three arguments that is NumPy and nothing else, in steps; and arrays for it."""
    seed = draw(st.integers(0, 2**32 - 1))
    generator = numpy.random.default_rng(seed)
    shapes = draw(st.sampled_from(SHAPES))
    arrays = [array(generator, draw(st.sampled_from(TYPES)), shapes[number % 2]) for number in range(3)]
    steps = []
    for number in range(draw(st.integers(1, 6))):
        place = st.integers(0, 2 + number)
        kind = draw(st.sampled_from(["unary", "binary", "binary", "number", "where", "reduce", "cast"]))
        number_drawn = draw(st.sampled_from([2, 3, 0.5, -1.5, True]))
        steps.append(
            (
                kind,
                draw(st.sampled_from(UNARY)),
                draw(st.sampled_from(BINARY)),
                draw(place),
                draw(place),
                draw(place),
                number_drawn,
            )
        )
    return arrays, steps


def carry_out(steps, values):
    values = list(values)
    for kind, unary, binary, one, two, three, number in steps:
        a, b, c = values[one], values[two], values[three]
        if kind == "unary":
            values.append(getattr(numpy, unary)(a))
        elif kind == "binary":
            values.append(getattr(numpy, binary)(a, b))
        elif kind == "number":
            values.append(getattr(numpy, binary)(a, number))
        elif kind == "where":
            values.append(numpy.where(a, b, c))
        elif kind == "cast":
            values.append(a.astype("f8"))
        else:
            values.append(numpy.max(a) if binary in ("add", "less") else numpy.any(a))
    return values[3:]


def numpy_says(steps, arrays):
    with numpy.errstate(all="ignore"):
        return carry_out(steps, arrays)


def close(found, wanted):
    """Equal where whole, and otherwise within a few roundings; NaN and infinity in the same places."""
    found, wanted = numpy.asarray(found), numpy.asarray(wanted)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if wanted.dtype.kind != "f":
        numpy.testing.assert_array_equal(found, wanted)
        return
    numpy.testing.assert_array_equal(numpy.isnan(found), numpy.isnan(wanted))
    with numpy.errstate(all="ignore"):
        apart = (found != wanted) & ~numpy.isnan(wanted)
        distance = numpy.abs(found - wanted)[apart]
        assert (distance <= 8 * numpy.spacing(numpy.abs(wanted[apart]))).all(), (found[apart], wanted[apart])


def is_stable(steps, arrays):
    """Whether the last bit of what is computed on the way cannot become more than a few: NumPy's answers for slightly
    other roundings agree. Functions after inexact ones may amplify, so those expressions are compared step by step."""
    inexact = {"exp", "log", "sin", "cos", "arctan", "tanh", "hypot", "arctan2"}
    touched = set()
    for number, (kind, unary, binary, one, two, three, _) in enumerate(steps):
        used = {"unary": {one}, "binary": {one, two}, "number": {one}, "where": {one, two, three}}.get(kind, {one})
        if used & touched:
            return False
        if (kind == "unary" and unary in inexact) or (kind in ("binary", "number") and binary in inexact):
            touched.add(3 + number)
    return True


def lazily(steps, arrays):
    lazies = [LazyArray(input_node(each), compute=runner.compute) for each in arrays]
    return [each if isinstance(each, LazyArray) else numpy.asarray(each) for each in carry_out(steps, lazies)]


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
COMMON |= {"database": None, "phases": [Phase.generate]}


@settings(max_examples=1000, **COMMON)
@given(expressions())
def test_the_interpreter_gives_numpys_answers(drawn):
    arrays, steps = drawn
    try:
        wanted = numpy_says(steps, arrays)
    except (TypeError, ValueError, OverflowError) as error:
        with pytest.raises(type(error)):
            lazily(steps, arrays)
        return
    for found, right in zip(lazily(steps, arrays), wanted, strict=True):
        if isinstance(found, LazyArray):
            plan = plan_loops([found._node], known=lambda node: node.value is not None)
            kernels = dict.fromkeys(plan.loops(), NoKernel)
            (found,) = runner.run_plan(runner.PreparedPlan(plan, kernels), {node: node.value for node in plan.inputs})
        numpy.testing.assert_array_equal(numpy.asarray(found), right)
        assert numpy.asarray(found).dtype == numpy.asarray(right).dtype


class NoKernel:
    """A loop whose compiler never ends."""

    state = "compiling"


@pytest.mark.slow
@settings(max_examples=1000, **COMMON)
@given(expressions())
def test_compiled_loops_give_numpys_answers_a_thousand_times(drawn):
    compare_compiled(*drawn)


@settings(max_examples=25, **COMMON)
@given(expressions())
def test_compiled_loops_give_numpys_answers(drawn):
    compare_compiled(*drawn)


def compare_compiled(arrays, steps):
    try:
        wanted = numpy_says(steps, arrays)
    except (TypeError, ValueError, OverflowError):
        return
    if not is_stable(steps, arrays):
        return
    found = [each._node for each in lazily(steps, arrays) if isinstance(each, LazyArray)]
    right = [w for w, each in zip(wanted, lazily(steps, arrays), strict=True) if isinstance(each, LazyArray)]
    if not found:
        return
    plan = plan_loops(found, known=lambda node: node.value is not None)
    prepared = runner.prepare(plan)
    assert all(kernel.wait(120) for kernel in prepared.kernels.values())
    for one, other in zip(runner.run_plan(prepared, {node: node.value for node in plan.inputs}), right, strict=True):
        close(one, other)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_operation_of_every_type_in_few_loops(dtype):
    """All operations of a type, compiled together: each has its own inputs, so that nothing is amplified."""
    from dovetail.frame.operations import OPERATIONS

    generator = numpy.random.default_rng(1)
    one, two = array(generator, dtype, (700,)), array(generator, dtype, (700,))
    names = [name for name in OPERATIONS if name not in ("where", "cast", "erf") and hasattr(numpy, name)]

    def all_of(a, b):
        found = {}
        for name in names:
            ufunc = getattr(numpy, name)
            try:
                found[name] = ufunc(a) if ufunc.nin == 1 else ufunc(a, b)
            except (TypeError, ValueError):  # not of this type, or a negative power
                continue
        return found

    wanted = numpy_says_of(all_of, one, two)
    fused = df.fuse(all_of)
    fused(one, two)
    assert fused.wait(300), fused.explain()
    given = fused._loops(fused._last, [one, two], (one, two), {})
    assert given.keys() == wanted.keys()
    for name in wanted:
        close(given[name], wanted[name])


def numpy_says_of(function, *arrays):
    with numpy.errstate(all="ignore"):
        return function(*arrays)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [None, -1])
def test_reductions(dtype, axis):
    generator = numpy.random.default_rng(2)
    values = array(generator, dtype, (37, 411))
    values = (
        numpy.nan_to_num(values, posinf=3, neginf=-3).clip(-3, 3).astype(dtype) if dtype.startswith("f") else values
    )

    def reductions(x):
        return x.sum(axis), x.min(axis), x.max(axis), x.any(axis), x.all(axis), x.mean(axis), numpy.std(x * 1.0, axis)

    fused = df.fuse(reductions)
    fused(values)
    assert fused.wait(300), fused.explain()
    wanted = numpy_says_of(reductions, values)
    assert fused._last.mode == "loops", fused.explain()
    for one, other in zip(fused._loops(fused._last, [values], (values,), {}), wanted, strict=True):
        assert numpy.asarray(one).dtype == numpy.asarray(other).dtype
        numpy.testing.assert_allclose(
            one, other, rtol=1e-5 if dtype == "f4" else 1e-12, atol=1e-4 if dtype == "f4" else 1e-12
        )


def test_sums_are_as_accurate_as_numpys_and_do_not_depend_on_threads(monkeypatch):
    values = numpy.random.default_rng(0).normal(size=300_001) * 1e8 + 0.1
    total = df.fuse(lambda x: x.sum())
    total(values)
    assert total.wait(300)
    found = total(values)
    exact = (
        float(values.astype(numpy.longdouble).sum())
        if numpy.finfo(numpy.longdouble).nmant > 60
        else __import__("math").fsum(values)
    )
    assert abs(found - exact) <= 4 * abs(values.sum() - exact) + 4 * numpy.spacing(abs(exact))
    monkeypatch.setattr(runner, "thread_count", lambda: 7)
    assert total(values) == found


@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "?"])
@pytest.mark.parametrize("axis", [None, -1])
def test_means_of_large_whole_numbers_do_not_wrap(dtype, axis):
    values = numpy.full(
        (4, 10_000), min(numpy.iinfo(dtype).max, 1_700_000_000_000_000_000) if dtype != "?" else 1, dtype
    )
    mean = df.fuse(lambda x: x.mean(axis))
    numpy.testing.assert_allclose(mean(values), values.mean(axis), rtol=1e-14)
    assert mean.wait(300)
    numpy.testing.assert_allclose(mean(values), values.mean(axis), rtol=1e-14)


def test_clip_keeps_numpys_sign_of_zero():
    zeros, bounds = numpy.array([-0.0, 0.0] * 500), numpy.zeros(1000)

    def clips(x, low):
        return numpy.clip(x, 0, 1), numpy.clip(x, -1, 0.0), numpy.clip(x, low, 1), x.clip(None, -0.0)

    fused = df.fuse(clips)
    fused(zeros, bounds)
    assert fused.wait(300)
    for found in fused(zeros, bounds), fused._loops(fused._last, [zeros, bounds], (zeros, bounds), {}):
        for one, other in zip(found, clips(zeros, bounds), strict=True):
            numpy.testing.assert_array_equal(numpy.signbit(one), numpy.signbit(other))
