"""What fused loops know how to compute: NumPy's name of each operation, its C for each kind of number, how far from the
true value it may be, and what torch calls it. Knows neither loops nor arrays.

Kinds are NumPy's: `b` for bool, `i` and `u` for integers, `f` for floats. An operation whose kind has no C here is
left to NumPy. `{0}`, `{1}`, `{2}` stand for its arguments, which have been converted to the types that NumPy converts
them to.
"""

import dataclasses

import numpy

C_TYPES = {
    "?": "uint8_t", "b": "int8_t", "h": "int16_t", "i": "int32_t", "l": "int64_t", "q": "int64_t",
    "B": "uint8_t", "H": "uint16_t", "I": "uint32_t", "L": "uint64_t", "Q": "uint64_t", "f": "float", "d": "double",
}  # fmt: skip
"""C's names of NumPy's types, by their letter; other types are left to NumPy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `heavy` ones have a loop of their own, in which a processor works on several elements at once;
    `within` names the test of the elements that the vector function takes, the others being libm's. `ulp` is the
    largest error in units in the last place of a double; 0.5 is a correctly rounded one."""

    c: dict[str, str]
    ulp: float = 0.5
    heavy: bool = False
    within: str = ""
    libm: str = ""
    torch: str = ""
    seconds: float = 1e-9


def _same_code(kinds: str, c: str, torch: str = "", **others: str) -> Operation:
    return Operation(c=dict.fromkeys(kinds, c) | others, torch=torch)


def _vector(c: str, *, ulp: float, within: str = "", libm: str = "") -> Operation:
    """One of vector_math.h, in double precision for floats of either size."""
    return Operation(
        c={"f": f"v_{c}({{0}})"}, ulp=ulp, heavy=True, within=within, libm=libm or c, torch=c, seconds=8e-9
    )


def _libm(c: str, arguments: int = 1, torch: str = "") -> Operation:
    """One of the C library, element by element; glibc's are within one unit."""
    words = ", ".join(f"{{{number}}}" for number in range(arguments))
    return Operation(c={"f": f"{c}({words})"}, ulp=1.0, heavy=True, torch=torch, seconds=20e-9)


def _comparison(sign: str, torch: str) -> Operation:
    return Operation(c=dict.fromkeys("biuf", f"({{0}} {sign} {{1}})"), torch=torch)


def _extreme(sign: str, torch: str) -> Operation:
    """The lesser or greater; of NaN and a number, NaN, or with `<=` and `>=` the number."""
    whole = f"({{0}} {sign} {{1}} ? {{0}} : {{1}})"
    test = "{1} != {1}" if sign.endswith("=") else "{0} != {0}"
    floats = f"({{0}} {sign} {{1}} || {test} ? {{0}} : {{1}})"
    return Operation(c=dict.fromkeys("biu", whole) | {"f": floats}, torch=torch)


