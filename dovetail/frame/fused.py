"""`@df.fuse`: a NumPy function runs once on lazy arrays, and from then on as its loops.

What it was traced to holds for every call with the same types and with shapes that fit together in the same way. Where
the function looks at values (`if`, `float`) it runs each time, on lazy arrays; where it changes arrays in place, or is
given what loops do not hold, it is called as it is. `explain` says which it was, and why.
"""

import dataclasses
import functools
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from dovetail.frame.explanation import explain_fused
from dovetail.frame.lazy_array import LazyArray, Trace, Untraceable
from dovetail.frame.loops import plan_loops
from dovetail.frame.nodes import FrameNode, input_node
from dovetail.frame.operations import is_native
from dovetail.frame.runner import PreparedPlan, ShapeChanged, compute, prepare, run_plan

_FIXED = (int, bool, str, bytes, type(None), numpy.dtype, type)
# Up to here NumPy may be faster than a call into compiled code; it is measured which.
_SMALL = 32768
_TRIES = 3
_MOST_TRACES = 8
_MOST_SHAPES = 1024


_GIVES_ARRAY = "it gives a ndarray"


class _Opaque(Exception):
    """An argument that loops do not hold."""


@dataclasses.dataclass(slots=True)
class TracedFunction:
    """What became of a function for arguments of certain types. `mode` is `loops`, `lazy` where it runs each time on
    lazy arrays, or `plain`."""

    mode: str
    reasons: list[str]
    prepared: PreparedPlan | None = None
    sources: list[tuple[FrameNode, int, Any]] = dataclasses.field(default_factory=list)
    structure: Any = None
    numbers: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)
    by_shape: bool = False
    digests: list[tuple[numpy.ndarray, int]] = dataclasses.field(default_factory=list)
    """Arrays from around the function that the program read by itself, and what was in them."""
    elements: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0


@dataclasses.dataclass(slots=True)
class _SizedCall:
    """One set of types and shapes: what it was traced to, and, where it is small, how long each way takes."""

    traced: TracedFunction
    small: bool
    plain_seconds: list[float] = dataclasses.field(default_factory=list)
    loop_seconds: list[float] = dataclasses.field(default_factory=list)
    plain: bool | None = None


