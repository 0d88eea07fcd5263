"""The one small language that arrays and tables become: nodes of six kinds, with NumPy's own types and shapes.

    input     an array, or a number, that is given
    constant  a number written in the program
    map       an operation of `operations`, element by element, after broadcasting
    reduce    a reduction over all elements or along the last axis
    call      a function that loops do not know, called as it is between them; slices and other views among them

Types are asked of NumPy (`ufunc.resolve_dtypes`), so that its rules of promotion are its own. Knows neither loops nor
front ends.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy

from dovetail.frame.operations import c_of, is_native

Shape = tuple[int, ...]


@dataclasses.dataclass(slots=True, eq=False)
class FrameNode:
    """One value. `weak` says that it is a Python number, which takes the type of what it meets. `value` is an input's
    array or a constant's number, and of a call what it gave when it was traced; `axis` is None where all elements are
    reduced."""

    kind: str
    name: str
    dtype: numpy.dtype
    shape: Shape = ()
    args: tuple["FrameNode", ...] = ()
    value: Any = None
    weak: bool = False
    axis: int | None = None
    function: Callable[..., Any] | None = None

    def is_leaf(self) -> bool:
        return self.kind in ("input", "constant")


class Unknown(Exception):
    """An operation that loops do not know."""


FLOAT64, BOOL = numpy.dtype("float64"), numpy.dtype("bool")


def input_node(value: Any, *, weak: bool = False) -> FrameNode:
    """An array, or a number, that is given."""
    array = numpy.asarray(value)
    return FrameNode("input", "input", array.dtype, array.shape, value=value if weak else array, weak=weak)


def constant_node(value: Any) -> FrameNode:
    """A number of the program: Python's are weak, NumPy's are not."""
    if isinstance(value, bool):
        return FrameNode("constant", "constant", BOOL, value=numpy.bool_(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Unknown(f"the number {value}")
    array = numpy.asarray(value)
    if not is_native(array.dtype):
        raise Unknown(f"a number of type {array.dtype}")
    return FrameNode("constant", "constant", array.dtype, value=array[()], weak=isinstance(value, int | float)
                and not isinstance(value, numpy.generic))  # fmt: skip


def cast(node: FrameNode, dtype: numpy.dtype) -> FrameNode:
    """A node of the same numbers in another type."""
    if node.dtype == dtype:
        return dataclasses.replace(node, weak=False) if node.weak and node.kind == "constant" else node
    if node.kind == "constant":
        whole = node.weak and node.dtype.kind == "i" and dtype.kind in "iu"
        value = numpy.array(int(node.value), dtype) if whole else node.value.astype(dtype)  # NumPy's OverflowError
        return FrameNode("constant", "constant", dtype, value=value[()])
    return FrameNode("map", "cast", dtype, node.shape, (node,))


def strong(node: FrameNode) -> FrameNode:
    """The same number with a type of its own, as NumPy's functions give it."""
    return FrameNode("map", "cast", node.dtype, node.shape, (node,)) if node.weak else node


def map_node(name: str, ufunc: numpy.ufunc, args: tuple[FrameNode, ...]) -> FrameNode:
    """A ufunc of these, with the types that NumPy would have."""
    _require_native(name, *args)
    if all(arg.weak and arg.kind == "constant" for arg in args):
        raise Unknown("numbers alone")
    found = _resolve(ufunc, tuple(_kind_of(arg) for arg in args))
    if found is None:
        raise Unknown(f"{name} of {', '.join(str(arg.dtype) for arg in args)}")
    *wanted, given = found
    if (
        any(dtype != wanted[0] for dtype in wanted[1:])
        or c_of(name, wanted[0]) is None
        or not all(map(is_native, found))
    ):
        raise Unknown(f"{name} of {', '.join(str(arg.dtype) for arg in args)}")
    try:
        converted = tuple(cast(arg, dtype) for arg, dtype in zip(args, wanted, strict=True))
    except OverflowError as error:
        if given == BOOL:  # NumPy compares with any whole number
            raise Unknown("a number out of range") from error
        raise
    return FrameNode("map", name, given, broadcast(arg.shape for arg in args), converted)