OPERATIONS: dict[str, Operation] = {
    "add": _same_code("iuf", "({0} + {1})", "add", b="({0} | {1})"),
    "subtract": _same_code("iuf", "({0} - {1})", "sub"),
    "multiply": _same_code("iuf", "({0} * {1})", "mul", b="({0} & {1})"),
    "divide": _same_code("f", "({0} / {1})", "true_divide"),
    "floor_divide": Operation(
        c={
            "i": "FLOOR_DIVIDE({0}, {1})",
            "u": "({1} == 0 ? 0 : {0} / ({1} == 0 ? 1 : {1}))",
            "f": "floor_divided({0}, {1})",
        },
        heavy=True, torch="floor_divide", seconds=5e-9,
    ),
    "remainder": Operation(
        c={
            "i": "REMAINDER({0}, {1})",
            "u": "({1} == 0 ? 0 : {0} % ({1} == 0 ? 1 : {1}))",
            "f": "remaindered({0}, {1})",
        },
        heavy=True, torch="remainder", seconds=5e-9,
    ),
    "negative": _same_code("iuf", "(-{0})", "neg"),
    "positive": _same_code("iuf", "{0}", "positive"),
    "absolute": Operation(c={"i": "({0} < 0 ? -{0} : {0})", "u": "{0}", "b": "{0}", "f": "fabs({0})"}, torch="abs"),
    "fabs": _same_code("f", "fabs({0})", "abs"),
    "sign": Operation(
        c={"i": "(({0} > 0) - ({0} < 0))", "u": "({0} > 0)", "f": "({0} > 0 ? 1 : {0} < 0 ? -1 : {0} == 0 ? 0 : {0})"},
        torch="sign",
    ),
    "square": _same_code("iuf", "({0} * {0})", "square"),
    "reciprocal": _same_code("f", "(1 / {0})", "reciprocal"),
    "sqrt": Operation(c={"f": "SQRT({0})"}, torch="sqrt", seconds=4e-9),
    "floor": _same_code("f", "floor({0})", "floor"),
    "ceil": _same_code("f", "ceil({0})", "ceil"),
    "trunc": _same_code("f", "trunc({0})", "trunc"),
    "rint": _same_code("f", "rint({0})", "round"),
    "copysign": _same_code("f", "copysign({0}, {1})", "copysign"),
    "deg2rad": _same_code("f", "({0} * RADIANS({0}))", "deg2rad"),
    "radians": _same_code("f", "({0} * RADIANS({0}))", "deg2rad"),
    "rad2deg": _same_code("f", "({0} * DEGREES({0}))", "rad2deg"),
    "degrees": _same_code("f", "({0} * DEGREES({0}))", "rad2deg"),
    "exp": _vector("exp", ulp=1.0, within="exp_is_within"),
    "log": _vector("log", ulp=1.0, within="log_is_within"),
    "sin": _vector("sin", ulp=2.0, within="sine_is_within"),
    "cos": _vector("cos", ulp=2.0, within="sine_is_within"),
    "arcsin": _vector("arcsin", ulp=1.0, libm="asin"),
    "arccos": _vector("arccos", ulp=1.0, libm="acos"),
    "arctan": _vector("arctan", ulp=2.0, libm="atan"),
    "erf": _vector("erf", ulp=1.5),
    "tan": _libm("tan", torch="tan"),
    "sinh": _libm("sinh", torch="sinh"),
    "cosh": _libm("cosh", torch="cosh"),
    "tanh": _libm("tanh", torch="tanh"),
    "arcsinh": _libm("asinh", torch="asinh"),
    "arccosh": _libm("acosh", torch="acosh"),
    "arctanh": _libm("atanh", torch="atanh"),
    "exp2": _libm("exp2", torch="exp2"),
    "expm1": _libm("expm1", torch="expm1"),
    "log2": _libm("log2", torch="log2"),
    "log10": _libm("log10", torch="log10"),
    "log1p": _libm("log1p", torch="log1p"),
    "cbrt": _libm("cbrt"),
    "power": _libm("pow", 2, torch="pow"),
    "arctan2": _libm("atan2", 2, torch="atan2"),
    "hypot": _libm("hypot", 2, torch="hypot"),
    "minimum": _extreme("<", "minimum"),
    "maximum": _extreme(">", "maximum"),
    "fmin": _extreme("<=", "fmin"),
    "fmax": _extreme(">=", "fmax"),
    "bitwise_and": _same_code("biu", "({0} & {1})", "bitwise_and"),
    "bitwise_or": _same_code("biu", "({0} | {1})", "bitwise_or"),
    "bitwise_xor": _same_code("biu", "({0} ^ {1})", "bitwise_xor"),
    "invert": _same_code("iu", "(~{0})", "bitwise_not", b="(!{0})"),
    "logical_and": _same_code("biuf", "(({0} != 0) & ({1} != 0))", "logical_and"),
    "logical_or": _same_code("biuf", "(({0} != 0) | ({1} != 0))", "logical_or"),
    "logical_xor": _same_code("biuf", "(({0} != 0) ^ ({1} != 0))", "logical_xor"),
    "logical_not": _same_code("biuf", "({0} == 0)", "logical_not"),
    "less": _comparison("<", "lt"),
    "less_equal": _comparison("<=", "le"),
    "greater": _comparison(">", "gt"),
    "greater_equal": _comparison(">=", "ge"),
    "equal": _comparison("==", "eq"),
    "not_equal": _comparison("!=", "ne"),
    "isnan": _same_code("f", "({0} != {0})", "isnan", b="0", i="0", u="0"),
    "isinf": _same_code("f", "(fabs({0}) == INFINITY)", "isinf", b="0", i="0", u="0"),
    "isfinite": _same_code("f", "(fabs({0}) < INFINITY)", "isfinite", b="1", i="1", u="1"),
    "signbit": _same_code("f", "(signbit({0}) != 0)", "signbit"),
    "where": _same_code("biuf", "({0} ? {1} : {2})", "where"),
    "cast": _same_code("biuf", "{0}"),
}  # fmt: skip
"""By NumPy's name; `where` and `cast` are the two that are no ufuncs."""

REDUCTIONS = ("sum", "mean", "prod", "min", "max", "any", "all")
"""What loops reduce over all elements or along the last axis."""


def is_native(dtype: numpy.dtype) -> bool:
    """Whether loops hold numbers of this type.

    >>> is_native(numpy.dtype("float32")), is_native(numpy.dtype(">f8")), is_native(numpy.dtype("complex128"))
    (True, False, False)
    """
    return dtype.char in C_TYPES and dtype.isnative


def c_of(name: str, dtype: numpy.dtype) -> str | None:
    """The C of an operation on arguments of this type, or None where it is NumPy's to compute.

    >>> c_of("add", numpy.dtype(bool)), c_of("subtract", numpy.dtype(bool))
    ('({0} | {1})', None)
    """
    operation = OPERATIONS.get(name)
    return operation.c.get(dtype.kind) if operation else None