class FusedFunction:
    """A NumPy function whose operations are one native loop, as far as they can be. Made by `df.fuse`; called like the
    function itself. Its compiled part computes without the interpreter's lock, on all cores."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._dispatch: dict[Any, _SizedCall] = {}
        self._traced: dict[Any, TracedFunction] = {}
        self._traces: dict[Any, tuple[int, TracedFunction]] = {}
        self._last: TracedFunction | None = None
        self._guards = _guards(function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        key: list[Any] = []
        leaves: list[Any] = []
        try:
            for each in args:
                _add_key(each, key, leaves)
            if options:
                _add_key(options, key, leaves)
        except _Opaque as error:
            self._last = TracedFunction("plain", [str(error)])
            return self._function(*args, **options)
        dispatch = self._dispatch.get(tuple(key))
        if dispatch is None or not self._holds(dispatch.traced, leaves):
            return self._first(tuple(key), leaves, args, options)
        traced = self._last = dispatch.traced
        if traced.mode == "loops":
            if dispatch.small:
                return self._call_small(dispatch, leaves, args, options)
            return self._loops(traced, leaves, args, options)
        if traced.mode == "plain":
            return self._function(*args, **options)
        return self._lazily(leaves, args, options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        found: Any = functools.reduce(
            lambda place, name: getattr(place, name, None),
            self.__qualname__.split("."),
            sys.modules.get(self.__module__),
        )
        return self.__qualname__ if found is self else (fuse, (self._function,))

    def __repr__(self) -> str:
        return f"<fused {self.__qualname__}>"

    def explain(self) -> str:
        """What became of the last call: its loops, the bytes they move, which back end computes them and why, and how
        long that took.

        >>> import numpy, dovetail.frame as df
        >>> @df.fuse
        ... def distance(x, y):
        ...     return numpy.sqrt(x * x + y * y)
        >>> distance(numpy.array([3.0]), numpy.array([4.0]))
        array([5.])
        >>> print(distance.explain().splitlines()[0])
        distance: 4 operations in 1 loop
        """
        return explain_fused(self.__name__, self._last)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the loops of the last call are compiled; whether they are.

        >>> import numpy, dovetail.frame as df
        >>> double = df.fuse(lambda x: x + x)
        >>> double(numpy.arange(2.0)), double.wait() in (True, False)
        (array([0., 2.]), True)
        """
        prepared = self._last.prepared if self._last else None
        return prepared is not None and all(kernel.wait(seconds) for kernel in prepared.kernels.values())

    def _holds(self, traced: TracedFunction, leaves: list[Any]) -> bool:
        """Whether what the trace depended on is as it was."""
        for names, name, value in self._guards:
            if names.get(name) is not value:
                self._guards = _guards(self._function)
                self._dispatch.clear()
                self._traced.clear()
                return False
        same = all(_digest(array) == digest for array, digest in traced.digests)
        return same and all(leaves[number] == value for number, value in traced.numbers)

    def _loops(self, traced: TracedFunction, leaves: list[Any], args: Any, options: Any) -> Any:
        began = time.perf_counter()
        assert traced.prepared is not None
        values = {node: leaves[number] if number >= 0 else kept for node, number, kept in traced.sources}
        try:
            results = run_plan(traced.prepared, values)
        except ShapeChanged as error:
            self._last = TracedFunction("lazy", [str(error)])
            return self._lazily(leaves, args, options)
        _note_seconds(traced, results, time.perf_counter() - began)
        return _put_back(traced.structure, results)

    def _call_small(self, dispatch: _SizedCall, leaves: list[Any], args: Any, options: Any) -> Any:
        """By NumPy until there is compiled code, then by whichever was faster of a few calls each."""
        if dispatch.plain is None:
            ready = all(kernel.state == "ready" for kernel in dispatch.traced.prepared.kernels.values())  # type: ignore[union-attr]
            if len(dispatch.plain_seconds) >= _TRIES and ready:
                began = time.perf_counter()
                found = self._loops(dispatch.traced, leaves, args, options)
                dispatch.loop_seconds.append(time.perf_counter() - began)
                if len(dispatch.loop_seconds) > _TRIES:
                    dispatch.plain = min(dispatch.plain_seconds) < min(dispatch.loop_seconds)
                return found
            began = time.perf_counter()
            with numpy.errstate(all="ignore"):
                found = self._function(*args, **options)
            dispatch.plain_seconds.append(time.perf_counter() - began)
            return found
        if dispatch.plain:
            with numpy.errstate(all="ignore"):
                return self._function(*args, **options)
        return self._loops(dispatch.traced, leaves, args, options)

    def _first(self, key: Any, leaves: list[Any], args: Any, options: Any) -> Any:
        """Trace it, unless shapes that fit together in the same way were traced before."""
        pattern = _pattern(key)
        small = sum(leaf.size for leaf in leaves if isinstance(leaf, numpy.ndarray)) <= _SMALL
        traced = self._traced.get(pattern)
        if traced is not None and self._holds(traced, leaves):
            if len(self._dispatch) >= _MOST_SHAPES:
                self._dispatch.clear()
            self._dispatch[key] = _SizedCall(traced, small)
            return self(*args, **options)
        loose = tuple(int if isinstance(part, tuple) and part[:1] == (int,) else part for part in pattern)
        count, last = self._traces.get(loose, (0, None))
        if last is not None and count >= _MOST_TRACES:
            traced, result = TracedFunction("plain", _why_again(last, whole_numbers=loose != pattern)), None
        else:
            traced, result = self._trace(leaves, args, options)
            self._traces[loose] = (count + 1, traced)
        self._last = traced
        self._dispatch[key] = _SizedCall(traced, small)
        if not traced.by_shape:
            self._traced[pattern] = traced
        return self._function(*args, **options) if traced.mode == "plain" else result

    def _trace(self, leaves: list[Any], args: Any, options: Any) -> tuple[TracedFunction, Any]:
        began = time.perf_counter()
        try:
            result, given, trace, inputs = self._run_lazily(leaves, args, options)
        except Untraceable as error:
            return TracedFunction("plain", [str(error)]), None
        except Exception as error:  # NumPy's own error comes from NumPy: the function is called as it is
            return TracedFunction("plain", [f"{type(error).__name__}: {error}"], by_shape=True), None
        lazies: list[LazyArray] = []
        structure = _take_arrays(given, lazies, trace)
        roots = [*(lazy._node for lazy in lazies), *trace.sized]
        plan = plan_loops(roots)
        known = {id(value) for _, _, value in self._guards}
        places = {id(node): number for number, node in enumerate(inputs)}
        sources: list[tuple[FrameNode, int, Any]] = []
        for node in plan.inputs:
            number = places.get(id(node), -1)
            if number < 0 and id(node.value) not in known:
                trace.reasons.append("an array is made inside the function")
            sources.append((node, number, None if number >= 0 else node.value))
        read = {id(node.value) for node, number, _ in sources if number < 0}
        around = [each for _, _, each in self._guards if isinstance(each, numpy.ndarray) and id(each) not in read]
        if any(each.dtype.hasobject for each in around):
            trace.reasons.append("it may read an array of objects from around it")
        if trace.reasons:
            return TracedFunction("lazy", trace.reasons, calls=trace.calls), result
        numbers = [(places[id(node)], node.value) for node in trace.numbers if id(node) in places]
        prepared = prepare(plan, exact=trace.by_shape)
        traced = TracedFunction("loops", [], prepared, sources, structure, numbers, trace.calls, trace.by_shape)
        traced.digests = [(each, _digest(each)) for each in around]
        for node in inputs:
            node.value = None  # what was traced must not hold on to the first call's arrays
        _forget(roots)
        _note_seconds(traced, [], time.perf_counter() - began)
        return traced, result

    def _lazily(self, leaves: list[Any], args: Any, options: Any) -> Any:
        """Run it on lazy arrays, or as it is where its path this time is not theirs, or ends in NumPy's own error."""
        try:
            return self._run_lazily(leaves, args, options)[0]
        except Exception as error:
            self._last = TracedFunction("plain", [str(error)])
        return self._function(*args, **options)

    def _run_lazily(self, leaves: list[Any], args: Any, options: Any) -> tuple[Any, Any, Trace, list[FrameNode]]:
        """Run the function on lazy arrays: what it gave, computed and as it was, and what was seen."""
        trace = Trace()
        inputs = [input_node(leaf, weak=isinstance(leaf, float)) for leaf in leaves]
        lazies = iter([LazyArray(node, compute=compute, trace=trace) for node in inputs])
        with numpy.errstate(all="ignore"):
            given = self._function(*(_made_lazy(each, lazies) for each in args), **_made_lazy(options, lazies))
        found: list[LazyArray] = []
        seen = Trace()
        structure = _take_arrays(given, found, seen)
        if seen.reasons and not all(reason == _GIVES_ARRAY for reason in seen.reasons):
            raise Untraceable(f"{', '.join(seen.reasons)}, which may hold arrays.")
        results = compute([lazy._node for lazy in found])
        return _put_back(structure, results), given, trace, inputs


