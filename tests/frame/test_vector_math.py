"""The vector functions are as exact as operations.py says, against 40 digits, over the numbers that they take."""

import ctypes

import mpmath
import numpy
import pytest
import scipy.special

from dovetail.frame import c_source
from dovetail.frame.operations import OPERATIONS
from dovetail.native import cached_library

NAMES = [name for name, operation in OPERATIONS.items() if operation.c.get("f", "").startswith("v_")]
TRUE = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
generator = numpy.random.default_rng(0)
NORMAL = numpy.concatenate(
    [generator.normal(size=1500), generator.normal(size=300) * 1e-6, generator.uniform(-3, 3, 500)]
)
DRAWN = {
    "exp": numpy.concatenate([NORMAL, generator.uniform(-707, 707, 1500)]),
    "log": numpy.concatenate([numpy.exp(generator.uniform(-700, 700, 1500)), generator.uniform(0.5, 2, 1500)]),
    "sin": numpy.concatenate([NORMAL, generator.uniform(-1e5, 1e5, 1500), numpy.arange(1, 500) * numpy.pi / 2]),
    "arcsin": numpy.concatenate([generator.uniform(-1, 1, 2000), 1 - numpy.exp(generator.uniform(-30, 0, 500))]),
    "arctan": numpy.concatenate([NORMAL, NORMAL * 1e3]),
    "erf": numpy.concatenate([NORMAL, generator.normal(size=1000) * 2.5, generator.uniform(0.99, 1.01, 300)]),
}
DRAWN |= {"cos": DRAWN["sin"], "arccos": DRAWN["arcsin"]}


@pytest.fixture(scope="module")
def library():
    head = (c_source._HERE / "vector_math.h").read_text()
    calls = "".join(
        f"void all_{name}(const double *x, double *y, long n) "
        f"{{ for (long i = 0; i < n; i++) y[i] = v_{name}(x[i]); }}\n"
        for name in NAMES
    )
    return cached_library(head + calls, c_source.FLAGS)


def answers(library, name, drawn):
    found = numpy.empty_like(drawn)
    getattr(library, f"all_{name}")(
        ctypes.c_void_p(drawn.ctypes.data), ctypes.c_void_p(found.ctypes.data), ctypes.c_long(drawn.size)
    )
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_of_zeros_infinities_and_nan_it_says_what_numpy_says(library, name):
    # Of others the callers of some ask libm: their own conditions are within.
    everywhere = [0.0, -0.0, 1.0, -1.0, numpy.nan, numpy.inf, -numpy.inf]
    special = numpy.array({"log": [1.0], **dict.fromkeys(("exp", "sin", "cos"), everywhere[:4])}.get(name, everywhere))
    found, wanted = answers(library, name, special), getattr(scipy.special if name == "erf" else numpy, name)(special)
    known = ~numpy.isnan(wanted)
    assert numpy.array_equal(numpy.isnan(found), ~known)
    assert found[known] == pytest.approx(wanted[known], rel=1e-15)
    assert numpy.array_equal(numpy.signbit(found[known]), numpy.signbit(wanted[known]))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_within_what_is_stated(library, name):
    drawn = DRAWN[name]
    found = answers(library, name, drawn)
    function = getattr(mpmath, TRUE.get(name, name))
    worst = 0.0
    with mpmath.workdps(40):
        for x, y in zip(drawn.tolist(), found.tolist(), strict=True):
            true = function(mpmath.mpf(x))
            worst = max(worst, float(abs(mpmath.mpf(y) - true) / mpmath.mpf(float(numpy.spacing(abs(float(true)))))))
    assert worst <= OPERATIONS[name].ulp
