"""An array that is not computed yet: what NumPy is asked to do with it becomes nodes.

NumPy itself hands its calls over (`__array_ufunc__`, `__array_function__`). What loops do not know is called as it is,
on computed values, and becomes a node too. Whatever needs a value at once (`if`, `float`, printing) computes it; a
trace notes that, since then the program itself must run each time. Knows nothing of how values are computed.
"""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from dovetail.frame.nodes import (
    BOOL,
    FLOAT64,
    FrameNode,
    Unknown,
    call_node,
    cast,
    constant_node,
    input_node,
    map_node,
    reduce_node,
    strong,
    walk,
    where_node,
)
from dovetail.frame.operations import OPERATIONS, is_native
from dovetail.vocabulary import DovetailError

_REDUCED_BY = {
    "add": "sum",
    "multiply": "prod",
    "minimum": "min",
    "maximum": "max",
    "logical_and": "all",
    "logical_or": "any",
}
_CHANGING = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}
_CHANGING_METHODS = {"sort", "partition", "fill", "resize", "put", "itemset", "setfield", "setflags", "byteswap"}
# Of Python's numbers these give what the loop's doubles give; others are computed when traced, and guarded.
_OF_NUMBERS = {"add", "subtract", "multiply", "negative", "positive"}
_BY_PYTHON = {"divide", "floor_divide", "remainder", "power"}
_BY_PYTHON |= {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}


class Untraceable(DovetailError):
    """A change in place of something that others may hold: only NumPy itself can carry it out."""


@dataclasses.dataclass(slots=True)
class Trace:
    """What was seen while a function ran on lazy arrays. `reasons` say why it must run each time; `calls` which
    functions stand between its loops; `numbers` are the Python numbers on whose values its path depends, and `sized`
    the calls on the size of whose results it does."""

    reasons: list[str] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)
    numbers: list[FrameNode] = dataclasses.field(default_factory=list)
    by_shape: bool = False
    sized: list[FrameNode] = dataclasses.field(default_factory=list)


Compute = Callable[[list[FrameNode]], list[numpy.ndarray]]