def fuse(function: Callable[..., Any]) -> FusedFunction:
    """Compute a NumPy function's operations in one native loop, on all cores, without arrays in between.

    The first call with new types traces the function and has its loops compiled in the background; NumPy itself answers
    until they are. Results are NumPy's, within the units in the last place that `docs/frames.md` states, whole numbers
    exactly; floating-point warnings are not given. What loops do not know is NumPy's to compute, between them. The
    function must give the same for the same arguments, as far as arrays and its module's names tell.

    >>> import numpy, dovetail.frame as df
    >>> @df.fuse
    ... def haversine(latitude, longitude):
    ...     a = numpy.sin(latitude / 2) ** 2 + numpy.cos(latitude) * numpy.sin(longitude / 2) ** 2
    ...     return 2 * 6371 * numpy.arcsin(numpy.sqrt(a))
    >>> haversine(numpy.array([0.0, 0.1]), numpy.array([0.0, 0.2])).round(3)
    array([   0.   , 1422.692])
    """
    return FusedFunction(function)


def _add_key(value: Any, key: list[Any], leaves: list[Any]) -> None:
    """What of an argument a trace depends on; its arrays and floats are put into `leaves`."""
    kind = type(value)
    if kind is numpy.ndarray:
        dtype = value.dtype
        if not is_native(dtype):
            raise _Opaque(f"an array of type {dtype} is NumPy's to compute")
        key.append(dtype)
        key.append(value.shape)
        leaves.append(value)
    elif kind is float:
        key.append(float)
        leaves.append(value)
    elif kind in _FIXED:
        key.append((kind, value))
    elif kind is tuple or kind is list:
        key.append((kind, len(value)))
        for each in value:
            _add_key(each, key, leaves)
    elif kind is dict:
        key.append((kind, tuple(value)))
        for each in value.values():
            _add_key(each, key, leaves)
    elif isinstance(value, numpy.generic) and is_native(value.dtype):
        key.append((numpy.generic, value.dtype))
        leaves.append(numpy.asarray(value))
    else:
        raise _Opaque(f"an argument of type {kind.__name__} is not what loops hold")