def where_node(condition: FrameNode, yes: FrameNode, no: FrameNode) -> FrameNode:
    """The node of `numpy.where(condition, yes, no)`."""
    _require_native("where", condition, yes, no)
    dtype = numpy.result_type(*(_sample(arg) for arg in (yes, no)))
    if not is_native(dtype):
        raise Unknown(f"where of {dtype}")
    truth = (
        condition if condition.dtype == BOOL else map_node("not_equal", numpy.not_equal, (condition, constant_node(0)))
    )
    args = (truth, cast(yes, dtype), cast(no, dtype))
    return FrameNode("map", "where", dtype, broadcast(arg.shape for arg in args), args)


def reduce_node(name: str, node: FrameNode, axis: int | None, dtype: numpy.dtype | None = None) -> FrameNode:
    """A reduction over all elements (`axis` None) or along the last axis."""
    _require_native(name, node)
    if node.weak:
        raise Unknown(f"{name} of a number")
    if name in ("sum", "prod"):
        given = (
            numpy.dtype("int64" if node.dtype.kind in "bi" else "uint64") if node.dtype.kind in "biu" else node.dtype
        )
    elif name == "mean":
        node = node if node.dtype.kind == "f" else cast(node, FLOAT64)  # sums of whole numbers would wrap
        given = node.dtype
    else:
        given = BOOL if name in ("any", "all") else node.dtype
    if dtype is not None and dtype != given:
        raise Unknown(f"{name} as {dtype}")
    if name in ("any", "all") and node.dtype != BOOL:
        node = map_node("not_equal", numpy.not_equal, (node, constant_node(0)))
    if name in ("min", "max") and 0 in node.shape:
        raise Unknown(f"{name} of nothing")  # NumPy's own error
    return FrameNode("reduce", name, given, () if axis is None else node.shape[:-1], (node,), axis=axis)


def call_node(function: Callable[..., Any], args: tuple[FrameNode, ...], value: Any) -> FrameNode:
    """What a function that loops do not know gave for the values of these."""
    array = numpy.asarray(value)
    return FrameNode(
        "call", getattr(function, "__name__", "call"), array.dtype, array.shape, args, value, function=function
    )


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The shape that these broadcast to, or NumPy's own error where they do not."""
    found = list(shapes)
    if all(shape == found[0] for shape in found[1:]):
        return found[0]
    return numpy.broadcast_shapes(*found)


def walk(roots: Iterable[FrameNode], *, stop: Callable[[FrameNode], bool] = lambda node: False) -> Iterator[FrameNode]:
    """All nodes below these and themselves, each once, arguments first. Below nodes that stop it, none."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if not stop(node):
                stack += [(arg, False) for arg in reversed(node.args) if id(arg) not in seen]


def merge_equal(roots: list[FrameNode]) -> list[FrameNode]:
    """The same values, each computed once: common subexpressions become one node."""
    known: dict[Any, FrameNode] = {}
    merged: dict[int, FrameNode] = {}
    for node in walk(roots):
        args = tuple(merged[id(arg)] for arg in node.args)
        key: Any = (node.kind, node.name, node.dtype, node.shape, node.axis, tuple(map(id, args)))
        if node.kind == "constant":
            key = (*key, node.value.tobytes() if hasattr(node.value, "tobytes") else node.value)
        elif node.kind == "input":
            key = (*key, id(node))  # two arguments may be one array in this call and two in the next
        elif node.kind == "call":
            key = (*key, id(node))
        same = args == node.args
        merged[id(node)] = known.setdefault(key, node if same else dataclasses.replace(node, args=args))
    return [merged[id(root)] for root in roots]


def _require_native(name: str, *args: FrameNode) -> None:
    for arg in args:
        if not is_native(arg.dtype):
            raise Unknown(f"{name} of {arg.dtype}")


def _kind_of(node: FrameNode) -> Any:
    """As `resolve_dtypes` takes it: a type, or int or float for a Python number."""
    if not node.weak:
        return node.dtype
    return float if node.dtype.kind == "f" else int


def _sample(node: FrameNode) -> Any:
    """What stands for a node in `numpy.result_type`: its type, or a Python number where that adapts to others."""
    if not node.weak:
        return node.dtype
    return 0.0 if node.dtype.kind == "f" else 0


@functools.lru_cache(maxsize=4096)
def _resolve(ufunc: numpy.ufunc, kinds: tuple[Any, ...]) -> tuple[numpy.dtype, ...] | None:
    try:
        return ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))
    except TypeError:
        return None  # NumPy says why when it is asked