class LazyArray(NDArrayOperatorsMixin):
    """What stands for an array while a fused function is traced, and for the columns of a table.

    >>> from dovetail.frame.runner import compute
    >>> column = LazyArray(input_node(numpy.array([1.0, 2.0, 3.0])), compute=compute)
    >>> (column * 2).sum()
    LazyArray(float64, shape=())
    >>> float((column * 2).sum())
    12.0
    """

    __slots__ = ("_compute", "_node", "_shared", "_trace")
    __array_priority__ = 1000

    def __init__(self, node: FrameNode, *, compute: Compute, trace: Trace | None = None) -> None:
        self._node, self._compute, self._trace = node, compute, trace
        self._shared = node.kind != "map"

    # What NumPy asks.

    def __array_ufunc__(self, ufunc: numpy.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if method == "at":
            raise Untraceable(f"numpy.{ufunc.__name__}.at changes an array in place, which fused functions cannot.")
        if out is not None:
            return self._apply_in_place(ufunc, method, inputs, options, out)
        try:
            if method == "reduce":
                return self._reduce(_REDUCED_BY.get(ufunc.__name__, ""), *inputs[:1], **{"axis": 0, **options})
            if method == "__call__" and not options and _is_known(ufunc):
                return self._map(ufunc, inputs)
        except Unknown:
            pass
        return self._call(getattr(ufunc, method), inputs, options, name=ufunc.__name__)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
        if _changes_an_array(function, args, options):
            raise Untraceable(f"numpy.{function.__name__} changes an array in place, which fused functions cannot.")
        try:
            if found := _FUNCTIONS.get(function):
                return found(self, *args, **options)
        except (Unknown, TypeError):
            pass
        return self._call(function, args, options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        return numpy.array(_unchangeable(self._value("numpy.asarray")), dtype=dtype, copy=copy)

    # What arrays have.

    @property
    def dtype(self) -> numpy.dtype:
        return self._node.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        if self._trace:
            self._trace.by_shape = True
            self._trace.sized += [node for node in walk([self._node]) if node.kind == "call"]
        return self._node.shape

    @property
    def size(self) -> int:
        return int(numpy.prod(self.shape, dtype=int))

    @property
    def T(self) -> Any:
        return self._call(numpy.transpose, (self,), {})

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def astype(self, dtype: Any, **options: Any) -> Any:
        wanted = numpy.dtype(dtype)
        # A float that does not fit an integer is undefined in C and in NumPy alike, and not the same.
        sound = not (self.dtype.kind == "f" and wanted.kind in "iu")
        if options or not sound or not (is_native(wanted) and is_native(self.dtype)):
            return self._call(numpy.ndarray.astype, (self, dtype), options)
        if wanted.kind == "b" and self.dtype.kind != "b":
            return self._lazy(map_node("not_equal", numpy.not_equal, (self._node, constant_node(0))))
        if wanted == self.dtype:
            return self.copy()
        return self._lazy(cast(strong(self._node), wanted))

    def copy(self, order: str = "C") -> "LazyArray":
        if order != "C" or not is_native(self.dtype):
            return self._call(numpy.ndarray.copy, (self, order), {})  # type: ignore[no-any-return]
        return self._lazy(FrameNode("map", "cast", self.dtype, self._node.shape, (self._node,)))

    def sum(self, axis: Any = None, **options: Any) -> Any:
        return numpy.sum(self, axis=axis, **options)

    def mean(self, axis: Any = None, **options: Any) -> Any:
        return numpy.mean(self, axis=axis, **options)

    def prod(self, axis: Any = None, **options: Any) -> Any:
        return numpy.prod(self, axis=axis, **options)

    def min(self, axis: Any = None, **options: Any) -> Any:
        return numpy.min(self, axis=axis, **options)

    def max(self, axis: Any = None, **options: Any) -> Any:
        return numpy.max(self, axis=axis, **options)

    def any(self, axis: Any = None, **options: Any) -> Any:
        return numpy.any(self, axis=axis, **options)

    def all(self, axis: Any = None, **options: Any) -> Any:
        return numpy.all(self, axis=axis, **options)

    def var(self, axis: Any = None, **options: Any) -> Any:
        return numpy.var(self, axis=axis, **options)

    def std(self, axis: Any = None, **options: Any) -> Any:
        return numpy.std(self, axis=axis, **options)

    def clip(self, *bounds: Any, **options: Any) -> Any:
        return numpy.clip(self, *bounds, **options)

    def reshape(self, *shape: Any) -> Any:
        return self._call(numpy.ndarray.reshape, (self, *shape), {})

    def __getitem__(self, index: Any) -> Any:
        return self._call(numpy.ndarray.__getitem__, (self, index), {}, name="[]")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise Untraceable("fused functions cannot change an array in place; use numpy.where.")

    # What needs the value at once.

    def __bool__(self) -> bool:
        return bool(self._value("bool"))

    def __float__(self) -> float:
        return float(self._value("float"))

    def __int__(self) -> int:
        return int(self._value("int"))

    def __index__(self) -> int:
        return operator.index(self._value("an index"))

    def __iter__(self) -> Iterator[Any]:
        return iter(_unchangeable(self._value("iter")))

    def __repr__(self) -> str:
        return f"LazyArray({self._node.dtype}, shape={self._node.shape})"

    __hash__ = None  # type: ignore[assignment]  # as arrays, since == compares element by element

    def __pow__(self, other: Any) -> Any:
        # As NumPy's own ** does it, for numbers that are written in the program.
        if isinstance(other, int | float) and not isinstance(other, bool):
            floating = self._node.dtype.kind == "f"
            if other == 2 and (floating or isinstance(other, int)) and self._node.dtype.kind in "iuf":
                return numpy.square(self)
            if floating and not self._node.weak and other in (0.5, -1):
                return numpy.sqrt(self) if other == 0.5 else numpy.reciprocal(self)
            if self._node.dtype == BOOL:
                return self._call(operator.pow, (self, other), {}, name="power")
        return numpy.power(self, other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(numpy.ndarray, name):
            raise AttributeError(f"'LazyArray' object has no attribute {name!r}")
        if name in _CHANGING_METHODS:
            raise Untraceable(f"ndarray.{name} changes an array in place, which fused functions cannot.")
        method = getattr(numpy.ndarray, name)
        if callable(method) and not self._node.weak:
            return functools.partial(self._call_method, method)
        return getattr(_unchangeable(self._value(f"ndarray.{name}")), name)

    def _call_method(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("out") is not None or any(isinstance(each, numpy.ndarray | LazyArray) for each in args[1:]):
            raise Untraceable(f"ndarray.{method.__name__} may change an array in place, which fused functions cannot.")
        return self._call(method, (self, *args), options)

    # How that is done.

    def _lazy(self, node: FrameNode) -> "LazyArray":
        return LazyArray(node, compute=self._compute, trace=self._trace)

    def _value(self, reason: str) -> Any:
        """The value, now; the trace notes why."""
        node = self._node
        if node.weak and node.kind == "input" and self._trace:
            self._trace.numbers.append(node)
            return node.value
        if self._trace:
            self._trace.reasons.append(f"{reason} needs a value at once")
        (found,) = self._compute([node])
        return found if found.ndim else found[()]

    def _map(self, ufunc: numpy.ufunc, inputs: tuple[Any, ...]) -> Any:
        nodes = tuple(map(self._node_of, inputs))
        name = ufunc.__name__
        if all(node.weak for node in nodes):
            if name in _BY_PYTHON and self._trace:
                return ufunc(*(each._value(name) if isinstance(each, LazyArray) else each for each in inputs)).item()
            typed = tuple(cast(node, FLOAT64) if node.kind == "constant" else strong(node) for node in nodes)
            node = map_node(name, ufunc, typed)
            return self._lazy(dataclasses.replace(node, weak=name in _OF_NUMBERS))
        return self._lazy(map_node(name, ufunc, nodes))

    def _node_of(self, value: Any) -> FrameNode:
        if isinstance(value, LazyArray):
            return value._node
        if isinstance(value, int | float | numpy.generic):
            return constant_node(value)
        if type(value) is numpy.ndarray and is_native(value.dtype):
            return input_node(value)
        raise Unknown(type(value).__name__)

    def _reduce(self, name: str, array: Any, axis: Any = None, dtype: Any = None, **options: Any) -> Any:
        keepdims = options.pop("keepdims", False)
        if not isinstance(array, LazyArray) or options.pop("out", None) is not None or not name:
            raise Unknown(name)
        if any(value is not numpy._NoValue for value in options.values()) or keepdims not in (False, numpy._NoValue):
            raise Unknown(name)
        dimensions = array.ndim
        if (axis is not None and axis not in (-1, dimensions - 1)) or not dimensions:
            raise Unknown(f"{name} over axis {axis}")
        rows = axis is not None and dimensions > 1
        wanted = None if dtype in (None, numpy._NoValue) else numpy.dtype(dtype)
        return self._lazy(reduce_node(name, array._node, -1 if rows else None, wanted))

    def _spread(self, array: Any, axis: Any = None, root: bool = False, **options: Any) -> Any:
        """Variance, or its root: the mean of the squares of what is left without the mean, as NumPy has it."""
        if any(value not in (None, 0, numpy._NoValue) for value in options.values()) or array.dtype.kind != "f":
            raise Unknown("var")
        middle = self._reduce("mean", array, axis)
        if middle.ndim:
            middle = middle[..., None]
        found = self._reduce("mean", numpy.square(array - middle), axis)
        return numpy.sqrt(found) if root else found

    def _where(self, condition: Any, *others: Any) -> Any:
        if len(others) != 2:
            raise Unknown("where")
        return self._lazy(where_node(*map(self._node_of, (condition, *others))))

    def _clip(self, array: Any, low: Any = None, high: Any = None, **options: Any) -> Any:
        low, high = options.pop("min", low), options.pop("max", high)
        if options or (low is None and high is None):
            raise Unknown("clip")
        if low is not None and high is not None and numpy.ndim(low) == numpy.ndim(high) == 0:
            return numpy.minimum(high, numpy.maximum(low, array))  # of two zeros the array's, as NumPy has it
        above = array if low is None else numpy.maximum(array, low)
        return above if high is None else numpy.minimum(above, high)

    def _call(self, function: Callable[..., Any], args: Any, options: dict[str, Any], *, name: str = "") -> Any:
        """Compute what is pending, call the real function, and note it as a node where its answer is an array."""
        found: list[LazyArray] = []
        template = _take_out((tuple(args), options), found)

        def apply(*arrays: Any) -> Any:
            words, named = _put_in(template, arrays)
            return function(*words, **named)

        apply.__name__ = name or getattr(function, "__name__", "call")
        with numpy.errstate(all="ignore"):
            value = apply(*(each if each.ndim else each[()] for each in self._compute([each._node for each in found])))
        for each in found:
            each._shared = True  # what was given may be a view of it
        pure = str(getattr(function, "__module__", None) or "numpy").startswith(("numpy", "_operator"))
        if isinstance(value, numpy.ndarray | numpy.generic) and pure:
            if self._trace:
                self._trace.calls.append(apply.__name__)
            return self._lazy(call_node(apply, tuple(each._node for each in found), value))
        if self._trace:
            self._trace.reasons.append(f"{apply.__name__} gives a {type(value).__name__}")
        return value

    def _apply_in_place(
        self, ufunc: numpy.ufunc, method: str, inputs: Any, options: dict[str, Any], out: Any
    ) -> "LazyArray":
        """`x += y` of a value that nothing else can see."""
        target = out[0]
        if not isinstance(target, LazyArray) or target._shared or method != "__call__" or options or len(out) != 1:
            raise Untraceable(f"{ufunc.__name__} changes an array in place that others may hold.")
        found = ufunc(*inputs)
        if not isinstance(found, LazyArray) or found._node.shape != target._node.shape or found._node.kind != "map":
            raise Untraceable(f"{ufunc.__name__} in place, of a kind that loops do not know.")
        if not numpy.can_cast(found.dtype, target.dtype, "same_kind"):
            raise Untraceable(f"{ufunc.__name__} in place would change the type.")  # NumPy says so
        target._node = cast(found._node, target._node.dtype)
        return target


def _unchangeable(value: Any) -> Any:
    """A view of an array for a program that would otherwise change what loops still read."""
    if isinstance(value, numpy.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _changes_an_array(function: Callable[..., Any], args: Any, options: dict[str, Any]) -> bool:
    """Whether a function of NumPy's writes into something that it is given."""
    try:
        given = inspect.signature(function).bind(*args, **options).arguments
    except (TypeError, ValueError):  # NumPy has an error for what it is given, or no signature
        given = options
    kept = function.__name__ == "nan_to_num" and given.get("copy") is False
    return function.__name__ in _CHANGING or given.get("out") is not None or kept or bool(given.get("overwrite_input"))


def _is_known(ufunc: numpy.ufunc) -> bool:
    """Whether it is NumPy's own, or scipy's erf, and a loop knows it."""
    name = ufunc.__name__
    return name in OPERATIONS and (getattr(numpy, name, None) is ufunc or name == "erf") and ufunc.nout == 1


def _take_out(value: Any, found: list[LazyArray]) -> Any:
    """The same containers with a number for each lazy array, which is put into `found`."""
    if isinstance(value, LazyArray):
        found.append(value)
        return _ArgumentPlace(len(found) - 1)
    if type(value) in (tuple, list):
        return type(value)(_take_out(each, found) for each in value)
    if type(value) is dict:
        return {key: _take_out(each, found) for key, each in value.items()}
    return value


def _put_in(value: Any, arrays: tuple[Any, ...]) -> Any:
    if isinstance(value, _ArgumentPlace):
        return arrays[value.number]
    if type(value) in (tuple, list):
        return type(value)(_put_in(each, arrays) for each in value)
    if type(value) is dict:
        return {key: _put_in(each, arrays) for key, each in value.items()}
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class _ArgumentPlace:
    """Where an array belongs in the arguments of a call."""

    number: int


def _reduction(name: str) -> Callable[..., Any]:
    return lambda lazy, array, axis=None, **options: lazy._reduce(name, array, axis, **options)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(numpy, name): _reduction(name) for name in ("sum", "mean", "prod", "min", "max", "any", "all")},
    numpy.where: LazyArray._where,
    numpy.clip: LazyArray._clip,
    numpy.var: LazyArray._spread,
    numpy.std: lambda lazy, array, axis=None, **options: lazy._spread(array, axis, root=True, **options),
    numpy.shape: lambda lazy, array: array.shape,
    numpy.ndim: lambda lazy, array: array.ndim,
    numpy.size: lambda lazy, array: array.size,
}