def _pattern(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same without sizes: which dimensions are equal, and which are none or one."""
    sizes: dict[int, int] = {0: 0, 1: 1}
    return tuple(
        tuple(sizes.setdefault(size, len(sizes)) for size in part)
        if isinstance(part, tuple) and all(type(size) is int for size in part)
        else part
        for part in key
    )


def _made_lazy(value: Any, lazies: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_made_lazy(each, lazies) for each in value)
    if type(value) is dict:
        return {key: _made_lazy(each, lazies) for key, each in value.items()}
    return next(lazies) if isinstance(value, numpy.ndarray | numpy.generic) or type(value) is float else value


def _why_again(last: TracedFunction, *, whole_numbers: bool) -> list[str]:
    """Why a function was traced again and again, from what became of it last."""
    if last.mode == "plain":
        return last.reasons
    if last.by_shape:
        return [f"it looks at sizes, and more than {_MOST_TRACES} were traced"]
    if last.numbers:
        return ["it depends on the value of a number that changes"]
    if whole_numbers:
        return [f"it is compiled for each value of a whole number, and more than {_MOST_TRACES} were"]
    return ["it depends on an array from around it that changes"]


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


@dataclasses.dataclass(frozen=True, slots=True)
class _ResultPlace:
    """Where a computed array belongs in what a function gives."""

    number: int


def _take_arrays(value: Any, found: list[LazyArray], trace: Trace) -> Any:
    if isinstance(value, LazyArray):
        for number, each in enumerate(found):
            if each is value:  # one array in two places
                return _ResultPlace(number)
        found.append(value)
        return _ResultPlace(len(found) - 1)
    if type(value) in (tuple, list):
        return type(value)(_take_arrays(each, found, trace) for each in value)
    if _is_named_tuple(value):
        return type(value)(*(_take_arrays(each, found, trace) for each in value))
    if type(value) is dict:
        return {key: _take_arrays(each, found, trace) for key, each in value.items()}
    if not isinstance(value, int | float | str | bytes | numpy.generic | None):
        trace.reasons.append(f"it gives a {type(value).__name__}")
    return value


def _put_back(structure: Any, results: list[Any]) -> Any:
    kind = type(structure)
    if kind is _ResultPlace:
        value = results[structure.number]
        return value if getattr(value, "ndim", 1) else value[()]
    if kind is tuple or kind is list:
        return kind(_put_back(each, results) for each in structure)
    if _is_named_tuple(structure):
        return kind(*(_put_back(each, results) for each in structure))
    if kind is dict:
        return {key: _put_back(each, results) for key, each in structure.items()}
    if kind is numpy.ndarray and not structure.flags.writeable:
        return structure.copy()  # a view that the program was not to change
    return structure


def _forget(roots: list[FrameNode]) -> None:
    """Let go of values that were computed while tracing."""
    from dovetail.frame.nodes import walk

    for node in walk(roots):
        if node.kind != "constant":
            node.value = None


def _guards(function: Callable[..., Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Arrays and numbers that a function takes from its module or from around it, with where to look whether they are
    still the same."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found = [(function.__globals__, name) for name in set(_names_in(code)) if name in function.__globals__]
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    found += [(_Cell(cell), name) for name, cell in cells.items()]  # type: ignore[misc]
    kinds = int | float | numpy.ndarray | numpy.generic
    return [(names, name, names.get(name)) for names, name in found if isinstance(names.get(name), kinds)]


def _names_in(code: types.CodeType) -> Iterator[str]:
    """What it names, and what functions within it do."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


def _digest(array: numpy.ndarray) -> int:
    """A number that changes where an array from around the function is changed in place."""
    return zlib.crc32(numpy.ascontiguousarray(array).view("u1").data) if array.size else 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """What a function has from around it, as a module's names are looked up."""

    cell: Any

    def get(self, name: str) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:  # not bound yet
            return None


def _note_seconds(traced: TracedFunction, results: list[Any], seconds: float) -> None:
    elements = max((getattr(result, "size", 1) for result in results), default=0)
    if traced.elements and traced.seconds:
        traced.predicted_seconds = traced.seconds / traced.elements * elements
    traced.elements, traced.seconds = elements, seconds
